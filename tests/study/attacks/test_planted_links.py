"""Attack: a link that somebody planted in a shared folder, where predbayes is about to write.

Before, each file was first written as `.partial-NAME`, through whatever had that name: a link
`.partial-egress.html` in a shared `--out` had `site.toml` overwritten. Here every command that
writes is run once to see what it writes; then once more with a link in place of each such file.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from predbayes.files import TEMPORARY
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.commands import predbayes
from tests.study.invented import DRAFT, table
from tests.study.world import make_world, own_table

pytestmark = pytest.mark.usefixtures("quick_results")

LEARNER = "[learner]\nname = 'any'\nnum_epochs = 1\nmin_steps = 200\nholdout = 0.5\n"
SAID = ("--by", "officer")
TRAIN = ("site", "train", "study/kit", "rows.csv", "--out", "out")
KEYED = ("--labels", "kit-labels.json", "--key", "coordinator.key")
STEPS = [
    ("study", "key", "--out", "other"),
    ("plan", "new", "rows.csv", "--target", "kind", "--out", "new.toml"),
    ("plan", "freeze", "plan.toml", "--out", "second"),
    ("study", "init", "kit", *KEYED),
    ("site", "check", "study/kit", "rows.csv", "--suggest", "--name", "Basel"),
    ("site", "key", "Basel"),
    ("site", "check", "study/kit", "rows.csv"),
    ("site", "approve", "study/kit", *SAID),
    ("study", "admit", "Basel", "Basel.pub"),
    TRAIN,
    ("site", "approve", "out/held-back.safetensors", *SAID),
    TRAIN,
    ("study", "add", "out/Basel.sealed"),
    ("study", "receipt", "Basel", "--out", "Basel.receipt"),
    ("site", "verify", "study/kit", "Basel.receipt"),
    ("study", "finish"),
    ("predict", "study/results/1", "rows.csv", "--out", "predicted.csv"),
    ("site", "evaluate", "study/results/1", "rows.csv", "--home", "out", "--out", "Basel.eval"),
    ("site", "adopt", "study/results/1", "rows.csv", "--home", "out", "--out", "adopted"),
    ("study", "export", "--out", "record.zip"),
    ("site", "revoke", "study/kit", *SAID),
    ("site", "delete", "out"),
    ("study", "delete", "Basel"),
    ("site", "survey", "draft.toml", "clinic.csv", "--out", "Basel.survey"),
    ("plan", "merge", "draft.toml", "Basel.survey", "--out", "merged.toml"),
]
NAMED = ("out", "adopted", "")
"""Folders that the user names: to give a link there is their own choice."""


def begin(root):
    """A folder of all parties, in which everything is done."""
    key = CoordinatorKey.generate()
    world = make_world(
        root, learner=LEARNER, upload="release = 'manual'", rules="quorum = 1", coordinator=key
    )
    (root / "rows.csv").write_text(own_table((root / "reference.csv").read_text()))
    (root / "draft.toml").write_text(DRAFT)
    table("Split").to_csv(root / "clinic.csv", index=False)
    return world


def contents(folder):
    """What is below a folder, not through links."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(at, name)
            kind = path.is_file() and not path.is_symlink()
            found[path.relative_to(folder).as_posix()] = path.read_bytes() if kind else None
    return found


