"""Attack: a courier changes a file of a signed folder, or swaps files while a command reads them.

Before, of a kit the README and anything added, such as `predbayes.pth`, were compared by `site
verify` alone, and of a result the model alone. A model was loaded first and then read once more to
be compared with its signature: who put the true files back in between had another model accepted.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from predbayes.errors import PredbayesError
from predbayes_study.kit.kit import Kit
from predbayes_study.result.signed import load_signed, signed_result
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import predbayes
from tests.study.world import make_world, own_table

pytestmark = pytest.mark.usefixtures("quick_results")

LEARNER = "[learner]\nname = 'any'\nnum_epochs = 1\nmin_steps = 200\nholdout = 0.5\n"
TABLE = ("rows.csv", "--out", "out")
COMMANDS = {
    "kit": [
        ("plan", "check", "kit"),
        ("site", "check", "kit", "rows.csv"),
        ("site", "approve", "kit", "--by", "officer"),
        ("site", "train", "kit", *TABLE),
        ("site", "audit", "kit", *TABLE),
        ("site", "survey", "kit", *TABLE),
        ("site", "verify", "kit"),
        ("holder", "open", "kit", "no.request"),
    ],
    **{
        folder: [
            ("predict", folder, "rows.csv", "--out", "predicted.csv"),
            ("predict", folder, "rows.csv", "--out", "predicted.csv", "--coverage", "0.9"),
            ("site", "evaluate", folder, "rows.csv"),
            ("site", "adopt", folder, *TABLE),
            ("site", "verify", folder),
        ]
        for folder in ("result", "model")
    },
}
NEED_MORE = {"audit", "train", "survey", "open", "--coverage"}
"""Words of commands that would need more than there is here, or long: only their refusal is run."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What Alpha has of a study with a result."""
    root = tmp_path_factory.mktemp("altered")
    world = make_world(
        root / "world", method="mixture", learner=LEARNER, coordinator=CoordinatorKey.generate()
    )
    study = world.begin(sites=("Alpha", "Beta"), added=("Alpha", "Beta"))
    study.finish()
    site = root / "site"
    shutil.copytree(study.folder / "kit", site / "kit")
    shutil.copytree(study.result_folder(1), site / "result")
    shutil.copytree(study.result_folder(1) / "model", site / "model")
    (site / "rows.csv").write_text(own_table((root / "world" / "reference.csv").read_text()))
    (site / "site.toml").write_text('format = 1\nname = "Alpha"\n')
    world.key("Alpha").save(site / "Alpha.key")
    return site


@pytest.fixture(params=[(f, line) for f, lines in COMMANDS.items() for line in lines], ids=str)
def case(request, site, tmp_path):
    """A command, with the folder that it takes, in a site of its own."""
    folder, line = request.param
    shutil.copytree(site, tmp_path / "site")
    return tmp_path / "site" / folder, line


def changes(folder):
    """Change one thing after the other, and say what."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        yield f"{path} altered"
        path.unlink()
        yield f"{path} missing"
        path.write_bytes(content)
    for name in ("predbayes.pth", ".hidden", "inner/sitecustomize.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import os\n")
        yield f"{name} added"
        (folder / name).unlink()
        if (folder / name).parent != folder:
            yield f"{name} gone, its folder not"
            (folder / name).parent.rmdir()
    if hasattr(os, "mkfifo"):
        for path in (folder / "pipe", next(path for path in folder.iterdir() if path.is_file())):
            content = path.read_bytes() if path.exists() else None
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            yield f"{path} is a pipe"
            path.unlink()
            if content is not None:
                path.write_bytes(content)
    (folder / "more").symlink_to(folder.parent, target_is_directory=True)
    yield "a link to a folder added"
    (folder / "more").unlink()


def test_whatever_is_changed_is_refused_by_every_command(case):
    folder, line = case
    at = folder.parent
    if not NEED_MORE & {*line}:
        assert predbayes(*line, cwd=at).code == 0
        shutil.rmtree(at / "out", ignore_errors=True)
    for changed in changes(folder):
        if "kit.sig missing" in changed and line[0] == "plan":
            continue  # of a kit that is not of a study yet nothing is signed
        done = predbayes(*line, cwd=at)
        assert done.code == 2, changed
        assert not (at / "out").exists(), changed


class Swapped:
    """Gives a folder's files other contents while it is read: at the k-th file that is opened."""

    def __init__(self, first: Path, then: Path, at: Path, k: int):
        self.then, self.at, self.left = then, at, k + 1
        put(first, at)

    def opened(self, path):
        if isinstance(path, str) and path.startswith(f"{self.at}/"):
            self.left -= 1
            if self.left == 0:
                put(self.then, self.at)

    def __enter__(self):
        active.append(self)
        return self

    def __exit__(self, *_):
        active.remove(self)

    @property
    def is_over(self):
        """Whether it was never opened so often."""
        return self.left > 0


