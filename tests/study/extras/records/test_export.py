"""An exported study: an RO-Crate that others read, that verifies alone, and that has no data."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import pytest
from rocrate.rocrate import ROCrate

from predbayes.errors import StudyError
from predbayes_study.coordinator import signer
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.records.crate import CRATE_FILE
from predbayes_study.extras.records.export import export
from predbayes_study.site.release import Approvals
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import predbayes, refused
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(
        tmp_path_factory.mktemp("world"), method="mixture", coordinator=CoordinatorKey.generate()
    )


@pytest.fixture(scope="module")
def study(world):
    study = world.begin("study", added=SITES[:3])
    study.finish()
    return study


@pytest.fixture(scope="module")
def handed(world):
    """What Alpha hands over, in a folder where also its table lies."""
    folder = world.root / "from-alpha"
    folder.mkdir()
    key = SigningKey.generate()
    approvals = Approvals(folder, SITES[0], key.public.hex)
    approvals.record("plan", world.kit.digest, "Anna", key=key)
    (folder / "egress.html").write_text("<p>what leaves</p>")
    (folder / "patients.csv").write_text("x,y\n77.123,88.456\n")
    return folder


@pytest.fixture(scope="module")
def crate(world, study, handed):
    out = world.root / "crate.zip"
    export(study, out, {SITES[0]: handed}, "https://example.org/licence")
    shutil.unpack_archive(out, world.root / "crate")
    return world.root / "crate"


def graph(crate):
    found = json.loads((crate / CRATE_FILE).read_bytes())["@graph"]
    return {entity["@id"]: entity for entity in found}


class TestCrate:
    def test_an_independent_reader_finds_every_file(self, crate):
        read = ROCrate(crate)
        assert read.name == "The study small"
        assert read.root_dataset["license"].id == "https://example.org/licence"
        listed = {entity.id for entity in read.data_entities}
        there = {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}
        assert listed == there - {CRATE_FILE}
        assert {"kit/plan.toml", "ledger.jsonl", "results/1/model-card.json"} <= listed
        assert {"sites/Alpha/approvals.jsonl", "sites/Alpha/egress.html"} <= listed
        assert {f"receipts/{site}.receipt" for site in SITES[:3]} <= listed

    def test_files_have_digest_and_size(self, crate):
        for entity in ROCrate(crate).data_entities:
            content = (crate / entity.id).read_bytes()
            assert entity["sha256"] == hashlib.sha256(content).hexdigest()
            assert int(entity["contentSize"]) == len(content)

    def test_what_is_withheld_is_in_the_ledger_by_digest(self, crate, study):
        ledger = (crate / "ledger.jsonl").read_text()
        digests = [study.state().files[name] for name in ("labels.json", "kit/reference.csv")]
        for digest in (*digests, *(upload.file_digest for upload in study.state().kept)):
            assert digest in ledger
            assert digest not in (crate / CRATE_FILE).read_text()

    def test_the_same_study_gives_the_same_bytes(self, study, tmp_path, monkeypatch):
        monkeypatch.setattr(signer, "now", lambda: "2026-01-01T00:00:00Z")
        for name in ("one.zip", "two.zip"):
            export(study, tmp_path / name)
        assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


class TestNoData:
    def test_no_cell_of_any_table_is_in_it(self, crate, world):
        lines = (world.root / "reference.csv").read_text().splitlines()[1:]
        found = {cell for line in lines for cell in line.split(",")[:2] if len(cell) >= 5}
        # Shares and losses of three decimals are below 2, and meet some smaller cells by chance.
        cells = {cell for cell in found if abs(float(cell)) >= 2}
        cells |= {"77.123", "88.456"}
        assert len(cells) > 100
        for path in (path for path in crate.rglob("*") if path.is_file()):
            content = path.read_bytes().decode(errors="replace")
            # Figures have coordinates of more decimals, whose digits meet those of cells by chance.
            assert not cells & set(re.findall(r"-?\d+\.\d+", content)), path
            assert not [line for line in lines if line.rpartition(",")[0] in content], path

    def test_no_array_of_an_upload_or_of_the_reference_rows_is_in_it(self, crate, world, study):
        arrays = [a for u in study.state().kept for a in study.read(u).arrays.values()]
        rows = [row.numpy().tobytes() for array in arrays for row in array]
        rows += [row.numpy().tobytes() for row in world.kit.inputs]
        rows += [row.double().numpy().tobytes() for row in world.kit.inputs]
        assert len(rows) > 300
        for path in (path for path in crate.rglob("*") if path.is_file()):
            content = path.read_bytes()
            assert not [row for row in rows if row in content], path


def relisted(crate, copy, change):
    """A copy of a crate whose list, and nothing else, is changed."""
    shutil.copytree(crate, copy)
    listing = json.loads((copy / CRATE_FILE).read_bytes())
    change(listing["@graph"])
    (copy / CRATE_FILE).write_text(json.dumps(listing))
    return copy


class TestVerify:
    def test_it_verifies_alone(self, crate, world):
        assert Study(crate).verify(key=world.coordinator.public) == []
        before = sorted(crate.rglob("*"))
        done = predbayes("study", "verify", "--study", crate)
        assert done.code == 0, done.err
        assert "it is an export" in done.out
        assert sorted(crate.rglob("*")) == before

    @pytest.mark.parametrize(
        "name", ["kit/plan.toml", "kit/kit.sig", "ledger.jsonl", "results/1/report.html"]
    )
    def test_a_listed_digest_that_is_not_the_files_is_named(self, crate, tmp_path, name):
        def other(graph):
            next(one for one in graph if one["@id"] == name)["sha256"] = "0" * 64

        def twice(graph):
            graph.append(next(one for one in graph if one["@id"] == name) | {"sha256": "0" * 64})

        def never(graph):
            graph.remove(next(one for one in graph if one["@id"] == name))

        said = [f"{CRATE_FILE} does not list {name} as it is"]
        assert Study(relisted(crate, tmp_path / "other", other)).verify() == said
        assert Study(relisted(crate, tmp_path / "never", never)).verify() == said
        (problem,) = Study(relisted(crate, tmp_path / "twice", twice)).verify()
        assert problem.endswith("is not as predbayes writes it")

    @pytest.mark.parametrize("whose", ["another key", "another site"])
    def test_a_receipt_that_is_not_the_coordinators_is_named(self, crate, tmp_path, whose):
        name = "receipts/Beta.receipt"
        content = (crate / "receipts" / "Alpha.receipt").read_bytes()
        if whose == "another key":
            said = (crate / name).read_bytes().splitlines()[0]
            signature = SigningKey.generate().sign("receipt", said)
            content = said + f"\n{signature}\n".encode()

        def other(graph):
            digest = hashlib.sha256(content).hexdigest()
            next(one for one in graph if one["@id"] == name)["sha256"] = digest

        copy = relisted(crate, tmp_path / "copy", other)
        (copy / name).write_bytes(content)
        (problem,) = Study(copy).verify()
        assert problem.startswith(f"{name}: Beta.receipt ")

    def test_altered_missing_and_strange_files_are_named(self, crate, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(crate, copy)
        altered = ("kit/plan.toml", "sites/Alpha/egress.html", "receipts/Beta.receipt")
        for name in altered:
            (copy / name).write_bytes((copy / name).read_bytes() + b" ")
        (copy / "results" / "1" / "report.html").unlink()
        (copy / "rows.csv").write_text("1,2\n")
        problems = Study(copy).verify()
        assert "results/1/report.html is missing" in problems
        assert "rows.csv is not the study's" in problems
        assert all(any(name in problem for problem in problems) for name in altered)
        (copy / CRATE_FILE).write_text('{"@graph": [1]}')
        assert Study(copy).verify() == [f"{CRATE_FILE} is not as predbayes writes it"]
        (copy / CRATE_FILE).unlink()
        assert "labels.json is missing" in Study(copy).verify()

    def test_a_result_cannot_be_made_again_from_it(self, crate):
        assert "has not what a result is made of" in Study(crate).verify(rebuild=True)[0]


class TestRefusals:
    def test_what_cannot_be_exported(self, study, crate, handed, tmp_path):
        for of, target, handing, why in (
            (study, crate.with_suffix(".zip"), {}, "exists already"),
            (study, tmp_path / "folder", {}, r"\.zip"),
            (Study(crate), tmp_path / "again.zip", {}, "is an export"),
            (study, tmp_path / "out.zip", {"Omega": handed}, "no admitted site"),
        ):
            with pytest.raises(StudyError, match=why):
                export(of, target, handing)

    @pytest.mark.parametrize("target", ["labels.json", "ledger.jsonl"])
    def test_a_link_brings_nothing_into_it(self, study, tmp_path, target):
        site = next(iter(study.state().keys))
        folder = tmp_path / "handed"
        folder.mkdir()
        (folder / "egress.html").symlink_to(study.folder / target)
        assert (folder / "egress.html").is_file()
        with pytest.raises(StudyError, match="is a link"):
            export(study, tmp_path / "crate.zip", {site: folder})
        assert not (tmp_path / "crate.zip").exists()

    def test_an_altered_study_is_not_exported(self, world, tmp_path):
        study = world.begin("altered")
        (study.folder / "kit" / "README.txt").write_text("other")
        with pytest.raises(StudyError, match=r"README\.txt was altered"):
            export(study, tmp_path / "out.zip")
        assert not (tmp_path / "out.zip").exists()

    def test_altered_approvals_are_refused(self, study, handed, tmp_path):
        shutil.copytree(handed, tmp_path / "handed")
        path = tmp_path / "handed" / "approvals.jsonl"
        path.write_bytes(path.read_bytes().replace(b"Anna", b"Anne"))
        with pytest.raises(StudyError, match=r"entry 1 of approvals\.jsonl was altered"):
            export(study, tmp_path / "out.zip", {SITES[0]: tmp_path / "handed"})

    def test_the_command_says_what_it_takes(self, study, handed, tmp_path):
        asked = ["study", "export", "--study", study.folder, "--out", tmp_path / "out.zip"]
        assert "--from" in refused(predbayes(*asked, "--from", "Alpha"))
        done = predbayes(*asked, "--from", f"Alpha={handed}")
        assert done.code == 0, done.err
        assert "3 receipts and 2 from sites" in done.out


def test_without_a_key_there_are_no_receipts(tmp_path):
    world = make_world(tmp_path / "world")
    study = world.begin("plain")
    export(study, tmp_path / "crate.zip")
    shutil.unpack_archive(tmp_path / "crate.zip", tmp_path / "crate")
    assert Study(tmp_path / "crate").verify() == []
    assert not (tmp_path / "crate" / "receipts").exists()
    assert "Not stated" in graph(tmp_path / "crate")["#licence"]["name"]
