"""A key holder opens sums of many sites, and no combination of them that tells of a few."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import StudyError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes_study import Plan
from predbayes_study.extras.sealed.holder import Holder, require_apart
from predbayes_study.extras.sealed.masking import masked, requests_of
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey

KEY = CoordinatorKey.generate()
PLAN = Plan.loads(
    f"""
format = 1
name = "sealed"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
age = {{ type = "number" }}
[reference]
unlabelled = 5
[sealed]
minimum = 2
holders = ["{KEY.public.signing.hex}{KEY.public.encryption}"]
"""
)
SEALED = PLAN.section(Sealed)


def apart(asked, opened, minimum):
    words = dict.fromkeys("ABCDEFG", "00" * 32)
    require_apart(
        {site: words[site] for site in asked},
        [{site: words[site] for site in told} for told in opened],
        minimum,
    )


class TestEarlierSums:
    @pytest.mark.parametrize(
        ("asked", "opened", "minimum"),
        [
            ("ABC", [], 3),
            ("ABC", ["ABC"], 3),
            ("ABCDEF", ["ABC"], 3),
            ("DEF", ["ABC"], 3),
            ("ABCD", ["AB", "CD"], 2),
        ],
    )
    def test_opened(self, asked, opened, minimum):
        apart(asked, opened, minimum)

    @pytest.mark.parametrize(
        ("asked", "opened", "minimum", "named"),
        [
            ("ABC", ["ABCD"], 3, "D alone"),
            ("ABCDE", ["ABC"], 3, "D, E alone"),
            ("BCD", ["ABC"], 2, "alone"),
            ("AC", ["AB", "BC"], 2, "alone"),
        ],
    )
    def test_refused(self, asked, opened, minimum, named):
        with pytest.raises(StudyError, match=named):
            apart(asked, opened, minimum)

    def test_another_upload_of_the_same_site_is_another_summand(self):
        first = {"A": "00" * 32, "B": "01" * 32, "C": "02" * 32}
        with pytest.raises(StudyError, match="it would tell of A alone"):
            require_apart(first | {"A": "03" * 32}, [first], 2)


@pytest.fixture
def sites():
    words = torch.zeros(SEALED.form(PLAN).size, dtype=torch.int64)
    found = {}
    for site in "ABCD":
        key = SigningKey.generate()
        info = UploadInfo(kind="predictions", num_rows=9, site=site, plan=PLAN.digest())
        upload = masked(Upload(info, {}), words, SEALED.recipients, key)
        found[site] = upload, key.public
    return found


def asked(sites, names):
    pairs = [(sites[name][0], sites[name][1].hex) for name in names]
    return requests_of(PLAN.digest(), pairs, SEALED.recipients)[0]


def test_what_was_opened_is_remembered_by_the_next_process(sites, tmp_path):
    for name, (_, key) in sites.items():
        assert Holder(tmp_path).admit(name, key)
        assert not Holder(tmp_path).admit(name, key)
    first = Holder(tmp_path).open(PLAN, asked(sites, "ABC"), KEY)
    assert Holder(tmp_path).open(PLAN, asked(sites, "ABC"), KEY) == first
    assert len(Holder(tmp_path).opened(PLAN.digest())) == 1
    with pytest.raises(StudyError, match="it would tell of D alone"):
        Holder(tmp_path).open(PLAN, asked(sites, "ABCD"), KEY)


def test_a_key_is_of_one_site(sites, tmp_path):
    Holder(tmp_path).admit("A", sites["A"][1])
    with pytest.raises(StudyError, match="this is the key of A"):
        Holder(tmp_path).admit("B", sites["A"][1])


def test_a_holder_ledger_that_was_altered_opens_nothing(sites, tmp_path):
    for name, (_, key) in sites.items():
        Holder(tmp_path).admit(name, key)
    Holder(tmp_path).open(PLAN, asked(sites, "ABC"), KEY)
    path = tmp_path / "holder.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    with pytest.raises(StudyError, match="altered"):
        Holder(tmp_path).open(PLAN, asked(sites, "ABCD"), KEY)