def plant(folder, victims, before, after, *, dangling):
    """Put a link in place of everything that a command made or changed, to a victim elsewhere."""
    victims.mkdir()
    written = [name for name in after if name not in before or before[name] != after[name]]
    partial = [f"{Path(n).parent / (TEMPORARY + Path(n).name)}" for n in written]
    for number, name in enumerate([*written, *partial]):
        path, victim = folder / name, victims / f"victim-{number}"
        if any(parent.is_symlink() for parent in path.parents):
            continue
        is_folder = name in after and after[name] is None
        if is_folder and name in NAMED:
            path.mkdir(exist_ok=True)
            continue
        if not path.parent.is_dir():
            continue
        if is_folder:
            victim.mkdir()
            inside = [one for one in after if one.startswith(f"{name}/") and after[one] is not None]
            for one in inside:
                (victim / one.removeprefix(f"{name}/")).parent.mkdir(parents=True, exist_ok=True)
                (victim / one.removeprefix(f"{name}/")).write_bytes(b"somebody else's")
        elif not dangling:
            victim.write_bytes(before.get(name) or b"somebody else's")
        if path.is_dir() and not path.is_symlink():
            continue  # it was there before, and is the owner's alone
        path.unlink(missing_ok=True)
        path.symlink_to(victim)
        yield name


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What there is before each command and after it, as folders."""
    root = tmp_path_factory.mktemp("states")
    begin(root / "0")
    for number, line in enumerate(STEPS):
        shutil.copytree(root / f"{number}", root / f"{number + 1}", symlinks=True)
        done = predbayes(*line, cwd=root / f"{number + 1}")
        assert done.code == 0, (line, done)
    return root


@pytest.mark.parametrize("dangling", [False, True], ids=["to a file", "to nothing"])
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[" ".join(line[:2]) for line in STEPS])
def test_no_command_writes_through_a_link(states, tmp_path, number, dangling):
    before, after = (contents(states / f"{n}") for n in (number, number + 1))
    folder, victims = tmp_path / "folder", tmp_path / "victims"
    shutil.copytree(states / f"{number}", folder, symlinks=True)
    planted = list(plant(folder, victims, before, after, dangling=dangling))
    assert planted
    found = contents(victims)
    done = predbayes(*STEPS[number], cwd=folder)
    assert done.code in (0, 2)
    assert contents(victims) == found, (done, planted)


def test_a_link_in_place_of_home_has_nothing_written_or_deleted_behind_it(states, tmp_path):
    for line in (TRAIN, ("site", "delete", "out"), ("site", "audit", *TRAIN[2:])):
        folder, victim = tmp_path / line[1], tmp_path / f"victim of {line[1]}"
        shutil.copytree(states / f"{STEPS.index(TRAIN) + 1}", folder)
        victim.mkdir()
        for name in ("trained.json", "holdout.safetensors", "checkpoint.safetensors", "notes.txt"):
            (victim / name).write_text("somebody else's")
        shutil.rmtree(folder / "out" / "home")
        (folder / "out" / "home").symlink_to(victim)
        before = contents(victim)
        assert predbayes(*line, cwd=folder).code == 2
        assert contents(victim) == before


def test_a_lock_and_a_journal_that_are_no_files_are_refused(states, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(states / f"{STEPS.index(TRAIN)}", folder)
    approve = ("site", "approve", "study/kit", "--by", "another")
    for name in ("approvals.jsonl", "audit.jsonl", ".lock-approvals"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)  # noqa: TID251
        assert predbayes(*approve, cwd=folder).code == 2
        (folder / name).unlink()


PRIVATE = {
    "kit-labels.json", "coordinator.key", "other.key", "Basel.key", "audit.jsonl",
    "held-back.safetensors", "Basel.safetensors", "trained.json", "holdout.safetensors",
}  # fmt: skip
SHARED = {"egress.html", "Basel.pub", "other.pub", "Basel.receipt", "record.zip", "site.toml"}


def test_what_stays_is_its_owners_alone_and_what_is_shared_has_the_umasks_mode(tmp_path):
    old = os.umask(0o022)
    try:
        root = tmp_path / "folder"
        begin(root)
        for line in STEPS[:20]:
            assert predbayes(*line, cwd=root).code == 0
    finally:
        os.umask(old)
    seen = set()
    for path in (path for path in root.rglob("*") if path.is_file()):
        mode, seen = stat.S_IMODE(path.stat().st_mode), seen | {path.name}
        closed = any(parent.stat().st_mode & 0o077 == 0 for parent in path.parents)
        if path.name in PRIVATE and path.parent.name not in ("adopted", "model"):
            assert mode == 0o600 or closed, path
        if path.name in SHARED:
            assert mode == 0o644, path
        assert not path.name.startswith(TEMPORARY)
    assert {*PRIVATE, *SHARED} - seen <= {"Basel.safetensors"}
    assert stat.S_IMODE((root / "study").stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "out" / "home").stat().st_mode) == 0o700
