"""Workflows and the container call what there is, with no more rights than they need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONTAINER = ROOT / "container" / "Containerfile"
WITHOUT_HASHES = {
    # The row for Python 3.14, which the lock files do not have yet; the other rows say --locked.
    "check: scripts/setup --here ${{ matrix.setup }}",
    # The lowest and the newest versions that the distributions allow, to see whether they work.
    "nightly: pip install --system --resolution ${{ matrix.resolution }} --editable packages/core "
    '--editable "packages/study[parquet,tables]" --group dev',
}
"""Installs that lock files cannot hold, in jobs that can write nothing and publish nothing."""


def read(path: Path) -> dict:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # `on` stays a word


def steps(path: Path) -> list[dict]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
class TestEveryWorkflow:
    def test_steps_call_scripts_and_files_that_exist(self, path):
        text = "\n".join(step["run"] for step in steps(path) if "run" in step)
        for name in re.findall(r"\b(?:scripts|container|tests|locks)/[\w./-]+", text):
            assert (ROOT / name).exists(), name
        usage = (ROOT / "scripts" / "check").read_text(encoding="utf-8")
        for option in re.findall(r"scripts/check (--\w+)", text):
            assert f"{option} " in usage

    def test_each_job_has_a_bound_and_no_right_but_to_read(self, path):
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert workflow["on"].keys() <= {"push", "pull_request", "schedule"}  # of forks: no secrets
        for job in workflow["jobs"].values():
            assert int(job["timeout-minutes"]) <= (350 if path.stem == "nightly" else 90)

    def test_no_text_of_others_is_put_into_a_command(self, path):
        """A branch may have a command for its name; a variable of the environment is safe."""
        for step in steps(path):
            assert "github." not in step.get("run", "")

    def test_an_action_is_named_by_its_commit(self, path):
        """A tag or a branch can be moved, by anyone who gets hold of the action's repository."""
        for step in steps(path):
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", step["uses"])

    def test_what_pip_installs_has_hashes(self, path):
        runs = [step["run"] for step in steps(path) if "run" in step]
        for command in re.findall(r"(?<![\w-])pip3? install.*|scripts/setup.*", "\n".join(runs)):
            locked = "--require-hashes" in command or "--locked" in command
            assert locked or f"{path.stem}: {command}" in WITHOUT_HASHES

    def test_a_clone_keeps_no_token(self, path):
        for step in steps(path):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] == "false"


def test_systems_and_pythons_are_those_of_the_docs():
    (path,) = (path for path in WORKFLOWS if path.stem == "check")
    rows = read(path)["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert {row["os"] for row in rows} == {"ubuntu-latest", "macos-latest", "windows-latest"}
    pythons = sorted(row["python"] for row in rows)
    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    assert f"Python {pythons[0]} to {pythons[-1]}" in page


def test_only_the_last_job_of_a_release_publishes_and_it_has_no_token():
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert list(jobs) == ["distributions", "bundle", "release", "publish"]
    for before, job in zip(list(jobs), list(jobs)[1:], strict=False):
        assert jobs[job]["needs"] == before
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_only_the_python_without_lock_files_is_checked_without_them():
    (path,) = (path for path in WORKFLOWS if path.stem == "check")
    rows = read(path)["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert [row["python"] for row in rows if row.get("setup") != "--locked"] == ["3.14"]


def test_the_container_installs_locked_files_and_is_not_root():
    text = CONTAINER.read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.M)
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", bases[0])
    assert "pip wheel" not in text  # which fetches the backend of the build without a hash
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    assert all((ROOT / name).exists() for name in re.findall(r"-r (\S+)", text))
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)
    assert re.findall(r"^USER (\w+)$", text, re.M) == ["site"]
    assert text.index("USER site") < text.index("ENTRYPOINT")
