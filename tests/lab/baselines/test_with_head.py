"""A head from moments as a candidate of the selected pool: taken where it helps, else not."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import Hazards
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner
from predbayes.pools.auto import AutoPool
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import HEAD, TERMS, candidates
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_lab.baselines.moments import ENOUGH_ROWS, HeadFromMoments, head_for

NUM = 400


def world(family):
    """Three vague sites on labelled rows, and what would predict them well."""
    rng = generator(0, "head")
    x = torch.randn(NUM, generator=rng)
    noise = torch.randn(3, NUM, generator=rng)
    if family is Gaussian:
        targets = x + 0.3 * torch.randn(NUM, generator=rng)
        good = Gaussian(x, torch.full((NUM,), 0.09))
        sites = [Gaussian(n, torch.full((NUM,), 2.0)) for n in noise]
        return targets, good, sites
    logits = torch.stack([3 * x, -3 * x], 1)
    targets = torch.distributions.Categorical(logits=logits).probs[:, 1]
    targets = (torch.rand(NUM, generator=rng) < targets).long()
    sites = [Categorical(torch.stack([0.3 * n, -0.3 * n], 1).log_softmax(1)) for n in noise]
    return targets, Categorical(logits.log_softmax(1)), sites


def pooled(family, head, targets, sites):
    reference = ReferenceRows.of((torch.zeros(NUM, 1), targets))
    pool = AutoPool(head=head)
    state = pool.init(reference)
    total = fold(pool.lift(state, Contribution(f"s{k}", p, 100)) for k, p in enumerate(sites))
    return pool.finish(state, total, reference, rng=generator(1))


@pytest.mark.parametrize("family", [Categorical, Gaussian])
def test_a_good_head_is_taken_and_a_useless_one_does_no_harm(family):
    targets, good, sites = world(family)
    bare = pooled(family, None, targets, sites)
    taken = pooled(family, good, targets, sites)
    assert "head" in taken.choice.name
    assert nll(taken.predictive, targets) < 0.8 * nll(bare.predictive, targets)
    useless = pooled(family, sites[0], targets, sites)
    assert nll(useless.predictive, targets) < 1.01 * nll(bare.predictive, targets)


@pytest.mark.parametrize("family", [Categorical, Gaussian])
def test_without_a_head_no_candidate_has_one(family):
    _, good, sites = world(family)
    site = Contribution("s", sites[0], 100).summand(prior=None, terms=TERMS[family])
    assert not [spec for spec in candidates(site) if HEAD in spec.components]
    with_head = candidates(site.with_component(HEAD, good))
    assert [spec for spec in with_head if HEAD not in spec.components] == candidates(site)
    assert [spec for spec in with_head if HEAD in spec.components]


def test_a_head_is_not_for_times():
    with pytest.raises(TrainingError):
        head_for(SGDLearner(Network.mlp(3, Hazards(2)), OptimizerSettings()))


def test_a_site_with_few_rows_for_a_head_is_warned(caplog):
    method, rng = HeadFromMoments(2, num_features=50), generator(0)
    inputs = torch.randn(4000, 10, generator=rng)
    targets = (inputs[:, 0] > 0).long()
    reference = ReferenceRows.of((inputs[:0], targets[:0]), unlabelled=inputs[:3])
    state = method.init(reference, rng=rng)
    enough = ENOUGH_ROWS * state.features.width
    for num, warned in ((enough - 1, True), (enough, False)):
        caplog.clear()
        method.learn(state, (inputs[:num], targets[:num]), inputs[:3], rng=rng)
        assert ("give rows away" in caplog.text) is warned
