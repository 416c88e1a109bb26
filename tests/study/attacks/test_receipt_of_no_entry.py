"""Attack: a receipt whose proof is an entry that the ledger does not have.

The coordinator throws an upload away, makes up the entry that would have added it, and signs a
receipt with the true head of the ledger. The site cannot see that offline. Before, it was shown the
head alone, which the ledger has; and an export was not compared with what receipts in it state.
"""

from __future__ import annotations

import re
import shutil

import pytest

from predbayes_study.coordinator.signer import Signer
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.records.crate import crate_metadata, listed_digests
from predbayes_study.extras.records.export import export
from predbayes_study.store.ledger import Entry, now
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.statement import Deletion, Receipt, Signed
from tests.study.commands import predbayes
from tests.study.world import make_world

COORDINATOR = CoordinatorKey.generate()
KEY = COORDINATOR.signing


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path, coordinator=COORDINATOR)


@pytest.fixture
def study(world):
    """Alpha's upload is in, and another one that is withdrawn; Beta's was thrown away."""
    study = world.begin(sites=("Alpha", "Beta", "Gamma"), added=("Alpha", "Gamma"))
    study.withdraw("Gamma")
    return study


def made_up(world, study, number):
    """An entry that adds Beta's upload, and that nobody wrote."""
    upload = world.upload("Beta")
    sent = {"digest": upload.digest(), "file_digest": "0" * 64, "num_bytes": 9, "num_rows": 104}
    before = study.ledger.entry(number - 1).digest
    return Entry(number, now(), "add", {"site": "Beta", **sent, "kind": "predictions"}, before)


def receipt(world, study, **changes):
    state = study.state()
    true = Signed.parse(Receipt, Signer(KEY, state).receipt("Beta", ""), "").statement
    return Signed.of(true.model_copy(update=changes), KEY).file()


@pytest.mark.parametrize("number", [2, 4, 7])
def test_what_the_site_prints_finds_that_the_ledger_lacks_it(world, study, tmp_path, number):
    assert study.state().num_entries == 7
    entry = made_up(world, study, number)
    state = study.state()
    last = number == state.num_entries  # then the head itself is made up
    head = entry.digest if last else state.last
    content = receipt(world, study, upload=entry.data["digest"], entry=entry.content(), head=head)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "Beta.receipt").write_bytes(content)
    shutil.copytree(study.folder / "kit", tmp_path / "site" / "kit")
    said = predbayes("site", "verify", "kit", "Beta.receipt", cwd=tmp_path / "site")
    assert said.code == 0
    (printed,) = re.findall(r"--contains ([0-9a-f]{64})", said.out)
    assert printed == entry.digest
    (problem,) = study.verify(contains=[printed])
    assert "does not contain" in problem
    assert study.verify(contains=[str(tmp_path / "site" / "Beta.receipt")]) != []


@pytest.mark.parametrize("name", ["Beta.receipt", "Beta.deletion"])
def test_of_what_has_no_entry_the_site_prints_the_file_to_compare(world, study, tmp_path, name):
    """A receipt of an evaluation, or a deletion, that the ledger never had."""
    state = study.state()
    content = receipt(world, study, evaluations=("0" * 64,))
    if name.endswith("deletion"):
        true = Signed.parse(Deletion, Signer(KEY, state).deletion("Beta", ()), "").statement
        gone = true.model_copy(update={"removed": {world.upload("Beta").digest(): now()}})
        content = Signed.of(gone, KEY).file()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / name).write_bytes(content)
    shutil.copytree(study.folder / "kit", tmp_path / "site" / "kit")
    said = predbayes("site", "verify", "kit", name, cwd=tmp_path / "site")
    assert said.code == 0
    (printed,) = re.findall(r"--contains (\S+)", said.out)
    assert printed == name
    (problem,) = study.verify(contains=[str(tmp_path / "site" / printed)])
    assert "states otherwise" in problem


def test_a_true_receipt_is_as_the_ledger_was_when_it_was_made(world, study, tmp_path):
    paths = [tmp_path / f"{site}.receipt" for site in ("Alpha", "Beta")]
    for path in paths:
        path.write_bytes(study.receipt(path.stem))
    study.withdraw("Alpha")
    study.admit("Alpha", world.key("new").public)
    (tmp_path / "later.receipt").write_bytes(study.receipt("Alpha"))
    paths = [*map(str, paths), str(tmp_path / "later.receipt")]
    assert study.verify(contains=paths) == []
    assert predbayes("study", "verify", "--contains", paths[0], cwd=tmp_path).code == 0


FALSE = {
    "no upload": lambda world, state: {"upload": None, "entry": ""},
    "the upload of another": lambda world, state: {"upload": world.upload("Beta").digest()},
    "another key": lambda world, state: {"key": world.key("Beta").public.hex},
    "an evaluation": lambda world, state: {"evaluations": ("0" * 64,)},
    "another site": lambda world, state: {"site": "Beta"},
    "nobody": lambda world, state: {"site": "Nobody"},
    "an earlier entry": lambda world, state: {"number": 2},
    "another head": lambda world, state: {"head": state.study},
}


@pytest.mark.parametrize("change", FALSE.values(), ids=FALSE)
@pytest.mark.parametrize("there", ["noted", "exported"])
def test_any_other_statement_is_found(world, study, tmp_path, change, there):
    state = study.state()
    true = Signed.parse(Receipt, study.receipt("Alpha"), "").statement
    false = Signed.of(true.model_copy(update=change(world, state)), KEY).file()
    if there == "noted":
        (tmp_path / "Alpha.receipt").write_bytes(false)
        assert study.verify(contains=[str(tmp_path / "Alpha.receipt")]) != []
        return
    export(study, tmp_path / "record.zip")
    folder = tmp_path / "unpacked"
    shutil.unpack_archive(tmp_path / "record.zip", folder)
    assert Study(folder).verify() == []
    (folder / "receipts" / "Alpha.receipt").write_bytes(false)
    names = sorted(listed_digests(folder))
    entries = study.ledger.entries()
    listing = crate_metadata(folder, names, study.plan, entries, "")
    (folder / "ro-crate-metadata.json").write_bytes(listing)
    (problem,) = Study(folder).verify()
    assert problem.startswith("receipts/Alpha.receipt: ")


def test_so_is_a_deletion_of_what_is_there(study, tmp_path):
    state = study.state()
    false = Signer(KEY, state).deletion("Alpha", ())
    told = Signed.parse(Deletion, false, "").statement
    removed = {state.uploads["Alpha"].digest: told.at}
    (tmp_path / "Alpha.deletion").write_bytes(
        Signed.of(told.model_copy(update={"removed": removed}), KEY).file()
    )
    assert study.verify(contains=[str(tmp_path / "Alpha.deletion")]) != []
    study.delete("Alpha")
