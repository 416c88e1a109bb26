"""Attack: what one party signs and another one reads has numbers, texts and lists of any size.

Uploads, evaluations and attachments of a study are in `tests/study/fuzz/test_signed.py`. Here is
what else changes hands: receipts and signed folders, which a site verifies; an adopted model; a
survey before there is a study; a request to a key holder. Each is signed well by whom it names.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import pytest

from predbayes.errors import PredbayesError
from predbayes_study.extras.sealed.holder import Holder
from predbayes_study.extras.sealed.masking import read_request
from predbayes_study.extras.sealed.request import request_sums
from predbayes_study.extras.survey.surveyfile import Survey
from predbayes_study.plan.schema import Plan
from predbayes_study.result.signed import load_signed
from predbayes_study.site.witness import verify_files
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.statement import Signed, Statement
from tests.study.commands import predbayes
from tests.study.faults.malformed import site_key
from tests.study.fuzz import signed as fuzz
from tests.study.fuzz.harness import Source, cheaply
from tests.study.invented import DRAFT, survey_of, table
from tests.study.world import make_world, own_table

DEEP: list = []
for _ in range(150):
    DEEP = [DEEP]
ODD = (
    *(10**320, -(10**320), 10**19, 2**63, -1, 0, 1e308, -0.0, 5e-324, math.nan, math.inf, 0.5),
    *(DEEP, "a" * 10**5, "\x1b[8m", "", None, True, [], {}),
)


@pytest.fixture(scope="module", autouse=True)
def _cheaply():
    with cheaply():
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A finished study of a coordinator with a key, a receipt, a deletion and an adopted model."""
    root = tmp_path_factory.mktemp("statements")
    made = make_world(root, labelled=40, evaluate=20, coordinator=CoordinatorKey.generate())
    made.keys |= {site: site_key(site) for site in ("Alpha", "Beta")}
    study = made.begin(sites=("Alpha", "Beta"), added=("Alpha", "Beta"))
    study.finish()
    (root / "Alpha.receipt").write_bytes(study.receipt("Alpha"))
    (root / "Beta.deletion").write_bytes(study.delete("Beta"))
    (root / "rows.csv").write_text(own_table((root / "reference.csv").read_text()))
    (root / "site.toml").write_text('format = 1\nname = "Alpha"\n')
    site_key("Alpha").save(root / "Alpha.key")
    done = predbayes("site", "adopt", study.result_folder(1), "rows.csv", cwd=root)
    assert done.code == 0, done
    return made


def odd_versions(told):
    """The same content with something odd in the place of each part, one at a time."""

    def paths(value, path=()):
        if path:
            yield path
        parts = value.items() if isinstance(value, dict) else ()
        if isinstance(value, list):
            parts = list(enumerate(value))[:1]  # the others are like it
        for name, part in parts:
            yield from paths(part, (*path, name))

    for path in paths(told):
        for odd in ODD:
            yield fuzz.put(told, path, odd)


def signed_again(told, kind, key):
    content = json.dumps(told, separators=(",", ":")).encode()
    return content + f"\n{key.sign(kind, content)}\n".encode()


def statements(world):
    """Each statement's file, what signs it, and how it is looked at."""
    root, result = world.root, world.root / "study" / "results" / "1"
    kit, key = root / "study" / "kit", world.coordinator.signing
    public = world.coordinator.public

    def verify(path):
        return lambda: verify_files([kit, path], public)

    return {
        "receipt": (root / "Alpha.receipt", key, verify(root / "Alpha.receipt")),
        "deletion": (root / "Beta.deletion", key, verify(root / "Beta.deletion")),
        "kit": (kit / "kit.sig", key, verify(kit)),
        "result": (result / "result.sig", key, verify(result)),
        "model": (result / "model" / "model.sig", key, verify(result / "model")),
        "adoption": (
            root / "adopted" / "adopted.sig",
            site_key("Alpha"),
            lambda: load_signed(root / "adopted", own=site_key("Alpha").public),
        ),
    }


ELSEWHERE = {
    "survey": "below, and in the fuzzer",
    "opening": "in the fuzzer",
    "approval": "of the site's own officer",
}


