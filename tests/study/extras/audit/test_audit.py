"""A site attacks what it would send: the page has the figures, and a policy its limit."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

from predbayes.errors import DataError, PlanError
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.named import CLASSIFIERS
from predbayes.seeding import generator
from predbayes_study.extras.audit.attack import audit, fewer_people, in_short
from predbayes_study.extras.audit.leakage import FILE, AttackResult
from predbayes_study.payload import payload_of
from predbayes_study.plan.models import make_learner
from predbayes_study.site.policy import NO_POLICY, Asked, SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import HOME, Training
from predbayes_study.tables.sitefile import Policy
from tests.study.commands import done
from tests.study.report.test_report import Page
from tests.study.world import make_world, own_table

LEARNER = "[learner]\nmin_steps = 200\nnum_epochs = 1\nholdout = 0.25\nname = 'any'\n"
LOGISTIC = "logistic-regression"
OUTLIER = 17  # its line


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("audit"), learner=LEARNER)


def frame(num_rows=80, seed=0):
    """A table by line, one row of which is far from all others and of another class."""
    rng = generator(seed, "frame")
    x, y = (8 * torch.randn(num_rows, generator=rng) for _ in range(2))
    kind = [("red", "green")[int(one > 0)] for one in x]
    table = pd.DataFrame({"x": x.numpy().round(2), "y": y.numpy().round(2), "kind": kind})
    table.index = pd.RangeIndex(2, num_rows + 2)
    table.loc[OUTLIER] = [45.0, 45.0, "blue"]
    return table


@pytest.fixture(scope="module")
def rows(world):
    return SiteRows.of(world.kit.plan, frame())


@pytest.fixture(scope="module")
def found(world, rows):
    return audit(world.kit, site_of(world, rows), rows, LOGISTIC, policy=NO_POLICY)


def site_of(world, rows):
    """A site that trains on the outlier."""
    place = rows.lines.tolist().index(OUTLIER)
    names = (f"Site {number}" for number in range(50))
    return next(name for name in names if place in rows.split(world.kit.plan, name)[0].tolist())


@pytest.mark.slow("a second audit of 16 shadow models")
def test_it_is_a_function_of_plan_rows_learner_and_policy(world, rows, found):
    site = site_of(world, rows)
    assert audit(world.kit, site, rows, LOGISTIC, policy=NO_POLICY) == found
    assert (found.people, found.runs) == (60, 16)
    assert found.sound


def test_the_most_exposed_row_is_named_by_its_line(found):
    assert OUTLIER in found.lines


def test_too_few_people_are_refused(world):
    few = SiteRows.of(world.kit.plan, frame(22))
    with pytest.raises(DataError, match="fewer than 20 people are trained on"):
        audit(world.kit, "Alpha", few, LOGISTIC, policy=NO_POLICY)


@pytest.mark.slow("an audit of 16 shadow models")
def test_several_rows_of_one_patient_are_one_person(world, rows):
    patients = torch.arange(80) // 2
    told = audit(
        world.kit, "Alpha", dataclasses.replace(rows, patients=patients), LOGISTIC, policy=NO_POLICY
    )
    assert told.people == 30


def test_sums_are_not_audited(world, rows, monkeypatch):
    monkeypatch.setattr(type(payload_of(world.kit.plan)), "predicts", False)
    with pytest.raises(PlanError, match="there is nothing to audit"):
        audit(world.kit, "Alpha", rows, LOGISTIC, policy=NO_POLICY)


@pytest.mark.slow("an audit of 16 shadow models")
def test_with_a_gate_its_column_is_attacked_too(tmp_path, rows):
    gated = make_world(tmp_path, learner=LEARNER, gate="[gate]")
    told = audit(gated.kit, "Alpha", rows, LOGISTIC, policy=NO_POLICY)
    assert told.sound


class TestShortened:
    @staticmethod
    def short(learner, num_rows=4000):
        rows = torch.randn(num_rows, 3, generator=generator(0, "x")), torch.arange(num_rows) % 2
        return in_short(learner, rows, 5.0, rng=generator(0, "short"))

    def test_a_forest_has_fewer_members(self):
        learner, told = self.short(SklearnClassifier(CLASSIFIERS["random-forest"](), 2))
        assert 2 <= learner.size < 10
        assert told == f"{learner.size} of 10 members"

    def test_a_gaussian_process_learns_its_kernel_once(self):
        learner, told = self.short(SklearnClassifier(CLASSIFIERS["gaussian-process"](), 2), 60)
        assert learner.size == 1
        assert learner.estimator.optimizer is None
        assert "a kernel that was learnt once, on 60 rows" in told

    @pytest.mark.slow("fits a Gaussian process")
    def test_nor_is_its_kernel_a_constant_where_there_is_something_to_learn(self):
        rng = generator(0, "process")
        inputs = torch.randn(300, 12, generator=rng)
        rows = inputs, (inputs[:, 0] + inputs[:, 1] > 0).long()
        whole = SklearnClassifier(CLASSIFIERS["gaussian-process"](), 2)
        learner, _ = in_short(whole, rows, 5.0, rng=rng)
        said = learner.fit(rows, rng=rng).predict(inputs)
        assert float(-said.log_prob(rows[1]).mean()) < 0.4

    def test_of_a_gaussian_process_as_many_people_are_attacked_as_there_is_time_for(self):
        people = torch.arange(5000) // 2
        for classes in (2, 10):
            whole = SklearnClassifier(CLASSIFIERS["gaussian-process"](), classes)
            some, told = fewer_people(whole, people, 5.0, rng=generator(0))
            each = len(some) / 2  # rows of a half
            assert 4.9 < 1.1e-9 * (1 if classes == 2 else classes) * each**3 <= 5.0
            assert told == f"{len(some) // 2:,} of 2,500 people"
            whose = people[some]
            assert bool((torch.bincount(whose, minlength=2500) != 1).all())  # whole people
        few, told = fewer_people(whole, people[:600], 5.0, rng=generator(0))
        assert (len(few), told) == (600, "")

    def test_a_network_has_fewer_cycles_of_the_same_length(self, world):
        whole = make_learner(world.kit.plan, "network")

        def of(num_epochs, min_steps):
            settings = dataclasses.replace(
                whole.settings, num_epochs=num_epochs, min_steps=min_steps
            )
            return dataclasses.replace(whole, settings=settings)

        learner, told = self.short(of(400, 0))
        assert told == "1 of 2 cycles"
        assert (learner.settings.num_epochs, learner.settings.num_cycles) == (200, 1)
        learner, _ = self.short(of(25, 16_000), 400)
        assert (learner.settings.num_epochs, learner.settings.min_steps) == (13, 8000)


class TestPolicy:
    @staticmethod
    def training(world, rows, out, most):
        policy = SitePolicy((("policy.toml", Policy(max_membership_auc=most)),))
        site = site_of(world, rows)
        approvals = Approvals(out.parent, policy=policy)
        return Training(world.kit, site, world.key(site), approvals, out, LOGISTIC)

    @staticmethod
    def put(found, out):
        (out / HOME).mkdir(parents=True)
        (out / HOME / FILE).write_text(found.model_dump_json())

    def test_without_an_audit_nothing_is_trained(self, world, rows, tmp_path):
        with pytest.raises(PlanError, match=r"no audit .* max_membership_auc = 0.9 of policy.toml"):
            self.training(world, rows, tmp_path / "out", 0.9).run(rows)
        assert not (tmp_path / "out").exists()

    def test_nor_with_a_worse_figure(self, world, rows, found, tmp_path):
        self.put(found, tmp_path / "out")
        with pytest.raises(PlanError, match=r"AUC of 0\.\d+.* max_membership_auc = 0.501"):
            self.training(world, rows, tmp_path / "out", 0.501).run(rows)

    def test_within_the_limit_it_leaves_and_the_page_has_the_figures(
        self, world, rows, found, tmp_path
    ):
        out = tmp_path / "out"
        self.put(found, out)
        trained = self.training(world, rows, out, 0.95).run(rows)
        assert trained.released
        page = Page(trained.egress.read_text()).text
        assert f"{found.reference.in_words()} by what leaves" in page
        assert "16 models of random halves of 60 people" in page
        assert not any(f"line {line}" in page for line in found.lines)

    def test_an_audit_of_other_rows_does_not_count(self, world, rows, found, tmp_path):
        self.put(found, tmp_path / "out")
        other = SiteRows.of(world.kit.plan, frame(seed=1))
        with pytest.raises(PlanError, match="no audit of these rows"):
            self.training(world, rows, tmp_path / "out", 0.95).run(other)

    def test_nor_does_one_that_finds_what_is_not_there(self, found):
        wrong = found.model_copy(update={"target": replace(found.target, null=0.55)})
        policy = SitePolicy((("policy.toml", Policy(max_membership_auc=0.9)),))
        with pytest.raises(PlanError, match="no audit"):
            policy.require(Asked(is_audited=True, outcome=wrong))

    def test_a_file_that_was_cut_is_none(self, found, tmp_path):
        path = tmp_path / FILE
        path.write_text(found.model_dump_json()[:-9])
        assert AttackResult.load(path, found.identity) is None


def test_without_an_audit_the_page_says_so(world, rows, tmp_path):
    out = tmp_path / "out"
    site = Training(world.kit, "Alpha", world.key("Alpha"), Approvals(tmp_path), out, LOGISTIC)
    assert "Not measured: predbayes site audit" in Page(site.run(rows).egress.read_text()).text


class TestCommand:
    """`predbayes site audit` shows figures, keeps them in a file, and names the next command."""

    LINE = "site audit kit rows.csv --out out --learner logistic-regression"

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        make_world(tmp_path, learner="[learner]\nname = 'any'\nholdout = 0.2\n")
        (tmp_path / "rows.csv").write_text(own_table((tmp_path / "reference.csv").read_text()))
        (tmp_path / "site.toml").write_text('format = 1\nname = "Basel"\n')
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_it_tells_both_attackers_epsilon_and_lines_and_what_is_next(self, folder):
        lines = done(self.LINE)
        told = "\n".join(lines)
        assert "logistic-regression: 16 fits to halves of 64 people" in told
        assert "by what leaves" in told
        assert "by the model itself" in told
        assert "epsilon is at least" in told
        assert "most exposed: lines " in told
        assert "nothing has left this computer" in told
        found = json.loads((folder / "out" / "home" / "membership.json").read_bytes())
        assert len(found["lines"]) == 5
        done("site key Basel")
        train = lines[-1].partition("predbayes ")[2].partition(";")[0]
        done(f"{train} --learner logistic-regression")
        assert "16 models of random halves" in (folder / "out" / "egress.html").read_text()
        upload = (folder / "out" / "Basel.safetensors").read_bytes()
        assert b"membership" not in upload
        assert "audit" in (folder / "audit.jsonl").read_text()

    def test_a_limit_that_it_does_not_meet_is_told_at_once(self, folder):
        (folder / "site.toml").write_text(
            'format = 1\nname = "Basel"\n[policy]\nmax_membership_auc = 0.501\n'
        )
        assert any("`site train` will refuse" in line for line in done(self.LINE))
