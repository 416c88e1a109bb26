"""For how many rows a site counts, whatever it claims."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import Contribution
from predbayes_study.plan.weight import RowCaps
from predbayes_study.result.comparison import SiteComparison
from predbayes_study.result.schema import Finding
from predbayes_study.result.screening import Screening
from predbayes_study.result.weighing import Caps, Screened
from tests.study.world import make_world


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world")).kit.plan


def with_labels(plan, num):
    return plan.model_copy(
        update={"reference": plan.reference.model_copy(update={"labelled": num})}
    )


def test_a_plan_that_does_not_say_is_frozen_with_three_times_the_median(plan):
    assert plan.rules.max_weight == 3.0
    assert Caps.of(plan, [10, 100, 10**9]).rows == RowCaps(300.0, 100.0, 10.0)
    assert Caps.of(plan, [100, 10**9]).rows.median == 100.0


def test_with_few_labels_nobody_counts_for_more_than_the_median_site(plan):
    assert Caps.of(with_labels(plan, 29), [10, 100, 1000]).rows.most == 100.0
    assert Caps.of(with_labels(plan, 30), [10, 100, 1000]).rows.most == 300.0


def test_a_contribution_keeps_the_shares_of_its_classes():
    predictive = Categorical(torch.zeros(4, 2).log_softmax(-1))
    sent = Contribution("x", predictive, 1000, torch.tensor([900.0, 100.0]).double())
    less = sent.limited(300)
    assert less.num_rows == 300
    assert less.class_rows.tolist() == pytest.approx([270.0, 30.0])
    assert sent.limited(1000) is sent


def test_who_could_not_be_compared_counts_least_and_its_gate_is_one_at_most():
    told = {
        "apart": Finding(kind="uncompared", text="It could not be compared."),
        "against": Finding(kind="opposed", text="It says the opposite."),
    }
    screened = {
        name: Screening((finding,), None, leave_out=False) for name, finding in told.items()
    }
    limits = Caps(RowCaps(300.0, 100.0, 20.0))
    found = Screened.of(screened, SiteComparison(told, ()), frozenset(), limits)
    predictive = Categorical(torch.zeros(3, 2).log_softmax(-1))
    for name, rows in (("apart", 20.0), ("against", 100.0), ("sound", 300.0)):
        sent = Contribution(name, predictive, 1000, None, torch.tensor([-1.0, 0.0, 2.0]))
        counted = found.applied(sent)
        assert counted.num_rows == rows
        assert float(counted.gate.max()) == (2.0 if name == "sound" else 0.0)
        assert float(counted.gate.min()) == -1.0


def test_at_a_row_a_gate_is_three_times_the_median_or_three_at_most():
    predictive = Categorical(torch.zeros(2, 2).log_softmax(-1))
    gates = {"a": (0.0, -4.0), "b": (0.5, -4.0), "c": (3.0, 3.0)}
    sites = [Contribution(n, predictive, 1, None, torch.tensor(g)) for n, g in gates.items()]
    limits = Caps().of_rows(3.0, sites)
    counted = torch.stack([limits.applied(site).gate for site in sites]).exp()
    assert counted[:2].tolist() == torch.tensor([gates["a"], gates["b"]]).exp().tolist()
    assert counted[2].tolist() == pytest.approx([3 * 1.6487, 3.0], rel=1e-3)


@pytest.mark.parametrize("unclear", [False, True])
def test_who_was_found_against_and_stays_counts_as_the_median_site(unclear):
    lie = (Finding(kind="inconsistent", text="It lies."),)
    screened = {
        "out": Screening(lie, None, leave_out=True),
        "kept": Screening(lie, None, leave_out=False),
        "sound": Screening((), None, leave_out=False),
    }
    found = Screened.of(
        screened,
        SiteComparison({}, (), unclear),
        frozenset({"by hand"}),
        Caps(RowCaps(300.0, 100.0)),
    )
    assert found.dropped == {"out", "by hand"}
    assert found.most("kept") == 100.0
    assert found.most("sound") == (100.0 if unclear else 300.0)
    assert found.cautions() == (
        "Sites that are kept, though they are other where labels are missing: 1.",
    )
