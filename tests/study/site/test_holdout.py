"""What is held out has each class in its share, and nobody's other rows are trained on."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.named import CLASSIFIERS, REGRESSORS
from predbayes.seeding import generator
from predbayes_study.site import fitting
from predbayes_study.site.fitting import choose_at_site
from predbayes_study.site.holdout import connected, hold_out
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tasks.choice import Choice
from tests.study.world import make_world

SHARE = "[learner]\nholdout = 0.2\nmin_steps = 200\n"


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A plan that draws any rows, and one that is stratified."""
    world = make_world(tmp_path_factory.mktemp("world"), learner=SHARE)
    plain = world.kit.plan
    learner = plain.learner.model_copy(update={"split": "stratified"})
    return plain, plain.model_copy(update={"learner": learner})


def rows(num=200, rare=10, seed=0):
    rng = generator(seed, "rows")
    targets = torch.zeros(num, dtype=torch.int64)
    targets[:rare] = 2
    targets[rare : num // 2] = 1
    return SiteRows(torch.randn(num, 3, generator=rng), targets)


@pytest.mark.parametrize("seed", range(4))
def test_each_class_has_its_share(plans, seed):
    some = rows(seed=seed)
    trained, held_out = some.split(plans[1], f"site {seed}")
    assert torch.bincount(some.targets[held_out]).tolist() == [20, 18, 2]
    assert torch.equal(torch.cat([trained, held_out]).sort().values, torch.arange(200))
    again = some.split(plans[1], f"site {seed}")[1]
    assert torch.equal(again, held_out)


def test_equal_rows_are_on_one_side(plans):
    some = rows(100)
    twice = SiteRows(some.inputs.repeat(2, 1), some.targets.repeat(2))
    _, held_out = twice.split(plans[1], "Alpha")
    assert len(held_out) == pytest.approx(40, abs=4)
    assert set((held_out % 100).tolist()) == set(held_out[held_out < 100].tolist())
    plain = twice.split(plans[0], "Alpha")[1]  # the plan of before parts them
    assert set((plain % 100).tolist()) != set(plain[plain < 100].tolist())


@pytest.mark.parametrize("which", [0, 1])
def test_rows_of_one_patient_are_on_one_side(plans, tmp_path, which):
    plan = plans[which]
    table = pd.DataFrame({"x": range(120), "y": 1.5, "kind": ["red", "green", "blue"] * 40})
    table["x"] = table["x"] / 3
    table["Pat"] = [f"P{row // 4}" if row % 4 else "" for row in range(120)]
    table.to_csv(tmp_path / "rows.csv", index=False)
    own = SiteFile.loads('format = 1\nname = "A"\npatient = "Pat"\n')
    some = SiteRows.of(plan, read_site_table(plan, own, tmp_path / "rows.csv"))
    _, held_out = some.split(plan, "A")
    assert len(held_out) == pytest.approx(24, abs=4)
    out = table.loc[held_out.tolist(), "Pat"]
    left = table.drop(index=held_out.tolist())["Pat"]
    assert set(out) & set(left) <= {""}  # who names nobody is alone
    assert some.digest() != SiteRows(some.inputs, some.targets).digest()


def test_what_is_chained_stays_together_and_something_is_left():
    groups = connected([torch.tensor([0, 0, 1, 1, 2]), torch.tensor([5, 6, 6, 7, 8])])
    assert groups.tolist() == [0, 0, 0, 0, 1]
    for seed in range(5):
        one = torch.zeros(6, dtype=torch.int64)
        assert not hold_out(one, None, 0.5, generator(seed, "x")).any()


def test_in_a_table_of_few_categories_equal_rows_are_no_copies(plans):
    """They were: all rows of one input and class were held out, and p(y | x) was learnt wrong."""
    rng = generator(0, "categories")
    inputs = torch.randint(2, (1000, 3), generator=rng).float()
    targets = torch.randint(3, (1000,), generator=rng)
    _, held_out = SiteRows(inputs, targets).split(plans[1], "Alpha")
    cells = 6 * inputs[:, 0] + 3 * inputs[:, 1] + targets
    share = torch.bincount(cells[held_out].long()) / torch.bincount(cells.long())
    assert 0.08 < float(share.min()) < float(share.max()) < 0.35


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_class_does_not_make_up_for_a_patient_with_many_rows(seed):
    strata = torch.cat([torch.zeros(900), torch.ones(100)]).long()
    groups = torch.cat([torch.zeros(400), 1 + torch.arange(600)]).long()
    held_out = hold_out(groups, strata, 0.2, generator(seed, "large"))
    assert int(held_out[strata == 1].sum()) in (20, 21)
    assert int(held_out[:400].sum()) == 0
    assert int(held_out[strata == 0].sum()) == 180


def test_a_column_without_a_name_is_no_patient(plans, tmp_path):
    """R writes one for the row's number; all rows were of one patient, and none was held out."""
    table = pd.DataFrame(
        {
            "": "x",
            "x": [row / 3 for row in range(60)],
            "y": 1.5,
            "kind": ["red", "green", "blue"] * 20,
        }
    )
    table.to_csv(tmp_path / "rows.csv", index=False)
    own = SiteFile.loads('format = 1\nname = "A"\n')
    some = SiteRows.of(plans[1], read_site_table(plans[1], own, tmp_path / "rows.csv"))
    assert some.patients is None
    assert len(some.split(plans[1], "A")[1]) == 12


class TestPatientsStayTogether:
    """Of each patient there are many rows, whose label nothing but the patient tells."""

    @staticmethod
    def rows(num_patients=40, each=8):
        rng = generator(0, "patients")
        patients = torch.arange(num_patients * each) // each
        inputs = torch.randn(num_patients, 4, generator=rng)[patients]
        inputs = inputs + 0.01 * torch.randn(inputs.shape, generator=rng)
        labels = torch.randint(2, (num_patients,), generator=rng)[patients]
        return inputs, labels, patients

    def test_members_of_a_bag_leave_whole_patients_out(self):
        inputs, labels, patients = self.rows()
        bag = SklearnClassifier(CLASSIFIERS["gradient-boosting"](), 2, size=4, calibrated=True)
        apart = bag.fit((inputs, labels), rng=generator(0, "bag"))
        together = bag.fit((inputs, labels), rng=generator(0, "bag"), groups=patients)
        # By heart it is always right, and of new patients it knows nothing.
        assert apart.inverse_temperature > 1 > together.inverse_temperature

    def test_the_error_of_a_number_is_that_for_new_patients(self):
        inputs, labels, patients = self.rows()
        bag = SklearnRegressor(REGRESSORS["gradient-boosting"](), size=3, discreet=True)
        rows = inputs, labels.float()
        apart = bag.fit(rows, rng=generator(0, "bag")).predict(inputs).var.mean()
        told = bag.fit(rows, rng=generator(0, "bag"), groups=patients).predict(inputs).var.mean()
        assert told > 2 * apart

    def test_a_site_tells_its_learners_whose_rows_they_are(self, plans, monkeypatch):
        plan = plans[1]
        inputs, labels, patients = self.rows()
        wide = torch.zeros(len(inputs), plan.num_inputs)
        wide[:, :2] = inputs[:, :2]
        asked = []

        def noted(*_, groups, **__):
            asked.append(groups)
            return Choice("logistic-regression", {}, 0)

        monkeypatch.setattr(fitting, "choose_learner", noted)
        rows = SiteRows(wide, labels, 0, patients)
        kit = SimpleNamespace(plan=plan, inputs=torch.randn(20, plan.num_inputs))
        choose_at_site(kit, "A", rows)
        assert torch.equal(asked[0], patients[rows.split_for(kit, "A")[0]])
        choose_at_site(kit, "A", SiteRows(wide, labels))
        assert asked[1] is None