active: list[Swapped] = []


def _hook(event, arguments):
    if event == "open" and active and not busy:
        busy.append(True)
        try:
            active[0].opened(str(arguments[0]))
        finally:
            busy.clear()


busy: list[bool] = []
sys.addaudithook(_hook)  # which cannot be taken off again, and does nothing without `active`


def put(source, target):
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def evil_model(true, folder):
    """The model with another temperature, and all its signatures."""
    shutil.copytree(true, folder)
    inside = folder / "model" if (folder / "model").exists() else folder
    model = load_signed(true).model
    predictor = dataclasses.replace(model.predictor, inverse_temperature=0.001)
    dataclasses.replace(model, predictor=predictor).save(inside)
    if inside != folder:
        path = folder / "result.json"
        path.write_bytes(path.read_bytes().replace(b'"num_rows": ', b'"num_rows": 1', 1))


def model_of(folder):
    found = load_signed(folder)
    return found.model.predictor.inverse_temperature, signed_result(found)


def evil_kit(true, folder):
    shutil.copytree(true, folder)
    plan, rows = folder / "plan.toml", folder / "reference.csv"
    plan.write_bytes(plan.read_bytes().replace(b"[-50.0, 50.0]", b"[-50.0, 51.0]", 1))
    rows.write_bytes(rows.read_bytes().replace(b"1", b"2", 1))
    (folder / "README.txt").write_text("first: pip install evil")


def kit_of(folder):
    kit = Kit.load(folder)
    return kit.digest, kit.head, kit.rows.codes.nan_to_num(-1).tolist()


@pytest.mark.parametrize(
    ("name", "make_evil", "read"),
    [
        ("model", evil_model, model_of),
        ("result", evil_model, model_of),
        ("kit", evil_kit, kit_of),
    ],
)
@pytest.mark.parametrize("order", ["evil first", "true first"])
def test_what_is_used_is_what_was_checked_whenever_files_change(
    site, tmp_path, name, make_evil, read, order
):
    true, evil, share = tmp_path / "true", tmp_path / "evil", tmp_path / "parent" / "share"
    shutil.copytree(site / name, true)
    make_evil(true, evil)
    share.mkdir(parents=True)
    if name == "model":  # which has its result beside it
        for path in (site / "result").glob("result.*"):
            shutil.copyfile(path, tmp_path / "parent" / path.name)
            shutil.copyfile(path, tmp_path / path.name)
    honest = read(true)
    with pytest.raises(PredbayesError):
        read(evil)
    accepted, k = 0, 0
    while True:
        pair = (evil, true) if order == "evil first" else (true, evil)
        with Swapped(*pair, share, k) as swap:
            try:
                assert read(share) == honest, f"swapped at the file opened as number {k + 1}"
                accepted += 1
            except PredbayesError:
                pass
        if swap.is_over:
            break
        k += 1
    assert k
    if order == "true first":
        assert accepted  # at least where it changed after everything was read


@pytest.mark.parametrize("key", [None, CoordinatorKey.generate()], ids=["open", "encrypted"])
@pytest.mark.parametrize("order", ["evil first", "true first"])
def test_a_file_that_changes_while_it_is_taken_in_is_none_or_the_sites(tmp_path, key, order):
    world = make_world(tmp_path / "world", method="mixture", coordinator=key)
    true, evil, share = (tmp_path / name for name in ("true", "evil", "share"))
    k, accepted = 0, 0
    while True:
        study = world.begin(f"study-{k}", sites=("Alpha",))
        for folder in (true, evil, share):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        path = world.file("Alpha")
        shutil.copyfile(path, true / path.name)
        digest = world.upload("Alpha").digest()
        stranger = dataclasses.replace(world, keys={"Alpha": SigningKey.generate()})
        shutil.copyfile(stranger.file("Alpha", world.predictions("Beta")), evil / path.name)
        pair = (evil, true) if order == "evil first" else (true, evil)
        with Swapped(*pair, share, k) as swap, suppress(PredbayesError):
            study.add(share / path.name)
        found = study.state().uploads
        assert {upload.digest for upload in found.values()} <= {digest}
        assert study.verify() == []
        accepted += len(found)
        if swap.is_over:
            break
        k += 1
    assert accepted
