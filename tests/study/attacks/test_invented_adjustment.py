"""Altered weights, or another temperature, with an adjustment that somebody invented.

A model that a site adopted has the site's adjustment, which the coordinator did not sign. So
`predict` once took any model that had one. Now all but the adjustment must be as the coordinator
signed it, and the adjustment as the site did.
"""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from typer.testing import CliRunner

from predbayes.errors import StudyError
from predbayes.files import digests, file_digest
from predbayes_study.cli.app import app
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.signed import SIGNED_HEADER, load_signed
from predbayes_study.tasks.classes import Intercept
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import PublicKey, SigningKey
from predbayes_study.trust.statement import Adoption, FilesStatement, Signed
from tests.study.world import frozen, untrained

PLAN = """
format = 1
name = "adjusted"
target = { name = "outcome", task = "classification", classes = ["no", "yes"] }
reference = {}
model = { hidden = [4] }
[columns]
age = { type = "number", centre = 60.0, scale = 10.0 }
"""
ROWS = "age,outcome\n" + "".join(
    f"{40 + row % 45},{('no', 'yes')[row % 3 > 0]}\n" for row in range(80)
)
INVENTED = Intercept(shifts=(-9.0, 9.0))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """A site that has adopted the model of a coordinator with a key."""
    tmp_path = tmp_path_factory.mktemp("site")
    key = CoordinatorKey.generate()
    plan = frozen(PLAN)
    keys = {"signing_key": key.public.signing.hex, "encryption_key": key.public.encryption}
    plan = plan.model_copy(update={"frozen": plan.frozen.model_copy(update=keys)})
    came = tmp_path / "model"
    untrained(plan).save(came)
    place = {"plan": plan.digest(), "study": "b" * 64, "head": "c" * 64, "number": 7}
    files = digests(came, came.rglob("*"))
    (came / "model.sig").write_bytes(
        Signed.of(FilesStatement(kind="model", files=files, **place), key.signing).file()
    )
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "site.toml").write_text('format = 1\nname = "Basel"\n')
    own = SigningKey.generate()
    own.save(tmp_path / "Basel.key")
    own.public.save(tmp_path / "Basel.pub")
    told = run("site", "adopt", came, *inputs(tmp_path), "--out", tmp_path / "adopted")
    assert told.exit_code == 0, told.output
    return tmp_path


@pytest.fixture
def site(adopted, tmp_path):
    return shutil.copytree(adopted, tmp_path / "site")


def inputs(root):
    return root / "rows.csv", "--site", root / "site.toml"


def refused(root, *options):
    out = root / "out.csv"
    told = run("predict", root / "adopted", root / "rows.csv", "--out", out, *options)
    assert isinstance(told.exception, StudyError), told.output
    assert not out.exists()
    return str(told.exception)


def plan_of(root):
    return CalibratedModel.load(root / "adopted").plan


def test_the_sites_own_is_taken_and_told_whose_it_is_elsewhere(site):
    out = site / "out.csv"
    here = run("predict", site / "adopted", *inputs(site), "--out", out)
    assert here.exit_code == 0, here.output
    assert "adjusted by" not in here.output
    elsewhere = run("predict", site / "adopted", site / "rows.csv", "--out", out)
    words = PublicKey.load(site / "Basel.pub").fingerprint
    assert (
        f"adjusted by the site Basel, key {words}, and not by the coordinator" in elsewhere.output
    )


def test_altered_weights_with_an_invented_adjustment_are_refused(site):
    untrained(plan_of(site), seed=1, adjustment=INVENTED).save(site / "adopted")
    assert "model.safetensors is not as the coordinator signed it" in refused(site)
    shutil.rmtree(site / "adopted")
    untrained(plan_of_came(site), seed=1, adjustment=INVENTED).save(site / "adopted")
    assert "signed by nobody" in refused(site)


def plan_of_came(root):
    return CalibratedModel.load(root / "model").plan


def test_an_invented_adjustment_of_the_signed_weights_is_refused(site):
    untrained(plan_of(site), adjustment=INVENTED).save(site / "adopted")
    assert "adopted.sig belongs to a different model" in refused(site)


def test_an_invented_own_half_is_refused(site):
    adopted = CalibratedModel.load(site / "adopted")
    other = untrained(adopted.plan, seed=1).predictor
    dataclasses.replace(adopted, own=other).save(site / "adopted")
    assert "adopted.sig belongs to a different model" in refused(site)


def resign(root, key):
    statement = adoption_text(root)
    statement |= {"key": key.public.hex, "model": file_digest(root / "adopted" / "model.json")}
    (root / "adopted" / "adopted.sig").write_bytes(Signed.of(Adoption(**statement), key).file())


def adoption_text(root):
    return json.loads((root / "adopted" / "adopted.sig").read_text().splitlines()[0])


def test_one_that_another_key_signed_is_refused_at_the_site_and_named_elsewhere(site):
    untrained(plan_of(site), adjustment=INVENTED).save(site / "adopted")
    thief = SigningKey.generate()
    resign(site, thief)
    assert "this site's is" in refused(site, "--site", site / "site.toml")
    told = run("predict", site / "adopted", site / "rows.csv", "--out", site / "out.csv")
    assert thief.public.fingerprint in told.output


@pytest.mark.parametrize("key", ["inverse_temperature", "number"])
def test_no_other_key_of_the_header_is_a_sites_to_change(site, key):
    path = site / "adopted" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: 5}))
    resign(site, SigningKey.load(site / "Basel.key"))
    assert f"model.json differs from {SIGNED_HEADER}" in refused(site)


def test_an_altered_signature_or_signed_header_is_refused(site):
    (site / "adopted" / SIGNED_HEADER).write_bytes(b"{}")
    assert f"{SIGNED_HEADER} is not as the coordinator signed it" in refused(site)


def test_every_byte_of_the_sites_signature_counts(site):
    path = site / "adopted" / "adopted.sig"
    whole = path.read_bytes()
    for place in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(site)
    path.write_bytes(whole)
    assert load_signed(site / "adopted").adoption.site == "Basel"
