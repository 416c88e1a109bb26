"""Who is in a sum of moments? A row in it has less leverage than a like row that is not.

With the matrix G of a site's sums an attacker who has a row v, features and target, computes

    leverage = v' G^+ v,  and whether v lies in the range of G at all

With fewer rows than features only rows of the site lie in the range. With N rows of F features the
leverage of a row in the sum is z / (1 + z) where a row outside has z, about F / N: with many rows
for each feature nobody can tell.
"""

from __future__ import annotations

import pytest
import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.moments import Moments, RandomFeatures
from predbayes.methods.moments import ENOUGH_ROWS, HeadFromMoments
from predbayes.seeding import generator

FEATURES = RandomFeatures(10, 50, scales=(2.0,))


def people(num, rng):
    inputs = torch.randn(num, 10, generator=rng)
    return inputs, (inputs[:, 0] + torch.randn(num, generator=rng) > 0).long()


def suspicion(gram, inputs, targets):
    """Larger for rows that are more likely in the sum."""
    rows = torch.cat(
        [FEATURES.on_grid(inputs, 2.0), 4096.0 * torch.nn.functional.one_hot(targets, 2)], 1
    )
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
    outside = (rows - rows @ inverse @ gram).square().sum(1) / rows.square().sum(1)
    return -(rows @ inverse * rows).sum(1) - 1e6 * (outside > 1e-6)


def attack(rows_per_feature, rng):
    """AUC of telling members from others, over two sites."""
    num, found = int(rows_per_feature * FEATURES.width), []
    for _ in range(2):
        members, others = people(num, rng), people(num, rng)
        gram = Moments.of(FEATURES, *members, 2).sums[0].double()
        ours, theirs = suspicion(gram, *members), suspicion(gram, *others)
        found.append((ours[:, None] > theirs).double().mean())
    return float(torch.stack(found).mean())


@pytest.mark.parametrize("rows_per_feature", [0.5, 1])
def test_with_no_more_rows_than_features_everybody_is_found(rng, rows_per_feature):
    assert attack(rows_per_feature, rng) > 0.99


def test_with_some_more_rows_members_are_found_more_often_than_not(rng):
    assert attack(2, rng) > 0.65


def test_with_enough_rows_nobody_is_found(rng):
    assert attack(ENOUGH_ROWS, rng) < 0.55


def test_a_site_with_fewer_is_warned(caplog):
    method = HeadFromMoments(2, num_features=50)
    state = method.init(_reference(), rng=generator(0))
    few = people((ENOUGH_ROWS - 1) * FEATURES.width, generator(1))
    method.learn(state, few, few[0][:3], rng=generator(2))
    assert "give rows away" in caplog.text
    caplog.clear()
    enough = people(ENOUGH_ROWS * FEATURES.width, generator(1))
    method.learn(state, enough, few[0][:3], rng=generator(2))
    assert caplog.text == ""


def _reference():
    inputs, targets = people(3, generator(3))
    return ReferenceRows.of((inputs[:0], targets[:0]), unlabelled=inputs)
