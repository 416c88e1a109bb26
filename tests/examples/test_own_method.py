"""The method of one's own in the docs, in a package of one's own, beside the paper's methods."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from predbayes_lab.records import RECORDS_FILE, read_records
from predbayes_lab.rendering import to_markdown
from predbayes_lab.tables import build_table

pytestmark = [pytest.mark.data, pytest.mark.slow("sweeps in processes, one of them on Ray")]
ROOT = Path(__file__).parents[2]
CONFIG = """
seeds = 2
[data]
name = "heart"
[partition]
kind = "groups"
[optimizer]
optimizer = "adam"
lr = 1e-2
num-epochs = 3
[methods.median]
method = "mypackage.mine:Median"
learner = "optimizer"
student = true
[methods.mixture]
learner = "optimizer"
"""


@pytest.fixture
def project(tmp_path):
    """A user's folder: the docs' snippet as a module, and a config."""
    text = (ROOT / "examples" / "own_method.py").read_text()
    snippet = text.split("# --8<-- [start:method]\n")[1].split("# --8<-- [end:method]")[0]
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "mine.py").write_text(snippet)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def sweep(project, *options):
    command = [
        sys.executable,
        "-m",
        "predbayes_study",
        "experiment",
        "sweep",
        "mine.toml",
        *options,
    ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return read_records(project / "results" / "mine" / RECORDS_FILE)


def test_it_runs_beside_the_papers_methods_by_its_import_string(project):
    records = sweep(project, "--workers", "2")  # Ray's workers find it, too
    labels = {"median", "median student", "mixture"}
    assert {(r.method, r.seed) for r in records} == {(m, s) for m in labels for s in (0, 1)}
    table = to_markdown(build_table(records, "nll", against="mixture"))
    assert "| median |" in table
    scores = {r.method: r.scores["nll"] for r in records if r.seed == 0}
    assert scores["median"] != scores["mixture"]


def test_a_mended_method_is_run_anew_and_no_other(project):
    before = sweep(project, "--workers", "1")
    with (project / "mypackage" / "mine.py").open("a") as file:
        file.write("\n# mended\n")
    after = sweep(project, "--workers", "1")
    assert {r.method for r in after[len(before) :]} == {"median", "median student"}
    assert after[: len(before)] == before
