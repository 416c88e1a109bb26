"""Groups of rows: who belongs to which, what is told of them, and which differences are named."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import PlanError, UploadError
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.risk import Risks
from predbayes.seeding import generator
from predbayes_study.payloads.details import evaluation_of, with_evaluation
from predbayes_study.plan.grouping import ELSEWHERE
from predbayes_study.plan.schema import Plan
from predbayes_study.report.report import render_card, render_report
from predbayes_study.result.evaluation import (
    at_sites,
    check_evaluation,
    evaluation_upload,
)
from predbayes_study.result.groups import Look, group_scores, membership, words_of
from predbayes_study.result.statistics.statistic import HeldOutRows
from tests.study.report.test_report import Page
from tests.study.samples import event_plan, event_result

TEXT = """
format = 1
name = "groups"
target = { name = "outcome", TARGET }
reference = {}
[columns]
age = { type = "number", missing = "flag", centre = 60.0, scale = 15.0 }
sex = { type = "category", categories = ["f", "m"], missing = "impute" }
[measures]
groups = GROUPS
"""
EVENT = 'task = "classification", classes = ["no", "yes"]'
GROUPS = '["sex", "age: 0-49, 50-64, 65-"]'


def plan_of(groups=GROUPS, target=EVENT):
    return Plan.loads(TEXT.replace("TARGET", target).replace("GROUPS", groups))


PLAN = plan_of()
NUMBERS = plan_of(target='task = "regression", centre = 0.0, scale = 1.0')


def inputs_of(ages, sexes):
    """As the network sees them: age, its flag, f, m, other."""
    known = torch.tensor([0.0 if a is None else (a - 60) / 15 for a in ages])
    flags = torch.tensor([float(a is None) for a in ages])
    words = torch.tensor([[float(s == word) for word in ("f", "m", "x")] for s in sexes])
    return torch.cat([known[:, None], flags[:, None], words], 1)


def draw(num_rows=600, seed=0, shift=0.0):
    """People with risks; those of 65 and more have an event more often by ``shift`` of log odds."""
    rng = generator(seed, "groups")
    ages = (40 + 40 * torch.rand(num_rows, generator=rng)).round().tolist()
    sexes = ["fm"[k] for k in torch.randint(2, (num_rows,), generator=rng).tolist()]
    odds = -1 + torch.randn(num_rows, generator=rng).double()
    predictive = Categorical(torch.stack([torch.zeros_like(odds), odds], 1).log_softmax(1))
    true = odds + shift * (torch.tensor(ages) >= 65)
    return inputs_of(ages, sexes), predictive, torch.bernoulli(true.sigmoid(), generator=rng).long()


class TestPlan:
    @pytest.mark.parametrize(
        ("groups", "why"),
        [
            ('["height"]', "there is no column 'height'"),
            ('["age"]', "'age' is a number; write ranges"),
            ('["age: 0-49, 40-"]', "ascending order"),
            ('["age: old"]', "ascending order"),
            ('["sex: 0-1"]', "has categories, not ranges"),
            ('["age: 0-49, 50-", "age: 0-64, 65-"]', "in one way only"),
            ('["age: 0-49, 65-60"]', "ascending order"),
        ],
    )
    def test_what_does_not_fit_is_refused_in_a_line(self, groups, why):
        with pytest.raises(PlanError, match=why):
            plan_of(groups)

    def test_rows_belong_to_the_range_that_they_are_in(self):
        (_, ages) = PLAN.groupings
        inputs = inputs_of([0, 49, 49.9, 50, 64, 65, 99, None, -3], "fffffffff")
        assert membership(PLAN, ages, inputs).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
        (bounded,) = plan_of('["age: 50-64, 65-80"]').groupings
        assert membership(PLAN, bounded, inputs_of([49, 65, 80, 81], "ffff")).tolist() == [
            2,
            1,
            1,
            2,
        ]

    def test_words_are_groups_and_others_are_elsewhere(self):
        (sexes, _) = PLAN.groupings
        assert membership(PLAN, sexes, inputs_of([1] * 4, ["f", "m", "x", ""])).tolist() == [
            0, 1, 2, 2,
        ]  # fmt: skip


class TestScores:
    def test_are_those_of_the_rows_of_each_group(self):
        inputs, predictive, targets = draw()
        groups, _ = group_scores(PLAN, inputs, predictive, targets)
        assert [(g.column, g.name) for g in groups] == [
            ("sex", "f"), ("sex", "m"), ("age", "0-49"), ("age", "50-64"), ("age", "65-"),
        ]  # fmt: skip
        women = membership(PLAN, PLAN.groupings[0], inputs) == 0
        risks = Risks.of(predictive[women], targets[women], 1)
        assert groups[0].num_rows == int(women.sum())
        assert groups[0].metrics["auroc"].value == pytest.approx(risks.auroc().value)
        assert groups[0].metrics["observed_expected"].value == pytest.approx(
            risks.observed_expected().value
        )
        assert "accuracy" not in groups[0].metrics

    def test_small_groups_are_named_without_figures(self):
        inputs, predictive, targets = draw()
        inputs[:590, 2:4] = torch.tensor([1.0, 0.0])  # hardly any men
        groups, _ = group_scores(PLAN, inputs, predictive, targets)
        assert [g.num_rows for g in groups if g.column == "sex"] == [None, None]
        assert all(g.num_rows for g in groups if g.column == "age")


class TestWords:
    def test_a_real_difference_is_named(self):
        _, words = group_scores(PLAN, *draw(1500, shift=1.2))
        assert words.startswith("Larger than chance would give in 10 comparisons:")
        assert "in age 65- the risks are too low (observed over expected" in words

    def test_chance_is_rarely_named(self):
        """At most in 5 % of studies, and there are 10 looks in each: of 40 about 2."""
        named = [group_scores(PLAN, *draw(300, seed))[1].startswith("Larger") for seed in range(40)]
        assert sum(named) <= 6

    def test_looks_are_corrected_step_by_step(self):
        looks = [Look("a", 0.001), Look("b", 0.02), Look("c", 0.04), Look("d", 0.9)]
        assert ": a. Why" in words_of(looks, 4)  # .02 is above .05 / 3
        assert ": a; b; c. Why" in words_of(looks[:3], 3)
        assert words_of([], 0) == ""
        assert words_of([], 2).startswith("Every group is too small")


def sent(site, num_rows, seed=0, shift=0.0, plan=PLAN):
    inputs, predictive, targets = draw(num_rows, seed, shift)
    return evaluation_upload(plan, site, predictive, targets, "a" * 64, inputs=inputs).info


class TestSites:
    def test_sums_of_sites_add_up_to_their_groups(self):
        infos = [sent(f"S{k}", 500, k) for k in range(3)]
        for info in infos:
            check_evaluation(PLAN, info)
        found = at_sites(PLAN, infos)
        parts = [draw(500, k) for k in range(3)]
        women = [membership(PLAN, PLAN.groupings[0], x) == 0 for x, _, _ in parts]
        clipped = [HeldOutRows(PLAN, p, y, x).said.predictive for x, p, y in parts]
        risks = Risks.of(
            Categorical(torch.cat([p.log_probs[w] for p, w in zip(clipped, women, strict=True)])),
            torch.cat([y[w] for (_, _, y), w in zip(parts, women, strict=True)]),
            1,
        )
        assert found.pooled.groups[0].num_rows == risks.num_rows
        ratio = found.pooled.groups[0].metrics["observed_expected"]
        assert abs(ratio.value - risks.observed_expected().value) <= ratio.error + 1e-9
        assert found.sites[0].groups
        assert found.group_words

    def test_a_difference_at_the_sites_is_named(self):
        found = at_sites(PLAN, [sent(f"S{k}", 900, k, shift=1.2) for k in range(3)])
        assert "in age 65- the risks are too low" in found.group_words

    def test_of_few_rows_or_without_groups_nothing_is_sent(self):
        bare = PLAN.model_copy(update={"measures": None})
        assert evaluation_of(sent("S", 500, plan=bare)).groups is None
        assert evaluation_of(sent("S", 99)).groups is None
        assert "groups" not in sent("S", 99).model_dump_json()

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"name": "x"}, "not those of the plan"),
            ({"rows": 20}, "too few rows"),
            ({"events": 2}, "cannot be those of its rows"),
            ({"expected": 1e6}, "cannot be those of its rows"),
            ({"expected": 61.234}, "cannot be those of its rows"),
            ({"events": None}, "cannot be those of its rows"),
            ({"rows": 499}, "do not add up"),
        ],
    )
    def test_sums_that_no_honest_site_sends_are_refused(self, change, why):
        info = sent("S", 500)
        first, *rest = evaluation_of(info).groups
        changed = (first.model_copy(update=change), *rest)
        evaluation = evaluation_of(info).model_copy(update={"groups": changed})
        with pytest.raises(UploadError, match=why):
            check_evaluation(PLAN, with_evaluation(info, evaluation))

    def test_numbers_send_the_sums_of_their_nll(self):
        inputs, _, _ = draw()
        targets = torch.randn(600, generator=generator(1, "y"))
        predictive = Gaussian(torch.zeros(600), torch.ones(600))
        info = evaluation_upload(NUMBERS, "S", predictive, targets, "a" * 64, inputs=inputs).info
        check_evaluation(NUMBERS, info)
        assert all(one.events is None for one in evaluation_of(info).groups)
        groups = at_sites(NUMBERS, [info]).pooled.groups
        assert all(group.metrics.keys() == {"nll"} for group in groups)


def test_report_and_card_show_groups_and_the_public_no_groups_of_sites():
    plan = event_plan()
    groups, words = group_scores(PLAN, *draw(1500, shift=1.2))
    infos = [sent(f"Site {k}", 500, k) for k in range(3)]
    found = at_sites(PLAN, infos).model_copy(update={"public": True})
    result = event_result(plan).model_copy(
        update={"groups": groups, "group_words": words, "at_sites": found}
    )
    members, public = (Page(render_report(plan, result, public=p)).text for p in (False, True))
    card = Page(render_card(plan, result)).text
    for text in (members, public, card):
        assert words in text
        assert "age: 65-" in text
    assert "Groups at the sites" in members
    assert "Groups at the sites" not in public
    assert "Only the groups above were examined" in card
    assert ELSEWHERE not in card
