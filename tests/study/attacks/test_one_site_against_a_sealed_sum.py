"""One site among those of a sealed sum sends what spoils it: a seal without a seed, or other rows.

A holder that opened a sum never opens it less one site. So a seal that one holder can open and
another can't would end the study, if the first opened before the second looked.
"""

from __future__ import annotations

import pytest

from predbayes.errors import StudyError
from predbayes_study.extras.sealed import masking, payload
from predbayes_study.extras.sealed.masking import requests_of, seeds_of
from predbayes_study.trust.encryption import encrypt
from tests.study.cli.consortium import Consortium
from tests.study.cli.test_moments import patients
from tests.study.cli.test_sealed_sums import PLAN, PRIVACY, RESULT, reference_rows
from tests.study.extras.sealed.test_masking import HOLDERS, RECIPIENTS, sent, words_of
from tests.study.extras.sealed.test_masking import PLAN as PLAN_DIGEST

HONEST = ("east", "north", "south")
JUNK = {  # all of a seal's length, or the upload is refused
    "no ciphertext": lambda to, seed, about: bytes(1168),
    "for another": lambda to, seed, about: encrypt(RECIPIENTS[0], seed, about),
    "of another study": lambda to, seed, about: encrypt(to, seed, about + b"2"),
}


def good_for_one(junk):
    """Encrypt a good seed for the first of two holders, and junk for the second."""
    turns = iter((encrypt, junk))
    return lambda to, seed, about: next(turns)(to, seed, about)


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_whatever_the_seal_of_one_holder_is_that_holder_names_its_sites(monkeypatch, junk):
    sites = {name: sent(name, words_of(number)) for number, name in enumerate("abc")}
    for name in "xy":
        with monkeypatch.context() as patch:
            patch.setattr(masking, "encrypt", good_for_one(junk))
            sites[name] = sent(name, words_of(9))
    one, other = requests_of(PLAN_DIGEST, sites.values(), RECIPIENTS)
    assert len(seeds_of(one, HOLDERS[0])) == len(sites)
    with pytest.raises(StudyError, match=r"^x, y: the seal cannot be opened"):
        seeds_of(other, HOLDERS[1])


def test_a_seal_for_one_holder_alone_does_not_end_a_study_whose_holders_check(
    tmp_path, monkeypatch
):
    runs = Consortium(tmp_path, ("trustee", "board"))
    runs.begin(PLAN, PRIVACY, reference_rows())
    for number, site in enumerate(HONEST):
        runs.join(site, patients(seed=number))
    with monkeypatch.context() as patch:
        patch.setattr(masking, "encrypt", good_for_one(JUNK["no ciphertext"]))
        runs.join("evil", patients(seed=9))

    def check(holder, number, code=0):
        ledger = tmp_path / holder / "holder" / "holder.jsonl"
        before = ledger.read_bytes()
        request = runs.home / f"holder-{number}.request"
        told = runs(holder, "holder", "check", runs.home / "kit", request, code=code)
        assert ledger.read_bytes() == before
        assert not list(tmp_path.rglob("*.opening"))
        return told

    assert "holder check" in runs("coordinator", "study", "request")
    check("trustee", 1)
    assert "evil: the seal cannot be opened" in check("board", 2, code=2)
    runs("coordinator", "study", "withdraw", "evil", "--yes")
    runs("coordinator", "study", "request")
    check("trustee", 1)
    check("board", 2)
    one, other = runs.opened("trustee", 1), runs.opened("board", 2)
    runs("coordinator", "study", "finish", "--opening", one, "--opening", other)
    assert (tmp_path / RESULT / "result.json").exists()


def test_one_row_more_than_is_stated_ends_the_plan_and_is_said_to(tmp_path, monkeypatch):
    runs = Consortium(tmp_path, ("trustee",))
    runs.begin(PLAN, PRIVACY, reference_rows())
    for number, site in enumerate(HONEST):
        runs.join(site, patients(seed=number))
    words = payload.to_words
    with monkeypatch.context() as patch:
        patch.setattr(payload, "to_words", lambda form, p, n, by: words(form, p, n + 1, by))
        runs.join("evil", patients(seed=9))
    runs("coordinator", "study", "request")
    opening = runs.opened()
    told = runs("coordinator", "study", "finish", "--opening", opening, code=2)
    assert "some site sealed another number" in told
    # What the refusal must not advise: the holder never opens the others alone.
    assert "withdraw" not in told
    assert "new plan" in told
    runs("coordinator", "study", "withdraw", "evil", "--yes")
    runs("coordinator", "study", "request")
    again = ("holder", "open", runs.home / "kit", runs.home / "holder-1.request")
    assert "would reveal evil alone" in runs("trustee", *again, code=2)
