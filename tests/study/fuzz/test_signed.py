"""Signed files through intake and finish: 2,000 on every push, and a hundred thousand at night.

`PREDBAYES_FUZZ=N` tries others and more.
"""

from __future__ import annotations

import math
import os
import random

import pytest

from predbayes.errors import StudyError
from predbayes_study import attachments, extra
from predbayes_study.payload import _OWN, EVALUATION
from predbayes_study.payloads.details import Evaluation
from predbayes_study.payloads.predictions import Predictions
from tests.study.fuzz import harness, signed

NUM_INPUTS = int(os.environ.get("PREDBAYES_FUZZ", "2000"))
BATCH = 250


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    root = tmp_path_factory.mktemp("signed")
    with harness.cheaply():
        yield {
            name: signed.make_field(root / f"{number}", name)
            for number, name in enumerate(signed.FORMS)
        }


def attacked(fields, num, seed, batch=BATCH):
    """Give each study its share of the files, in batches."""
    rng, done = random.Random(seed), signed.Done()
    names = list(fields)
    for number in range(-(-num // batch)):
        signed.attack(fields[names[number % len(names)]], rng, min(batch, num), done)
    return done


def test_every_kind_of_file_is_among_them(fields):
    known = {*_OWN, *extra.names("payloads")}
    assert known == {EVALUATION, *(made.plan.payload for made in fields.values())}
    assert [*attachments.attachment_kinds()] == ["survey"]
    assert sum(bool(made.survey) for made in fields.values()) > 1
    infos = [draft.info for made in fields.values() for draft in made.drafts]
    sent = [info["details"]["evaluation"] for info in infos if info["kind"] == EVALUATION]
    assert {name for sums in sent for name, of in sums.items() if of} == {*Evaluation.model_fields}


@pytest.mark.parametrize(
    "num", [NUM_INPUTS, pytest.param(100_000, marks=pytest.mark.slow("a hundred thousand files"))]
)
def test_no_signed_file_stops_the_others(fields, num):
    done = attacked(fields, num, num)
    assert done.taken > num / 100
    assert done.refused > num / 2
    assert done.finished >= num / BATCH / 2
    assert len(done.reasons) > 40  # the signature is one of them, and the least of it
    assert not [reason for reason in done.reasons if "can't be checked" in reason]


ODD = (10**320, -(10**320), 10**19, 2**53 + 1, -1, 0, 1e308, -0.0, 5e-324, math.nan, math.inf)


@pytest.mark.parametrize("name", signed.FORMS)
def test_no_number_of_any_size_stops_the_others(fields, name):
    made, done = fields[name], signed.Done()
    signed.offer(made, signed.every_number(made, ODD), done)
    assert done.refused > 20
    assert not [reason for reason in done.reasons if "can't be checked" in reason]


class TestTheFuzzerCanFail:
    def test_a_check_that_breaks_is_found(self, fields, monkeypatch):
        monkeypatch.setattr(Predictions, "check", lambda *_: 1 / 0)
        with pytest.raises(harness.Broken, match="an honest file was refused"):
            signed.attack(fields["product"], random.Random(0), 3, signed.Done())

    def test_what_stops_the_study_is_found(self, fields, monkeypatch):
        def stop(*_):
            raise StudyError("it stopped")

        monkeypatch.setattr("predbayes_study.coordinator.finish.outcome", stop)
        with pytest.raises(harness.Broken, match="stops the study: it stopped"):
            signed.attack(fields["product"], random.Random(0), 3, signed.Done())
