"""What is told of times to an event at the horizon, and what is not."""

from __future__ import annotations

import torch

from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Survival
from predbayes_study.payloads.details import evaluation_of
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import at_sites, check_evaluation, evaluation_upload
from predbayes_study.result.groups import group_scores
from predbayes_study.result.scoring import verdict
from predbayes_study.site.adopt import advise, losses
from predbayes_study.tasks import TASKS

PLAN = Plan.loads("""
format = 1
name = "relapse"
[target]
name = "months"
task = "survival"
event = "relapse"
codes = ["no", "yes"]
times = [6, 12, 36]
unit = "months"
[columns]
sex = { type = "category", categories = ["f", "m"], missing = "impute" }
[reference]
labelled = 30
[measures]
groups = ["sex"]
""")
MODEL = "0" * 64
TASK = TASKS["survival"]


def rows(num_rows, follow_up, rate=-1.0, seed=0):
    """The truth, and targets of rows that were seen for so many intervals, (N,) or a number."""
    rng = torch.Generator().manual_seed(seed)
    log_odds = torch.randn(num_rows, generator=rng).double() + rate
    times = torch.rand(num_rows, generator=rng).double().log() / (-log_odds).sigmoid().log()
    seen = torch.as_tensor(follow_up).double().expand(num_rows)
    targets = torch.where(times <= seen, times.clamp_min(1e-4), -seen)
    return Survival(log_odds[:, None].expand(-1, 3).contiguous()), targets


def curves(predictive, targets):
    return TASK.calibration(PLAN, predictive, targets, rng=torch.Generator())


class TestCurves:
    def test_end_where_rows_were_seen(self):
        found = curves(*rows(600, 2.0))
        assert found.gap is None
        assert len(found.brier) == len(found.brier_of_all) == 2
        assert [len(group.observed) for group in found.groups] == [2, 2, 2]
        assert all(group.fits for group in found.groups)
        can_judge, words = verdict(PLAN, 600, found)
        assert not can_judge
        assert "hardly a scored row was seen to the horizon of 36 months" in words

    def test_are_judged_where_rows_were_seen_to_the_horizon(self):
        found = curves(*rows(600, 3.0))
        assert len(found.brier) == 3
        can_judge, words = verdict(PLAN, 600, found)
        assert can_judge
        assert "No miscalibration was found" in words

    def test_are_not_judged_with_few_events(self):
        found = curves(*rows(600, 3.0, rate=-8.0))
        can_judge, words = verdict(PLAN, 600, found)
        assert not can_judge
        assert "scored rows have the event, and about" in words

    def test_events_that_were_stated_and_did_not_come_are_judged(self):
        stated = Survival(torch.full((600, 3), -2.0).double())
        can_judge, words = verdict(PLAN, 600, curves(stated, torch.full((600,), -3.0)))
        assert can_judge
        assert "not quite right" in words


class TestEvaluation:
    def test_leaves_out_what_rows_cannot_tell(self):
        sent = {
            "early": evaluation_upload(PLAN, "early", *rows(100, 1.0), MODEL).info,
            "rare": evaluation_upload(PLAN, "rare", *rows(100, 3.0, rate=-8.0), MODEL).info,
            "late": evaluation_upload(PLAN, "late", *rows(100, 3.0), MODEL).info,
        }
        for info in sent.values():
            check_evaluation(PLAN, info)
        assert evaluation_of(sent["early"]).metrics.keys() == {"nll", "c_index"}
        assert evaluation_of(sent["rare"]).metrics.keys() == {"nll", "integrated_brier", "risk_gap"}
        assert len(evaluation_of(sent["late"]).metrics) == 4
        words = TASK.at_sites(at_sites(PLAN, list(sent.values())), 100)
        assert "hardly a row was seen to the horizon" in words
        assert "C-index" not in words
        assert "C-index" in TASK.at_sites(at_sites(PLAN, [sent["late"]]), 100)


class TestAdopt:
    def test_compares_by_nll_alone_where_nobody_was_seen_to_the_horizon(self):
        assert losses(PLAN, *rows(100, 1.0)).keys() == {"nll"}
        assert losses(PLAN, *rows(100, 3.0)).keys() == {"nll", "error"}
        worse = Estimate(value=-0.2, low=-0.3, high=-0.1)
        choice, _ = advise(100, {"adopted": {"nll": worse}}, worse)
        assert choice == "adopted"


class TestGroups:
    women = torch.arange(400) < 200
    inputs = torch.stack([women, ~women, torch.zeros(400)], 1).float()

    def test_follow_up_alone_is_no_difference(self):
        follow_up = torch.where(self.women, 1.5, 3.0)
        named = 0
        for seed in range(20):
            _, words = group_scores(PLAN, self.inputs, *rows(400, follow_up, seed=seed))
            named += "Larger than chance" in words
        assert named <= 4

    def test_hazards_that_are_wrong_in_a_group_are_named(self):
        p, targets = rows(400, 3.0)
        wrong = Survival(p.log_odds + torch.where(self.women, 1.0, 0.0)[:, None])
        found, words = group_scores(PLAN, self.inputs, wrong, targets)
        assert "in sex f the risks are too high" in words
        assert "sex m" not in words
        assert found[0].metrics.keys() == {"c_index", "risk_gap"}

    def test_a_group_with_few_events_is_not_told_of(self):
        p, targets = rows(400, 3.0)
        targets[:197] = -3.0  # three women at most have the event
        found, _ = group_scores(PLAN, self.inputs, p, targets)
        assert all(group.num_rows is None for group in found)
