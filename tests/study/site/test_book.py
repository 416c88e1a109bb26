"""A site's book: further releases of a table wait for a person, whatever plan asks for them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from predbayes.errors import NotApprovedError, StudyError
from predbayes.seeding import generator
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.site.book import FILE, Book
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.site import Site
from predbayes_study.site.training import Training
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.site.test_private import PRIVATE
from tests.study.world import make_world

HOLDER = CoordinatorKey.generate()
SEALED = (
    f'[sealed]\nminimum = 2\nholders = ["{HOLDER.public.signing.hex}{HOLDER.public.encryption}"]\n'
)
ANY = "[learner]\nname = 'any'\nholdout = 0.2\n"

PLANS = {
    "masked": {"gate": SEALED, "learner": ANY},
    "other masked": {"gate": SEALED, "learner": ANY, "rules": "quorum = 4\n"},
    "open": {"learner": ANY},
    "private": {"learner": PRIVATE.format(unit="row", holdout=0.2)},
}
KEY = SigningKey.generate()


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    root = tmp_path_factory.mktemp("kits")
    found = {name: make_world(root / name, **told).kit for name, told in PLANS.items()}
    for name in ("sums", "more sums"):
        text = MOMENTS_PLAN.replace("sums", name)
        (root / f"{name}.toml").write_text(text)
        freeze(root / f"{name}.toml", root / name)
        found[name] = Kit.load(root / name)
    return found


MOMENTS_PLAN = """
format = 1
name = "sums"
[target]
name = "kind"
task = "classification"
classes = ["red", "green", "blue"]
[columns]
x = { type = "number", centre = 0, scale = 1 }
y = { type = "number", centre = 0, scale = 1, missing = "flag" }
[reference]
[learner]
name = "any"
holdout = 0.0
holdout_reason = "a test"
[moments]
features = 4
rows_per_feature = 20
[rules]
quorum = 1
"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "site.toml").write_text('format = 1\nname = "Alpha"\ntable = "heart"\n')
    return Site(tmp_path / "site.toml")


def rows(kit, seed=0):
    inputs = torch.randn(400, kit.plan.num_inputs, generator=generator(seed, "rows"))
    inputs[:, 2:] = (inputs[:, 2:] > 0).float()
    targets = (inputs[:, 0] > 0.5).long() + (inputs[:, 1] > 0).long()
    return SiteRows(inputs, targets, secret=bytes(32))


def train(kit, site, *, seed=0, out="out", table="heart"):
    learner = kit.plan.learner.name
    learner = "logistic-regression" if learner == "any" else learner
    folder = site.file.folder
    approvals = Approvals.of(SiteFile.load(folder / "site.toml"))
    training = Training(kit, "Alpha", KEY, approvals, folder / out, learner, table=table)
    return training.run(rows(kit, seed))


ASKS = [
    ("masked", "other masked"),
    ("sums", "more sums"),
    ("masked", "open"),
    ("masked", "sums"),
]
ASKS_NOT = [
    ("open", "masked"),
    ("sums", "masked"),
    ("masked", "private"),
    ("private", "masked"),
]


@pytest.mark.parametrize(("first", "second"), ASKS)
def test_a_second_release_waits_for_a_person_and_names_the_first(kits, site, first, second):
    before, asked = kits[first], kits[second]
    site.approve(asked.folder, "B. Officer")  # before anybody could know
    train(before, site)
    with pytest.raises(NotApprovedError) as refused:
        train(asked, site, out="second")
    for word in ("'heart'", before.plan.name, before.digest[:16], "predbayes site approve"):
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not [*(site.file.folder / "second").glob("*.safetensors")]
    new, thing = site.approve(asked.folder, "B. Officer")
    assert (new, len(thing.allows)) == (True, 1)
    train(asked, site, out="second")


@pytest.mark.parametrize(("first", "second"), ASKS_NOT)
def test_what_reveals_no_more_waits_for_nobody(kits, site, first, second):
    train(kits[first], site)
    train(kits[second], site, out="second")


def test_the_same_release_is_one_and_other_rows_are_another(kits, site):
    kit = kits["masked"]
    for out in ("out", "out", "elsewhere"):
        train(kit, site, out=out)
    assert len(Book(site.file.folder).of_table("heart")) == 1
    train(kit, site, out="lungs", table="lungs", seed=1)
    with pytest.raises(NotApprovedError):
        train(kit, site, seed=1)


def test_an_approval_is_of_one_release_and_can_be_taken_back(kits, site):
    kit = kits["masked"]
    train(kit, site)
    for seed in (1, 2):
        for _ in range(2):
            with pytest.raises(NotApprovedError):
                train(kit, site, seed=seed)
        site.approve(kit.folder, "B. Officer")
        site.approve(kit.folder, "B. Officer", revoke=True)
        with pytest.raises(StudyError):
            train(kit, site, seed=seed)
        site.approve(kit.folder, "B. Officer")
        train(kit, site, seed=seed)
    assert len(Book(site.file.folder).asks()) == 2


KINDS = {
    "masked": "masked",
    "other masked": "masked",
    "sums": "sums",
    "more sums": "sums",
    "open": "",
}


@pytest.mark.parametrize(("first", "second"), [*itertools.product(KINDS, repeat=2)])
def test_an_approval_is_of_one_release_beside_any_other(kits, site, first, second):
    """Of the same plan over changed rows too, masked or in the open."""
    train(kits[first], site)
    for seed in (1, 2):
        beside = KINDS[first] == KINDS[second] or seed > 1
        if KINDS[first] == "masked" or (KINDS[second] and beside):
            with pytest.raises(NotApprovedError):
                train(kits[second], site, seed=seed)
            site.approve(kits[second].folder, "B. Officer")
        for out in ("out", "again"):  # it is the same release
            train(kits[second], site, seed=seed, out=out)


def test_where_an_officer_signs_no_other_yes_counts(kits, site, tmp_path):
    officer, kit = SigningKey.generate(), kits["masked"]
    train(kit, site)
    with pytest.raises(NotApprovedError):
        train(kit, site, seed=1)
    site.approve(kit.folder, "A. Nobody")
    text = site.path.read_text() + f'officer = "predbayes-ed25519 {officer.public.hex}"\n'
    site.path.write_text(text)
    named = Site(site.path)
    with pytest.raises(NotApprovedError):
        train(kit, named, seed=1)
    officer.save(tmp_path / "officer.key")
    named.approve(kit.folder, "B. Officer", tmp_path / "officer.key")
    train(kit, named, seed=1)


def test_a_book_from_before_is_read(kits, site):
    """Its entries had no more than what was spent."""
    train(kits["private"], site)
    (spent,) = Book(site.file.folder).of_table("heart")
    fields = {"table", "release", "plan", "study", "site", "guarantee"}
    assert spent.model_fields_set == fields
    assert dataclasses.asdict(spent.guarantee)["epsilon"] == 4
    assert (site.file.folder / FILE).read_text().count('"spend"') == 1
