"""For how many rows a site counts, whatever it claims."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import Contribution
from predbayes_study.result.comparison import SiteComparison
from predbayes_study.result.schema import Finding
from predbayes_study.result.screening import Screening
from predbayes_study.result.weighing import RowCaps, Screened
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
    assert RowCaps.of(plan, [10, 100, 10**9]) == RowCaps(300.0, 100.0)
    assert RowCaps.of(plan, [100, 10**9]).median == 100.0


def test_with_few_labels_nobody_counts_for_more_than_the_median_site(plan):
    assert RowCaps.of(with_labels(plan, 29), [10, 100, 1000]).most == 100.0
    assert RowCaps.of(with_labels(plan, 30), [10, 100, 1000]).most == 300.0


def test_a_contribution_keeps_the_shares_of_its_classes():
    predictive = Categorical(torch.zeros(4, 2).log_softmax(-1))
    sent = Contribution("x", predictive, 1000, torch.tensor([900.0, 100.0]).double())
    less = sent.limited(300)
    assert less.num_rows == 300
    assert less.class_rows.tolist() == pytest.approx([270.0, 30.0])
    assert sent.limited(1000) is sent


@pytest.mark.parametrize("unclear", [False, True])
def test_who_was_found_against_and_stays_counts_as_the_median_site(unclear):
    lie = (Finding(kind="inconsistent", text="It lies."),)
    screened = {
        "out": Screening(lie, None, leave_out=True),
        "kept": Screening(lie, None, leave_out=False),
        "sound": Screening((), None, leave_out=False),
    }
    found = Screened.of(
        screened, SiteComparison({}, (), unclear), frozenset({"by hand"}), RowCaps(300.0, 100.0)
    )
    assert found.dropped == {"out", "by hand"}
    assert found.most("kept") == 100.0
    assert found.most("sound") == (100.0 if unclear else 300.0)
    assert found.cautions() == (
        "Sites that are kept, though they are other where labels are missing: 1.",
    )
