"""A key holder opens sums of many sites, and no combination of them that tells of a few."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from itertools import combinations, product

import pytest
import torch

from predbayes.errors import StudyError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes_study import Plan
from predbayes_study.extras.sealed.holder import Holder, Opened, require_apart
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


@cache
def sum_of(uploads, plan, minimum):
    found = {upload[0]: f"{plan}{upload}".encode().hex().zfill(64) for upload in uploads}
    return Opened(plan=plan * 64, sites=found, study=f"plan {plan}", minimum=minimum)


def told(uploads, plan="1", minimum=2):
    """A sum, of sites or of pairs of a site and which of its uploads it is."""
    return sum_of(tuple(uploads), plan, minimum)


def is_opened(asked, opened):
    """Whether a holder opens a sum; it has enough sites, or would not be asked after."""
    try:
        require_apart(asked, opened)
    except StudyError:
        return False
    return True


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
    @pytest.mark.parametrize("plan", ["1", "2"])
    def test_opened(self, asked, opened, minimum, plan):
        require_apart(told(asked, plan, minimum), [told(one, "1", minimum) for one in opened])

    @pytest.mark.parametrize(
        ("asked", "opened", "minimum", "named"),
        [
            ("ABC", ["ABCD"], 3, "D alone"),
            ("ABCDE", ["ABC"], 3, "D, E alone"),
            ("BCD", ["ABC"], 2, "alone"),
            ("AC", ["AB", "BC"], 2, "alone"),
        ],
    )
    @pytest.mark.parametrize("plan", ["1", "2"])
    def test_refused(self, asked, opened, minimum, named, plan):
        with pytest.raises(StudyError, match=named) as refused:
            require_apart(told(asked, plan, minimum), [told(one, "1", minimum) for one in opened])
        assert "'plan 1'" in str(refused.value)

    def test_another_upload_of_the_same_site_is_another_summand(self):
        with pytest.raises(StudyError, match="A alone"):
            require_apart(told(["A2", "B", "C"]), [told("ABC")])

    def test_sites_that_all_send_anew_are_the_same_sites(self):
        """Their words all differ; what is below the masks may not."""
        with pytest.raises(StudyError, match="D alone"):
            require_apart(told(["A2", "B2", "C2", "D"]), [told("ABC")])

    def test_the_largest_minimum_of_a_sites_plans_is_its_own(self):
        first, apart = told("ABCDE", "1", 5), told("ABCDEXYZ", "2", 3)
        require_apart(apart, [first])  # X, Y and Z agreed to three
        with pytest.raises(StudyError, match="5 sites"):
            require_apart(told("ABC", "2", 3), [first])

    def test_an_entry_without_a_minimum_keeps_its_sites_together(self):
        first = Opened.model_validate_json(told("ABCD").model_dump_json(include={"plan", "sites"}))
        assert is_opened(told("ABCD", "2"), [first])
        assert not is_opened(told("AB", "2"), [first])

    def test_what_was_opened_of_others_forbids_nothing(self):
        """A ledger may have sums that would not be opened now."""
        first = [told("ABC", "1"), told("AB", "2")]
        assert is_opened(told("XYZ", "3"), first)
        assert not is_opened(told("ABC", "3"), first)


@cache
def rank(rows):
    """Of a matrix of whole numbers, exactly."""
    rows, found = [[Fraction(value) for value in row] for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((row for row in rows[found:] if row[column]), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        rows.insert(found, pivot)
        found += 1
        for place in range(found, len(rows)):
            factor = rows[place][column] / pivot[column]
            rows[place] = [a - factor * b for a, b in zip(rows[place], pivot, strict=True)]
    return found


def columns(sums, variables):
    """The sums as rows; a column is a variable, which a site and its upload in a sum have."""
    named = sorted({variables(one, site) for one in sums for site in one.sites})
    found = ({variables(one, site) for site in one.sites} for one in sums)
    return named, tuple(tuple(int(name in one) for name in named) for one in found)


def told_apart(sums, alike, minimum):
    """Sets of fewer sites than the minimum of which some combination of sums tells.

    The uploads of a site in `alike` are one variable, because nothing changed at it; those of
    another site are variables of their own. A combination that leaves nothing but the sites of a
    set has the columns of all others at 0, so there is one exactly if these have a lower rank.
    What tells no more than what changed at sites of the set has coefficients that add up to 0 at
    every site: then the sums by site have no higher rank beside the others' columns.
    """
    named, rows = columns(
        sums, lambda one, site: (site,) if site in alike else (site, one.sites[site])
    )
    _, of_sites = columns(sums, lambda _, site: (site,))
    for number in range(1, minimum):
        for few in combinations(sorted({name[0] for name in named}), number):
            left = [place for place, name in enumerate(named) if name[0] not in few]
            kept = tuple(tuple(row[place] for place in left) for row in rows)
            others = rank(kept)
            anything = rank(rows) > others
            both = tuple(a + b for a, b in zip(kept, of_sites, strict=True))
            yield few, anything, anything and rank(both) > others


def opened_all(sums):
    return all(is_opened(one, sums[:place]) for place, one in enumerate(sums))


def subsets(sites, minimum):
    sizes = range(minimum, len(sites) + 1)
    return ["".join(some) for size in sizes for some in combinations(sites, size)]


PLANS = [("1", "2"), ("1", "1"), ("1", "1", "2"), ("1", "2", "1"), ("1", "2", "3")]


@pytest.mark.parametrize("plans", PLANS)
@pytest.mark.parametrize(("sites", "minimum"), [("ABCDE", 2), ("ABCDEF", 3)])
def test_no_combination_of_all_opened_sums_tells_of_fewer_sites(plans, sites, minimum):
    """Every choice of sets of sites, but for the names of those of the first, and of plans."""
    num_opened, all_sets = 0, subsets(sites, minimum)
    first = [sites[:size] for size in range(minimum, len(sites) + 1)]
    for sets in product(first, *[all_sets] * (len(plans) - 1)):
        sums = [told(one, plan, minimum) for one, plan in zip(sets, plans, strict=True)]
        if not opened_all(sums):
            continue
        num_opened += 1
        for alike in (sites, "", sites[1:], sites[:2]):
            for few, anything, itself in told_apart(sums, alike, minimum):
                assert not itself, (sets, alike, few)
                # Of equal sets the change at a site is told if nothing changed elsewhere.
                assert not anything or alike not in (sites, ""), (sets, alike, few)
    assert num_opened > len(first)  # more than the same set each time


def test_nor_if_sites_send_anew_under_the_same_plan():
    """Every site is absent, or there with its first or its second upload."""
    rng, sites, minimum, num_opened = random.Random(0), "ABCD", 2, 0
    some = [
        [site + upload for site, upload in zip(sites, chosen, strict=True) if upload]
        for chosen in product(("", "1", "2"), repeat=len(sites))
    ]
    some = [uploads for uploads in some if len(uploads) >= minimum]
    triples = [rng.choices(some, k=3) for _ in range(1000)]
    for uploads in (*product(some, repeat=2), *triples):
        sums = [told(one, "1", minimum) for one in uploads]
        if not opened_all(sums):
            continue
        num_opened += 1
        for alike in (sites, ""):
            for few, anything, _ in told_apart(sums, alike, minimum):
                assert not anything, (uploads, alike, few)
    assert num_opened > len(some)


def test_the_check_finds_what_a_look_at_each_plan_alone_would_open():
    found = list(told_apart([told("ABCD", "1", 3), told("ABC", "2", 3)], "ABCD", 3))
    assert (("D",), True, True) in found
    apart = list(told_apart([told("ABCD", "1", 3), told("ABC", "2", 3)], "", 3))
    assert not any(itself for _, _, itself in apart)  # if nothing is the same, nothing is told


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
    assert len(Holder(tmp_path).opened("A")) == 1
    with pytest.raises(StudyError, match="D alone"):
        Holder(tmp_path).open(PLAN, asked(sites, "ABCD"), KEY)


def test_a_name_is_one_site_over_all_time(sites, tmp_path):
    """Or a site under two names, or two under one, would be told apart by names alone."""
    holder = Holder(tmp_path)
    first, other, third = (sites[name][1] for name in "ABC")
    holder.admit("A", first)
    with pytest.raises(StudyError, match="the key of A"):
        holder.admit("B", first)
    with pytest.raises(StudyError, match="--same-site"):
        holder.admit("A", other)
    assert holder.admit("A", other, same_site=True)
    for key in (first, other):  # a key that A has no more is A's all the same
        with pytest.raises(StudyError, match="the key of A"):
            holder.admit("B", key, same_site=True)
    with pytest.raises(StudyError, match="taken for A"):
        holder.admit("a", third, same_site=True)
    assert holder.keys() == {"A": other.hex}


def test_a_holder_ledger_that_was_altered_opens_nothing(sites, tmp_path):
    for name, (_, key) in sites.items():
        Holder(tmp_path).admit(name, key)
    Holder(tmp_path).open(PLAN, asked(sites, "ABC"), KEY)
    path = tmp_path / "holder.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    with pytest.raises(StudyError, match="altered"):
        Holder(tmp_path).open(PLAN, asked(sites, "ABCD"), KEY)
