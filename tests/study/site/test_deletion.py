"""What training left is deleted with a signed receipt, also if that is killed on the way."""

from __future__ import annotations

import json

import pytest

from predbayes.errors import StudyError
from predbayes.files import digests
from predbayes_study.site import deletion
from predbayes_study.site.deletion import SiteDeletion, delete_outputs
from predbayes_study.trust.signing import SigningKey

KEY = SigningKey.generate()
FILES = ("Basel.sealed", "held-back.safetensors", "home/holdout.safetensors", "home/trained.json")


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    (folder / "home").mkdir(parents=True)
    for name in (*FILES, "egress.html", "notes.txt"):
        (folder / name).write_text(f"content of {name}")
    (folder / "home" / ".partial-holdout").write_text("left by a kill")
    return folder


def left(out):
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())


def signed(path):
    content, signature = path.read_bytes().splitlines()
    assert KEY.public.verifies("deletion", content, signature.decode())
    return SiteDeletion.model_validate_json(content)


def test_only_what_training_left_goes_and_the_receipt_names_it(out):
    before = digests(out, [out / name for name in FILES])
    path, _ = delete_outputs(out, "Basel", KEY)
    assert left(out) == ["Basel.deletion", "egress.html", "notes.txt"]
    receipt = signed(path)
    assert receipt.site == "Basel"
    assert {name: receipt.removed[name] for name in FILES} == before
    assert any("backups" in line for line in receipt.remains)
    assert any("SuperLink" in line for line in receipt.remains)


@pytest.mark.parametrize("last", range(1, 9))
def test_one_that_is_killed_goes_on_and_its_receipt_names_all(out, monkeypatch, last):
    calls = []

    def dying(function):
        def call(*arguments):
            calls.append(arguments)
            if len(calls) == last:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("remove", "write_bytes"):
            patch.setattr(deletion, name, dying(getattr(deletion, name)))
        with pytest.raises(KeyboardInterrupt):
            delete_outputs(out, "Basel", KEY)
    assert not (out / "Basel.deletion").exists() or (out / ".deleting.json").exists()
    path, _ = delete_outputs(out, "Basel", KEY)
    assert set(FILES) <= signed(path).removed.keys()
    assert left(out) == ["Basel.deletion", "egress.html", "notes.txt"]


@pytest.mark.parametrize(
    "noted",
    [
        {"../A.csv": "ab" * 32},
        {"/etc/passwd": "ab" * 32},
        {"home/../../A.csv": "ab" * 32},
        {"notes.txt": "ab" * 32},
        {"home/deep/file": "ab" * 32},
        {"Bern.sealed": "ab" * 32},
        {"Basel.sealed": "no digest"},
        ["Basel.sealed"],
        None,
    ],
)
def test_a_note_that_no_deletion_wrote_deletes_nothing(out, noted):
    table = out.parent / "A.csv"
    table.write_text("rows")
    (out / ".deleting.json").write_text("{" if noted is None else json.dumps(noted))
    before = left(out)
    with pytest.raises(StudyError, match=r"^[^\n]*not what a deletion for Basel notes[^\n]*$"):
        delete_outputs(out, "Basel", KEY)
    assert table.exists()
    assert left(out) == before