def kinds(form=Statement):
    """The kind of every statement that there is."""
    for one in form.__subclasses__():
        kind = one.model_fields["kind"]
        yield from [kind.default] if isinstance(kind.default, str) else kind.annotation.__args__
        yield from kinds(one)


@pytest.mark.parametrize("kind", ["receipt", "deletion", "kit", "result", "model", "adoption"])
def test_a_statement_is_refused_in_lines(world, kind):
    assert set(kinds()) == {*statements(world), *ELSEWHERE}
    path, key, look = statements(world)[kind]
    honest, refused = path.read_bytes(), 0
    told = json.loads(honest.split(b"\n")[0])
    versions = [*odd_versions(told)]
    try:
        for version in versions:
            path.write_bytes(signed_again(version, kind, key))
            try:
                found = look()
            except PredbayesError as error:
                fuzz._require_line(str(error))
                refused += 1
            else:
                refused += bool(getattr(found, "problems", ()))
        if kind != "adoption":
            huge = fuzz.put(told, ("number",), 10**320)
            path.write_bytes(signed_again(huge, kind, key))
            where = path.parent if path.suffix == ".sig" else path
            done = predbayes("site", "verify", where, "study/kit", cwd=world.root)
            assert done.code == 2
    finally:
        path.write_bytes(honest)
    assert refused > 0.9 * len(versions)
    look()


@pytest.fixture(scope="module")
def surveys(tmp_path_factory):
    root = tmp_path_factory.mktemp("surveys")
    (root / "plan.toml").write_text(DRAFT)
    for site in ("Graz", "Brno"):
        told = survey_of(table(site, num_rows=600), root, site, key=site_key(site))
        (root / f"{site}.survey").write_bytes(told.file(site_key(site)))
    return root


def test_a_survey_is_merged_or_refused_in_a_line(surveys):
    told = json.loads(
        (surveys / "Graz.survey").read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[0]
    )
    rng, done = random.Random(0), []
    for number in range(60):
        source, version = Source(rng.randbytes(fuzz.NUM_BYTES)), told
        for _ in range(1 + number % 2):
            version = source.one_of((fuzz._number, fuzz._number, fuzz._all_numbers, fuzz._list))(
                version, source
            )
        path = surveys / "odd.survey"
        content = fuzz._statement(version, "Graz")
        if content is None:
            continue
        path.write_bytes(content)
        out = surveys / f"out-{number}.toml"
        reference = ("--reference", 30) if number % 3 == 0 else ()
        given = ("plan.toml", "odd.survey", "Brno.survey", "--out", out.name, *reference)
        ended = predbayes("plan", "merge", *given, cwd=surveys)
        assert ended.code in (0, 2), ended
        assert ended.code == 0 or ended.err.count("\n") == 1
        if ended.code == 0:
            assert Plan.load(out).names
        done.append(ended.code)
    assert {*done} == {0, 2}


def test_every_odd_survey_is_read_or_refused(surveys):
    told = json.loads(
        (surveys / "Graz.survey").read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[0]
    )
    for version in odd_versions(told):
        content = fuzz._statement(version, "Graz")
        try:
            assert Signed.parse(Survey, content, "odd").checked().rows
        except PredbayesError as error:
            fuzz._require_line(str(error))


def test_a_request_is_opened_or_refused_in_a_line(tmp_path):
    made = fuzz.make_field(tmp_path / "sealed", "sealed")
    made.reset()
    (request,) = request_sums(made.study)
    told, refused = json.loads(request.model_dump_json()), 0
    versions, path = [*odd_versions(told)], Path(tmp_path / "holder.request")
    for version in versions:
        path.write_bytes(json.dumps(version).encode())
        keeper = Holder(tmp_path / "holder")
        shutil.rmtree(keeper.folder, ignore_errors=True)
        for site in request.sites:
            keeper.admit(site, site_key(site).public)
        try:
            keeper.open(made.plan, read_request(path), made.holder)
        except PredbayesError as error:
            fuzz._require_line(str(error))
            refused += 1
    assert refused > 0.9 * len(versions)
