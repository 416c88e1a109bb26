"""`predbayes study` as a coordinator meets it, from a kit to a verified result."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from pathlib import Path

import pytest

from predbayes_study.coordinator.study import Study
from predbayes_study.payloads.details import save_signed
from predbayes_study.result.model import CalibratedModel
from predbayes_study.tables.reading import read_frame
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey, fingerprint
from tests.study.commands import predbayes, refused
from tests.study.world import SITES, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("signed"), coordinator=CoordinatorKey.generate())


@pytest.fixture
def study(world, tmp_path, monkeypatch):
    """A study with all sites admitted, named by the environment."""
    study = Study.init(tmp_path / "study", world.kit.folder, world.labels_path)
    for site in SITES:
        study.admit(site, world.key(site).public)
    monkeypatch.setenv("PREDBAYES_STUDY", str(study.folder))
    return study


@pytest.fixture(scope="module")
def finished(world):
    study = world.begin("finished", added=SITES[:3])
    study.finish()
    return study


class TestSigned:
    """A study whose plan names the coordinator's key."""

    @pytest.fixture
    def begun(self, signed, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        where = ("--labels", signed.labels_path, "--key", signed.key_path)
        done = predbayes("study", "init", signed.kit.folder, *where)
        assert done.code == 0, done.err
        assert "study/kit: the signed kit, for the sites" in done.out
        study = Study(tmp_path / "study")
        signed.seen = study.kit.head
        for site in ("Alpha", "Beta"):
            study.admit(site, signed.key(site).public)
        return study

    def test_a_site_gets_a_receipt_and_asks_for_its_head_later(self, signed, begun):
        signed.coordinator.public.save(begun.folder.parent / "coordinator.pub")
        assert predbayes("study", "add", signed.file("Alpha")).code == 0
        done = predbayes("study", "receipt", "Alpha")
        assert done.code == 0
        assert "Alpha.receipt: for Alpha" in done.out
        head, words = begun.state().last, fingerprint(begun.state().last)
        assert predbayes("study", "add", signed.file("Beta")).code == 0
        for noted in (head, words):
            done = predbayes("study", "verify", "--contains", noted, "--key", "coordinator.pub")
            assert done.code == 0, done.err
            assert f"the ledger contains {noted}" in done.out
            assert signed.coordinator.public.fingerprint in done.out
        done = predbayes("study", "verify", "--contains", "ab" * 32)
        assert done.code == 2
        assert f"the ledger does not contain {'ab' * 32}" in done.err
        files = ("study/kit", "Alpha.receipt", signed.signed("Alpha"))
        done = predbayes("site", "verify", *files, "--fingerprint", signed.kit.fingerprint)
        assert done.code == 0, done.err
        assert f"receipt for Alpha of {begun.ledger.entries()[-1].at[:10]}" in done.out
        assert head in done.out
        Path("Alpha.receipt").write_bytes(Path("Alpha.receipt").read_bytes().replace(b"a", b"b"))
        done = predbayes("site", "verify", *files)
        assert done.code == 2
        assert "not as the coordinator signed it" in done.err

    def test_a_site_remembers_heads_and_takes_no_other_sites_receipt(self, begun, tmp_path):
        for site in ("Alpha", "Beta"):
            predbayes("study", "receipt", site)
        assert predbayes("site", "verify", "study/kit").code == 0
        assert not Path("audit.jsonl").exists()  # a folder without site.toml is no site's
        (tmp_path / "site.toml").write_text('format = 1\nname = "Alpha"\n')
        done = predbayes("site", "verify", "study/kit", "Alpha.receipt")
        assert done.code == 0, done.err
        seen, noted = (
            [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
            for name in ("heads.jsonl", "audit.jsonl")
        )
        assert [line["entry"]["data"]["number"] for line in seen] == [1, 3]
        (act,) = noted
        assert (act["act"], act["outcome"]) == ("verify", "done")
        assert act["what"] == {"files": 2, "problems": 0, "plan": begun.plan.digest()}
        line = refused(predbayes("site", "verify", "study/kit", "Beta.receipt"))
        assert "Beta" in line
        assert "Alpha" in line
        last = json.loads(Path("audit.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        assert (last["act"], last["outcome"]) == ("verify", "refused")

    def test_a_receipt_that_names_an_impostors_key_is_refused(self, signed, begun, tmp_path):
        predbayes("study", "receipt", "Alpha")
        (tmp_path / "site.toml").write_text('format = 1\nname = "Alpha"\n')
        admitted = signed.key("Alpha").public.fingerprint
        verify = ("site", "verify", "study/kit", "Alpha.receipt")
        assert admitted in predbayes(*verify).out  # to compare with the words of one's own key
        impostor = SigningKey.generate()
        for kept in (Path("Alpha.pub"), Path("Alpha.key")):
            for key in (signed.key("Alpha"), impostor):
                kept.unlink(missing_ok=True)
                (key.public if kept.suffix == ".pub" else key).save(kept)
                done = predbayes(*verify)
                if key is not impostor:
                    assert done.code == 0, done.err
                    continue
                line = refused(done)
                assert admitted in line
                assert impostor.public.fingerprint in line
            kept.unlink()

    def test_a_key_and_a_plan_that_do_not_belong_together(self, signed, world, tmp_path):
        where = ("--labels", signed.labels_path, "--study", tmp_path / "study")
        line = refused(predbayes("study", "init", signed.kit.folder, *where))
        assert "the plan names a coordinator's key" in line
        where = ("--labels", world.labels_path, "--study", tmp_path / "study")
        line = refused(
            predbayes("study", "init", world.kit.folder, *where, "--key", signed.key_path)
        )
        assert "the plan names no coordinator's key: freeze it with --key" in line
        assert list(tmp_path.iterdir()) == []

    def test_without_a_key_it_says_that_nothing_is_signed(self, finished, study):
        done = predbayes("study", "verify", "--study", finished.folder)
        assert "nothing of the coordinator's is signed" in done.out
        line = refused(predbayes("study", "receipt", "Alpha"))
        assert "so nothing can be signed" in line


class TestBegin:
    def test_admit_says_what_to_compare_and_if_the_key_names_another_site(self, study, tmp_path):
        key = SigningKey.generate().public
        key.save(path := tmp_path / "zeta.pub", "Zeta")
        assert "the key of Zeta" in predbayes("study", "admit", "Zta", path).out
        first, again = (predbayes("study", "admit", "Zeta", path) for _ in "ab")
        assert key.fingerprint in first.out
        assert "the key of" not in first.out
        assert again.out.startswith("Zeta was admitted with this key before\n")
        assert study.state().keys["Zeta"] == key.hex
        assert "Zta" not in study.state().keys


class TestAdd:
    def test_each_file_is_a_line_and_the_good_ones_are_in(self, world, study, tmp_path):
        good = [world.file(site) for site in SITES[:2]]
        cut, text = tmp_path / "cut.safetensors", tmp_path / "text.safetensors"
        cut.write_bytes(world.file(SITES[2]).read_bytes()[:-8])
        text.write_text("hello")
        missing = tmp_path / "missing.safetensors"
        save_signed(
            world.upload("Betta"), stray := tmp_path / "betta.safetensors", world.key("Betta")
        )
        done = predbayes("study", "add", good[0], cut, text, missing, stray, good[1])
        assert done.code == 2
        assert [line.split(":")[0] for line in done.out.splitlines()] == [
            "Alpha.safetensors",
            "Beta.safetensors",
        ]
        *lines, last = done.err.splitlines()
        assert last.startswith("predbayes: 4 of 6 files ")
        for line, path in zip(lines, (cut, text, missing, stray), strict=True):
            assert line.startswith("refused: ")
            assert path.name in line
        assert "'Betta'; did you mean 'Beta'?" in lines[-1]
        assert set(study.state().uploads) == set(SITES[:2])
        assert study.verify() == []
        again = predbayes("study", "add", *good)
        assert again.code == 0
        assert again.out.count(": in already\n") == 2


def test_rows_are_agreed_at_admission_and_shown(world, study, tmp_path):
    world.key("Alpha").public.save(tmp_path / "Alpha.pub")
    assert predbayes("study", "admit", "Alpha", tmp_path / "Alpha.pub", "--rows", 110).code == 0
    assert study.state().agreed == {"Alpha": 110}
    assert predbayes("study", "add", world.file("Alpha"), world.file("Beta")).code == 0
    said = predbayes("study", "status").out
    assert " 105 agreed " in said
    assert " 104 stated " in said


def test_the_model_cards_own_example_works(finished, world):
    folder = finished.result_folder(1)
    page = html.unescape((folder / "model-card.html").read_text())
    (code,) = re.findall(r"<pre>(from predbayes.*?)</pre>", page, re.S)
    scope = {"table": read_frame(world.kit.folder / "reference.csv")}
    exec(code.replace("MODEL", str(folder / "model")), scope)
    assert len(scope["predictions"]) == len(scope["table"])


class TestWithdraw:
    def test_it_asks_the_bytes_go_and_results_are_spoken_of(self, world, study, monkeypatch):
        digest = study.add(world.file("Alpha")).digest
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        assert "nothing was done; --yes" in predbayes("study", "withdraw", "Alpha").err
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        assert predbayes("study", "withdraw", "Alpha").code == 2
        assert "Alpha" in study.state().uploads
        done = predbayes("study", "withdraw", "Alpha", "--yes")
        assert done.code == 0
        assert digest[:12] in done.out
        assert not list((study.folder / "uploads").iterdir())


class TestStatus:
    def test_json_says_the_same_and_changes_nothing(self, finished):
        before = finished.ledger.path.read_bytes()
        done = predbayes("study", "status", "--json", "--study", finished.folder)
        found = json.loads(done.out)
        assert done.code == 0
        assert found["num_in"] == 3
        assert {line["site"]: line["state"] for line in found["sites"]}["Delta"] == "admitted"
        (result,) = found["results"]
        assert result["outcome"] == finished.state().results[0].outcome
        assert found["next"] == "results/1/report.html"
        assert finished.ledger.path.read_bytes() == before


class TestFinish:
    def test_it_names_what_it_wrote_and_leaves_out_whom_it_shall(self, world, study):
        for site in SITES[:4]:
            study.add(world.file(site))
        left_out = ("--leave-out", "Gamma", "--leave-out", "Delta")
        done = predbayes("study", "finish", *left_out)
        assert done.code == 0, done.err
        (recorded,) = study.state().results
        assert recorded.left_out == ("Delta", "Gamma")
        assert f"result 1 of 4 sites, outcome {recorded.outcome[:12]}\n" in done.out
        folder = study.result_folder(1)
        for name in ("report.html", "report-public.html", "model-card.html", "model"):
            assert f"{folder / name}\n" in done.out
            assert (folder / name).exists()
        assert CalibratedModel.load(folder / "model").number == 1
        shown = {site.site: site.left_out for site in study.result(1).sites}
        assert shown == {"Alpha": False, "Beta": False, "Gamma": True, "Delta": True}
        # Again, it is the same result; and who is not there cannot be left out.
        assert predbayes("study", "finish", *left_out).out == done.out
        line = refused(predbayes("study", "finish", "--leave-out", "Gama"))
        assert "no site with an upload 'Gama'; did you mean 'Gamma'?" in line


class TestVerify:
    def test_an_untouched_study_is_rebuilt(self, finished):
        done = predbayes("study", "verify", "--rebuild", "--study", finished.folder)
        assert done.code == 0, done.err
        assert f"up to {finished.state().last}\n" in done.out
        assert "the same to the bit" in done.out

    @pytest.mark.parametrize(
        ("name", "named"),
        [
            ("results/1/report.html", "results/1/report.html"),
            ("ledger.jsonl", "entry 2 of ledger.jsonl"),
        ],
    )
    def test_what_was_altered_is_code_two_and_named(self, finished, name, named):
        path = finished.folder / name
        content = path.read_bytes()
        altered = content.replace(b"Alpha", b"Alpho", 1)
        path.write_bytes(altered if "ledger" in name else bytes([content[0] ^ 1]) + content[1:])
        try:
            done = predbayes("study", "verify", "--study", finished.folder)
            stopped = predbayes("study", "status", "--study", finished.folder)
        finally:
            path.write_bytes(content)
        assert done.code == 2
        assert f"{named} was altered" in done.err
        assert done.out == ""
        assert "ledger" not in name or named in refused(stopped)


class TestErrors:
    """Everything that a coordinator can get wrong is one line and code two."""

    @pytest.mark.parametrize(
        "arguments",
        [["add", "x.safetensors"], ["withdraw", "x"], ["status"], ["finish"], ["verify"]],
    )
    def test_where_there_is_no_study(self, tmp_path, arguments):
        line = refused(predbayes("study", *arguments, "--study", tmp_path / "none"))
        assert "there is no study in" in line
        assert "predbayes study init" in line

    def test_only_a_public_key_is_admitted_under_a_sites_name(self, study, tmp_path):
        key = SigningKey.generate()
        key.save(tmp_path / "private.pem")
        key.public.save(tmp_path / "good.pub")
        (tmp_path / "ssh.pub").write_text("ssh-ed25519 AAAA zeta\n")
        for site, name, named in (
            ("Zeta", "private.pem", "is a private key"),
            ("Zeta", "ssh.pub", "ssh.pub"),
            ("Zeta", "none.pub", "none.pub"),
            ("../x", "good.pub", "a site's name"),
        ):
            assert named in refused(predbayes("study", "admit", site, tmp_path / name))
        assert set(study.state().keys) == set(SITES)
