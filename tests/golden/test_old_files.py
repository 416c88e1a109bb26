"""Studies, kits, uploads and models of the first version are read and carried on.

`studies-0.1.0.tar.xz` has two small studies of invented rows: `classes` with uploads of weights,
`numbers` with uploads of predictions. In each, four sites were admitted and sent, one withdrew,
a result was made, a site adopted and evaluated its model. A fifth upload was not taken in yet.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.by_commands import run_quietly

ARCHIVE = Path(__file__).with_name("studies-0.1.0.tar.xz")


@pytest.fixture(params=["classes", "numbers"])
def old(request, tmp_path):
    """A study of the first version, with all its files."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


def predictions(path: Path) -> pd.DataFrame:
    return pd.read_csv(path).select_dtypes("number")


def test_the_ledger_and_every_file_are_verified(old):
    run_quietly(old, ["study", "verify"])
    run_quietly(old, ["study", "status"])


def test_a_late_upload_is_taken_in_and_a_new_result_is_made(old):
    run_quietly(old, ["study", "add", "Epsilon/out/Epsilon.safetensors"])
    run_quietly(old, ["study", "finish"])
    run_quietly(old, ["study", "verify", "--rebuild"])
    assert (old / "study" / "results" / "2" / "report.html").exists()


def test_an_evaluation_that_came_after_the_result_is_shown(old):
    run_quietly(old, ["study", "finish"])
    assert "Alpha" in (old / "study" / "results" / "2" / "report.html").read_text()


@pytest.mark.parametrize(
    ("at", "model", "table"),
    [(".", "study/results/1", "reference.csv"), ("Alpha", "adopted", "rows.csv")],
)
def test_a_model_predicts_what_it_predicted(old, at, model, table):
    folder = old / at
    run_quietly(folder, ["predict", model, table, "--out", "again.csv"])
    pd.testing.assert_frame_equal(
        predictions(folder / "again.csv"), predictions(folder / "predicted.csv"), rtol=1e-5
    )


def test_a_kit_is_checked_against_a_table(old):
    at = old / "Alpha"
    shutil.copytree(old / "kit", at / "kit")
    run_quietly(at, ["site", "check", "kit", "rows.csv"])


def test_a_site_adopts_and_evaluates_again_with_what_it_kept(old):
    at = old / "Alpha"
    run_quietly(at, ["site", "adopt", "model", "rows.csv", "--home", "out", "--out", "again"])
    assert (at / "again" / "comparison.json").exists()
