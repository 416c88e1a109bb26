"""Risks at sites: what leaves has no small count, adds up, and tells nearly what the rows would."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import UploadError
from predbayes.predictive.families import Categorical
from predbayes.predictive.risk import AT_THRESHOLD, Risks
from predbayes.seeding import generator
from predbayes_study.payloads.details import Evaluation, Weighted, evaluation_of, with_evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.report.report import without_sites
from predbayes_study.result.evaluation import (
    at_sites,
    check_evaluation,
    evaluate,
    evaluation_upload,
)
from predbayes_study.result.statistics.risks import RiskBins, RiskCounts
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of
from predbayes_study.tasks.blocks import Alike
from predbayes_study.tasks.classes import OF_RISK
from tests.core.predictive.test_risk import THRESHOLDS
from tests.core.predictive.test_risk import draw as draw_risks
from tests.study.samples import classification_plan, classification_result

MODEL = "a" * 64
TEXT = """
format = 1
name = "risks"
target = {{ name = "outcome", task = "classification", classes = {classes} }}
reference = {{}}
[columns]
x = {{ type = "number" }}
[measures]
thresholds = [0.1, 0.3]
"""
TWO = Plan.loads(TEXT.format(classes='["no", "yes"]'))
THREE = Plan.loads(TEXT.format(classes='["a", "b", "c"]'))


def draw(plan, num_rows, seed=0):
    rng = generator(seed, "risks")
    logits = torch.randn(num_rows, plan.num_outputs, generator=rng).double()
    logits[:, 0] += 1
    predictive = Categorical(logits.log_softmax(-1))
    return predictive, torch.multinomial(predictive.moments(), 1, generator=rng)[:, 0]


@pytest.mark.parametrize("plan", [TWO, THREE])
class TestSums:
    def test_no_count_is_small_and_all_add_up(self, plan):
        for seed in range(10):
            for one in evaluate(plan, *draw(plan, 400, seed), MODEL).risks:
                assert min(*one.events, *one.others) >= 5
                assert sum(one.events) + sum(one.others) == 400

    def test_what_they_tell_is_within_its_error_of_what_rows_tell(self, plan):
        predictive, targets = draw(plan, 600)
        rows, risks_of = HeldOutRows(plan, predictive, targets), RiskCounts()
        # Not of blocks, to be compared with the rows.
        rows.__dict__["said"] = Alike(predictive, torch.arange(600)[:, None])
        told = risks_of.pool(
            plan, [risks_of.make(rows, Evaluation(model=MODEL, metrics={}), [])], 600
        )
        exact = task_of(plan).risks(plan, predictive, targets, rng=generator(0, "exact"))
        assert [one.name for one in told] == [one.name for one in exact]
        for found, rows in zip(told, exact, strict=True):
            assert found.prevalence == rows.prevalence
            assert found.metrics.keys() == rows.metrics.keys() == set(OF_RISK)
            for name, estimate in found.metrics.items():
                assert abs(estimate.value - rows.metrics[name].value) <= estimate.error + 1e-9
            for here, there in zip(found.at, rows.at, strict=True):
                assert here.treat_all == pytest.approx(there.treat_all)
                for name, estimate in here.metrics.items():
                    off = abs(estimate.value - there.metrics[name].value)
                    assert off <= (estimate.error or 0) + 1e-9

    def test_sites_add_up(self, plan):
        parts = [draw(plan, size, seed) for seed, size in enumerate((150, 300, 450))]
        infos = [
            evaluation_upload(plan, f"S{k}", *part, MODEL).info for k, part in enumerate(parts)
        ]
        for info in infos:
            check_evaluation(plan, info)
        pooled = at_sites(plan, infos).pooled.risks
        targets = torch.cat([y for _, y in parts])
        log_probs = torch.cat([HeldOutRows(plan, p, y).said.predictive.log_probs for p, y in parts])
        for index, one in zip(plan.event_indices, pooled, strict=True):
            rows = Risks.of(Categorical(log_probs), targets, index)
            assert one.num_rows == 900
            for name in ("auroc", "average_precision", "observed_expected"):
                found = one.metrics[name]
                assert abs(found.value - getattr(rows, name)().value) <= found.error + 1e-9
            assert sum(b.count for b in one.bins) == 900
        assert len(at_sites(plan, infos).sites[0].risks) == len(plan.event_indices)

    def test_of_few_rows_nothing_is_told(self, plan):
        assert evaluate(plan, *draw(plan, 99), MODEL).risks is None
        predictive, _ = draw(plan, 200)
        rare = torch.zeros(200, dtype=torch.long)
        rare[:4] = 1
        assert evaluate(plan, predictive, rare, MODEL).risks is None


def changed(**parts):
    info = evaluation_upload(TWO, "S", *draw(TWO, 400), MODEL).info
    one = evaluation_of(info).risks[0].model_copy(update=parts)
    evaluation = evaluation_of(info).model_copy(update={"risks": (one,)})
    return with_evaluation(info, evaluation)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"edges": (0.1,)}, "not those of the plan"),
        ({"edges": (0.123,), "events": (60, 60), "others": (140, 140), "expected": (9.0, 60.0)},
         "other edges than the plan allows"),
        ({"edges": (0.3, 0.1), "events": (60,) * 3, "others": (70,) * 3, "expected": (9.0,) * 3},
         "other edges"),
        ({"edges": (0.3,), "events": (4, 116), "others": (140, 140), "expected": (9.0, 60.0)},
         "a count below 5"),
        ({"edges": (0.3,), "events": (60, 60), "others": (140, 141), "expected": (9.0, 90.0)},
         "do not add up"),
        ({"edges": (0.3,), "events": (60, 60), "others": (140, 140), "expected": (90.0, 90.0)},
         "sums of risks are not of their bins"),
        ({"edges": (0.3,), "events": (60, 60), "others": (140, 140), "expected": (9.123, 90.0)},
         "more than 3 digits"),
        ({"slope": Weighted(value=1.001, weight=3.0)}, "slope or intercept"),
        ({"slope": Weighted(value=1e6, weight=3.0)}, "slope or intercept"),
    ],
)  # fmt: skip
def test_counts_that_no_honest_site_sends_are_refused(parts, why):
    check_evaluation(TWO, changed())
    with pytest.raises(UploadError, match=why):
        check_evaluation(TWO, changed(**parts))


def test_classes_that_do_not_add_up_are_refused():
    info = evaluation_upload(THREE, "S", *draw(THREE, 400), MODEL).info
    twice = (evaluation_of(info).risks[0],) * 3
    evaluation = evaluation_of(info).model_copy(update={"risks": twice})
    with pytest.raises(UploadError, match="do not add up"):
        check_evaluation(THREE, with_evaluation(info, evaluation))
    one = evaluation_of(info).model_copy(update={"risks": twice[:1]})
    with pytest.raises(UploadError, match="not those of the plan"):
        check_evaluation(THREE, with_evaluation(info, one))


@pytest.mark.parametrize(("num_counted", "told"), [(2, 0), (3, 10)])
def test_the_public_sees_risks_of_three_sites_or_none(num_counted, told):
    plan = classification_plan()
    sizes = [600] * num_counted + [40] * (4 - num_counted)
    infos = [
        evaluation_upload(plan, f"S{k}", *draw(plan, n, k), MODEL).info for k, n in enumerate(sizes)
    ]
    found = at_sites(plan, infos).model_copy(update={"public": True})
    assert len(found.pooled.risks) == 10
    result = classification_result(plan).model_copy(update={"at_sites": found})
    shown = without_sites(result).at_sites.pooled.risks
    assert len(shown) == told
    assert not any(risk.bins for risk in shown)


class TestPlan:
    def test_the_event_is_the_second_of_two_classes_unless_the_plan_says(self):
        assert TWO.event_indices == (1,)
        first = TWO.model_copy(update={"measures": TWO.measures.model_copy(update={"event": "no"})})
        assert first.event_indices == (0,)
        assert THREE.event_indices == (0, 1, 2)


# Bins


def parts(seeds, sizes, shift, slope, ties):
    pairs = zip(seeds, sizes, strict=True)
    return [draw_risks(seed, size, ties, shift, slope) for seed, size in pairs]


@settings(max_examples=60, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=3, max_size=3),
    sizes=st.lists(st.integers(30, 500), min_size=3, max_size=3),
    shift=st.floats(-2.5, 1.5),
    slope=st.floats(-0.5, 2.0),
    ties=st.booleans(),
    min_cell=st.integers(1, 10),
)
def test_figures_from_counts_are_within_their_bound(seeds, sizes, shift, slope, ties, min_cell):
    """Of the rows of three sites, whose bins have edges of their own."""
    several = parts(seeds, sizes, shift, slope, ties)
    counted = [(r, RiskBins.count(r, min_cell, THRESHOLDS)) for r in several]
    counted = [(risks, bins) for risks, bins in counted if bins is not None]
    if not counted:
        return
    rows = Risks(*(torch.cat([getattr(r, n) for r, _ in counted]) for n in ("log_odds", "event")))
    bins = RiskBins.joined([bins for _, bins in counted])
    for name in ("auroc", "average_precision", "observed_expected"):
        assert_near(getattr(rows, name)(), getattr(bins, name)())
    for threshold in THRESHOLDS:
        exact = rows.decision(threshold).figures()
        for name, found in bins.at(threshold).items():
            assert_near(exact[name], found)


def assert_near(exact, found):
    assert abs(exact.value - found.value) <= found.error + 1e-9
    assert found.low <= exact.low + 1e-9
    assert found.high >= exact.high - 1e-9


class TestBins:
    def test_too_few_events_are_not_counted(self):
        risks = Risks(torch.linspace(-2, 2, 50).double(), torch.arange(50) < 4)
        assert RiskBins.count(risks, 5) is None
        assert len(RiskBins.count(risks, 4).events) == 1

    def test_a_threshold_with_enough_on_both_sides_is_exact(self):
        risks = draw_risks(1, 2000)
        bins = RiskBins.count(risks, 5, THRESHOLDS)
        for threshold in THRESHOLDS:
            exact = risks.decision(threshold).figures()
            found = bins.at(threshold)
            assert found.keys() == set(AT_THRESHOLD)
            for name in AT_THRESHOLD:
                assert found[name].error == 0
                assert found[name].value == pytest.approx(exact[name].value, abs=1e-12)


@given(
    events=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    others=st.lists(st.integers(1, 60), min_size=4, max_size=4),
)
def test_the_least_average_precision_is_a_sum_over_events_in_closed_form(events, others):
    num = len(events)
    low = torch.arange(num).double() / num
    high = low + 1 / num
    columns = torch.tensor(events).double(), torch.tensor(others[:num]).double()
    bins = RiskBins(low, high, *columns, torch.zeros(num))
    before = rows = total = 0.0
    for k in reversed(range(num)):
        rows += others[k]
        total += sum((before + r) / (before + r + rows) for r in range(1, events[k] + 1))
        before += events[k]
    found = bins.average_precision()
    assert found.value - found.error == pytest.approx(total / sum(events))


def test_claims_of_any_size_take_no_memory():
    """A sum over as many numbers as these claims would not fit into any memory."""
    counts = torch.tensor([1e15, 1e15]).double()
    bins = RiskBins(
        torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]), counts, counts, torch.zeros(2)
    )
    assert bins.average_precision().value == pytest.approx(0.5, abs=0.3)
