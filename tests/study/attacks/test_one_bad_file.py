"""Attack: one registered site sends a signed file that breaks a check, and stops the others.

A count of 320 digits overflows where it becomes a float. Whatever a check of one file ends with,
that file is refused in one line and the files behind it are taken in: as files, from a folder, from
a storage, encrypted. Over Flower see `tests/flower/test_one_bad_file.py`.
"""

from __future__ import annotations

import io
import logging

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from predbayes.errors import UploadError
from predbayes.predictive.metrics import DIAGRAM_BINS
from predbayes_study.coordinator.intake import Intake
from predbayes_study.coordinator.stored import take_in
from predbayes_study.extras.survey.events import Surveys
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import predbayes
from tests.study.extras.survey.test_in_study import survey
from tests.study.faults.malformed import Signed, site_key
from tests.study.world import SITES, make_world

HUGE = 10**320
SUMS = {"total": 50.0, "squares": 50.0}
METRICS = {"accuracy": {"total": 50.0}, "nll": SUMS, "brier": SUMS}
BINS = {name: [one] * DIAGRAM_BINS for name, one in (("hits", 7), ("confidence", 1.0))}
RISKS = {"edges": [], "events": [HUGE], "others": [8], "expected": [1.0]}
GROUP = {"column": "y", "name": "a", "rows": HUGE, "events": 50, "expected": 40.0}
EVALUATIONS = {
    "bins": {"bins": BINS | {"rows": [HUGE] + [7] * (DIAGRAM_BINS - 1)}},
    "scores": {"bins": None, "scores": {"edges": [], "counts": [HUGE]}},
    "risks": {"bins": None, "risks": [RISKS] * 3},
    "groups": {"bins": None, "groups": [GROUP]},
    "metrics": {"bins": None, "metrics": METRICS | {"nll": {"total": HUGE, "squares": HUGE}}},
}


def evaluation(world, **told):
    """An evaluation of Alpha's, whose signature is good."""
    sums = {"model": "0" * 64, "metrics": METRICS} | told
    info = {"format_version": 1, "kind": "evaluation", "num_rows": 200, "site": "Alpha"}
    details = {"seen": world.seen, "evaluation": sums}
    info |= {"plan": world.kit.digest, "details": details}
    return Signed(info, {}).file(world.key("Alpha"))


@pytest.fixture(params=["open", "encrypted"])
def world(request, tmp_path):
    key = CoordinatorKey.generate() if request.param == "encrypted" else None
    made = make_world(tmp_path / "world", coordinator=key)
    made.keys |= {site: site_key(site) for site in SITES}
    return made


def batch(world, content, ending="safetensors"):
    """A folder with a bad file before two honest ones."""
    folder = world.root / "batch"
    folder.mkdir()
    bad = folder / f"0-bad.{ending}"
    bad.write_bytes(content)
    if world.coordinator is not None and ending == "safetensors":
        world.sealed(bad, "Alpha")
        bad.unlink()
    for site in ("Beta", "Gamma"):
        made = world.file(site)
        (folder / made.name).write_bytes(made.read_bytes())
    return folder


def given(folder, way):
    """The same files as a command may be given them."""
    if way == "files":
        return sorted(map(str, folder.iterdir()))
    return [str(folder) if way == "folder" else f"file://{folder}"]


@pytest.mark.parametrize("way", ["files", "folder", "storage"])
@pytest.mark.parametrize("what", EVALUATIONS)
def test_a_count_of_320_digits_is_refused_and_the_others_are_in(world, what, way):
    study = world.begin(sites=SITES[:3])
    folder = batch(world, evaluation(world, **EVALUATIONS[what]))
    answers = dict(take_in(study, given(folder, way)))
    (refused,) = [one for one in answers.values() if isinstance(one, UploadError)]
    assert "can't be checked" not in str(refused)  # it has a bound
    assert sorted(study.state().uploads) == ["Beta", "Gamma"]


