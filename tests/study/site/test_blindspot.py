"""Whoever puts a patient among the reference rows asks a model that has not seen her."""

from __future__ import annotations

import pytest
import torch

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.named import CLASSIFIERS
from predbayes.seeding import generator
from predbayes_study.site.blindspot import MOST_SHARE, near_groups, with_blind_spot
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from tests.study.world import make_world

NUM, WIDE = 200, 10


def inputs(num=NUM, seed=0, wide=WIDE):
    return torch.randn(num, wide, generator=generator(seed, "inputs"))


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A plan that draws any rows, and one that is stratified."""
    world = make_world(tmp_path_factory.mktemp("world"), learner="[learner]\nholdout = 0.2\n")
    plain = world.kit.plan
    learner = plain.learner.model_copy(update={"split": "stratified"})
    return plain, plain.model_copy(update={"learner": learner})


def crafted(own, rows):
    """Reference rows of the same population, and copies of some own rows among them."""
    return torch.cat([inputs(60, seed=5), own[rows]])


class TestNear:
    def test_by_brute_force_it_is_the_rule(self):
        own, reference = inputs(wide=3), inputs(80, seed=1, wide=3)
        spread = own.double().std(0)
        mine, theirs = own.double() / spread, reference.double() / spread
        among = torch.cdist(mine, mine).fill_diagonal_(torch.inf).amin(1)
        near = (torch.cdist(mine, theirs).amin(1) < among / 2).nonzero()[:, 0]
        assert 0 < len(near) < NUM
        assert sorted(near_groups(reference, own, torch.arange(NUM))) == near.tolist()

    def test_a_copy_with_little_changed_is_near(self):
        own = inputs()
        assert near_groups(own[[3]] + 0.05, own, torch.arange(NUM)) == [3]

    def test_somebody_with_several_rows_does_not_hide_behind_them(self):
        own = torch.cat([inputs(), inputs()[:1]])  # row 0 is there twice
        groups = torch.cat([torch.arange(NUM), torch.zeros(1, dtype=torch.int64)])
        assert near_groups(own[[0]], own, groups) == [0]
        assert near_groups(own[[0]], own, torch.arange(NUM + 1)) == []  # two people in one place

    def test_a_column_that_is_the_same_in_all_own_rows_hides_no_copy(self):
        own = inputs()
        own[:, 4] = 0.0
        hidden = own[[9]].clone()
        hidden[:, 4] = 50.0
        assert near_groups(hidden, own, torch.arange(NUM)) == [9]

    def test_without_reference_rows_there_is_none(self):
        assert near_groups(torch.empty(0, WIDE), inputs(), torch.arange(NUM)) == []


@pytest.mark.parametrize("which", [0, 1])
class TestSplit:
    @pytest.mark.parametrize("seed", range(2))
    def test_they_are_held_out_and_no_number_changes(self, plans, which, seed):
        own, plan = inputs(), plans[which]
        targets = torch.arange(NUM) % 3
        some = SiteRows(own, targets)
        planted = list(range(seed, NUM, 20))
        reference = crafted(own, planted)
        before = some.split(plan, f"S{seed}")
        trained, held_out = some.split(plan, f"S{seed}", reference)
        assert set(planted) <= set(held_out.tolist())
        assert not torch.equal(before[1], held_out)
        assert len(held_out) == len(before[1])
        if which:  # stratified: of each class as many as before
            assert torch.equal(
                torch.bincount(targets[before[1]]), torch.bincount(targets[held_out])
            )
        assert torch.equal(torch.cat([trained, held_out]).sort().values, torch.arange(NUM))
        again = SiteRows(own, targets).split(plan, f"S{seed}", reference.clone())
        assert torch.equal(again[1], held_out)

    def test_patients_stay_together(self, plans, which):
        own, patients = inputs(), torch.arange(NUM) // 4
        some = SiteRows(own, torch.arange(NUM) % 3, 0, patients)
        plan = plans[which]
        trained, held_out = some.split(plan, "A", crafted(own, [1, 50, 77]))
        assert {0, 1, 2, 3, 48, 49, 50, 51, 76, 77, 78, 79} <= set(held_out.tolist())
        assert not set(patients[trained].tolist()) & set(patients[held_out].tolist())
        assert len(held_out) == len(some.split(plan, "A")[1])

    def test_most_of_those_held_out_are_still_drawn_by_lot(self, plans, which):
        own = inputs()
        some = SiteRows(own, torch.arange(NUM) % 3)
        held_out = some.split(plans[which], "A", own)[1]
        drawn = some.split(plans[which], "A")[1]
        assert len(held_out) == len(drawn)
        kept = set(held_out.tolist()) & set(drawn.tolist())
        assert len(kept) >= (1 - MOST_SHARE) * len(drawn) - 1


def test_who_cannot_be_exchanged_for_as_many_rows_stays():
    held_out = torch.tensor([True, True, True, False, False, False, True, True, True])
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3])
    found = with_blind_spot(held_out, groups, None, [1, 2], generator(0, "x"))
    assert torch.equal(found, held_out)  # three rows are neither two nor one


def test_of_a_row_among_the_reference_rows_the_label_is_not_told(tmp_path):
    """A forest says of a row that it was trained on what its label is; with the blind spot not."""
    world = make_world(tmp_path, learner="[learner]\nname = 'any'\nholdout = 0.2\n")
    rng = generator(0, "labels")
    reference = world.kit.inputs
    own = reference[:12] + 0.0
    others = torch.randn(188, reference.shape[1], generator=rng) * reference.std(0)
    targets = torch.randint(3, (200,), generator=rng)  # noise: nothing but the row tells it
    rows = SiteRows(torch.cat([own, others]), targets)
    forest = CLASSIFIERS["random-forest"]().set_params(n_estimators=30, min_samples_leaf=1)
    upload, _ = Job(world.kit, "Alpha", rows, SklearnClassifier(forest, 3, size=2)).run()
    guessed = upload.predictive().classes()[:12] == targets[:12]
    assert int(guessed.sum()) <= 8
    planted = torch.arange(12)
    assert torch.isin(planted, rows.split_for(world.kit, "Alpha")[1]).all()
    seen = SklearnClassifier(forest, 3, size=2).fit((rows.inputs, targets), rng=rng)
    assert int((seen.predict(own).classes() == targets[:12]).sum()) >= 10