@pytest.mark.parametrize("when", ["opened", "read"])
def test_an_object_that_may_not_be_read_is_refused_and_the_others_are_in(world, when, monkeypatch):
    """Whoever may write into a bucket may put an object there that others may not read."""
    study, opened = world.begin(sites=SITES[:3]), MemoryFileSystem.open

    class Broken(io.BytesIO):
        def read(self, _size=-1):
            raise ConnectionError("reset at s3://anna:word@b?key=word")

    def bucket(self, path, mode="rb", **options):
        if "0-bad" in path and mode == "rb":
            if when == "read":
                return Broken()
            raise PermissionError("Access Denied")
        return opened(self, path, mode, **options)

    files = fsspec.filesystem("memory")
    for path in batch(world, b"anything").iterdir():
        files.pipe(f"/heart-{when}-{world.root.parent.name}/{path.name}", path.read_bytes())
    monkeypatch.setattr(MemoryFileSystem, "open", bucket)
    answers = dict(take_in(study, [f"memory://heart-{when}-{world.root.parent.name}"]))
    (bad,) = [name for name, answer in answers.items() if isinstance(answer, UploadError)]
    assert str(answers[bad]).startswith(f"{bad}: it cannot be read: ")
    assert "word" not in str(answers[bad])
    assert sorted(study.state().uploads) == ["Beta", "Gamma"]


@pytest.mark.parametrize("bad", ["no key", "private", "misnamed", "twice", "too like", "folder"])
def test_a_bad_key_is_refused_and_the_others_are_admitted(world, bad):
    study, folder = world.begin(sites=()), world.root / "keys"
    (folder / "more").mkdir(parents=True)
    for site in SITES[:2]:
        world.key(site).public.save(folder / f"{site}.pub", site)
    other, wrong = SigningKey.generate(), folder / "0-bad.pub"
    if bad == "private":
        other.save(wrong)
    elif bad == "folder":
        wrong.mkdir()
    elif bad == "no key":
        wrong.write_text("nothing")
    else:
        named = {"misnamed": "Zeta", "twice": "0-bad", "too like": "ALPHA"}[bad]
        wrong = folder / "more" / "ALPHA.pub" if bad == "too like" else wrong
        other.public.save(wrong, named)
    if bad == "twice":
        SigningKey.generate().public.save(folder / "more" / "0-bad.pub", "0-bad")
    given = [folder, folder / "more"] if bad in ("twice", "too like") else [folder]
    done = predbayes("study", "admit-all", *given, "--study", study.folder)
    assert done.code == 2
    assert "Traceback" not in done.err
    *named, last = done.err.splitlines()
    assert len(named) == 1
    assert "key refused" in last
    assert sorted(study.state().keys) == sorted(SITES[:2])
    assert study.verify() == []


def test_the_command_ends_in_lines(world):
    study = world.begin(sites=SITES[:3])
    folder = batch(world, evaluation(world, **EVALUATIONS["bins"]))
    done = predbayes("study", "add", folder, "--study", study.folder)
    assert done.code == 2
    assert "Traceback" not in done.out + done.err
    assert sorted(study.state().uploads) == ["Beta", "Gamma"]


ERRORS = (
    *(OverflowError, RecursionError, MemoryError, ValueError, KeyError, AssertionError),
    *(RuntimeError, ZeroDivisionError, TypeError, IndexError, UnicodeDecodeError),
)


def raising(error):
    """A check that ends with an error."""
    arguments = ("utf-8", b"x", 0, 1, "why") if error is UnicodeDecodeError else ("why",)

    def check(*_):
        raise error(*arguments)

    return check


@pytest.mark.parametrize("where", ["payload", "intake", "survey"])
def test_whatever_a_check_ends_with_the_file_is_refused(world, where, monkeypatch, caplog):
    study = world.begin(sites=SITES[:3])
    is_survey = where == "survey"
    path = survey(world, "Alpha") if is_survey else world.signed("Alpha")
    folder = batch(world, path.read_bytes(), "survey" if is_survey else "safetensors")
    caplog.set_level(logging.DEBUG, "predbayes")
    owner, name = {
        "payload": (Predictions, "check"),
        "intake": (Intake, "_check_sender"),
        "survey": (Surveys, "check"),
    }[where]
    (bad,) = [path for path in folder.iterdir() if path.name.startswith("0-bad")]
    for error in ERRORS:
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(error))
            (answer,) = study.add_all([bad])
        assert isinstance(answer, UploadError)
        assert f"this file can't be checked ({error.__name__})" in str(answer)
        assert "\n" not in str(answer)
        assert any(record.exc_info for record in caplog.records)
    assert not study.state().accepted
    answers = [*study.add_all(sorted(folder.iterdir()))]
    assert not [answer for answer in answers if isinstance(answer, UploadError)]


def test_a_full_disk_is_nobodys_file(world, monkeypatch):
    study = world.begin(sites=SITES[:3])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Intake, "check", full)
    with pytest.raises(OSError, match="No space"):
        study.add(world.file("Alpha"))
