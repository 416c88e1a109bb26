"""Who is in a sum of moments? A row in it has less leverage than a like row that is not.

With the matrix G of a site's sums an attacker who has a row v, features and target, computes

    leverage = v' G^+ v,  and whether v lies in the range of G at all

With fewer rows than features only rows of the site lie in the range. With N rows of F features the
leverage of a row in the sum is z / (1 + z) where a row outside has z, about F / N: with many rows
for each feature it tells nothing.

A stronger attacker has many like rows of his own. Every product of two features is a sum over the
site's rows, so with K the kernel (v'w)^2 of products he asks how much a row explains of what the
sums differ by from their expectation:

    t = <v v', G - N E> less what like rows explain of it, over its standard deviation

That is left of a sum of any number of rows; it falls slowly.
"""

from __future__ import annotations

import pytest
import torch

from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes.learning.moments import Moments, RandomFeatures
from predbayes.seeding import generator
from predbayes_study.extras.moments.payload import MomentSums
from predbayes_study.plan.schema import Plan

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


def products(inputs, targets, weights=1.0):
    """Features and target of rows; with their weights each is about 1 in the square."""
    hot = torch.nn.functional.one_hot(targets, 2)
    return torch.cat([FEATURES.on_grid(inputs, 2.0) / 4096, hot.double()], 1) * weights


def attack_by_products(rows_per_feature, rng, num_own=1000, num_tried=400):
    """AUC of the stronger attacker."""
    num = rows_per_feature * FEATURES.width
    members, others = people(num, rng), people(num_tried, rng)
    own = people(num_own, rng)
    weights = products(*own).square().mean(0).sqrt().clamp_min(1e-6).reciprocal()
    gram = Moments.of(FEATURES, *members, 2).sums[0] / 2.0**24 * weights[:, None] * weights
    like = products(*own, weights)
    tried = torch.cat(
        [products(x[:num_tried], y[:num_tried], weights) for x, y in (members, others)]
    )
    kernel, across = (like @ like.T).square(), (tried @ like.T).square()
    found = ((like @ gram) * like).sum(1) - num * kernel.mean(1)
    of_tried = ((tried @ gram) * tried).sum(1) - num * across.mean(1)
    ridge = 0.01 * kernel.diagonal().mean() * torch.eye(num_own, dtype=torch.float64)
    explained = torch.linalg.solve(kernel + ridge, across.T)
    spread = tried.square().sum(1).square() - (explained.T * across).sum(1)
    told = (of_tried - explained.T @ found) / spread.clamp_min(1e-9).sqrt()
    return float((told[:num_tried, None] > told[num_tried:]).double().mean())


@pytest.mark.parametrize("rows_per_feature", [0.5, 1])
def test_with_no_more_rows_than_features_everybody_is_found(rng, rows_per_feature):
    assert attack(rows_per_feature, rng) > 0.99


def test_with_some_more_rows_members_are_found_more_often_than_not(rng):
    assert attack(2, rng) > 0.65


def test_with_enough_rows_leverage_finds_nobody(rng):
    assert attack(ENOUGH_ROWS, rng) < 0.55


def test_who_has_many_like_rows_tells_a_little(rng):
    """Neither nothing, as pages must not say, nor much; the standard error is .02."""
    assert 0.53 < attack_by_products(ENOUGH_ROWS, rng) < 0.7


class TestListedKinds:
    """Columns of few values: all kinds of rows can be listed, and sums are solved for each."""

    PLAN = """
format = 1
name = "few"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
stage = { type = "number", unit = "1", centre = 4, scale = 2 }
grade = { type = "number", unit = "1", centre = 2, scale = 1 }
[reference]
[moments]
features = 60
scales = [2]
"""

    @pytest.fixture
    def rows(self):
        """1,300 rows of forty kinds, of one of which there is a single row, who is ill."""
        rng = generator(0, "kinds")
        kinds = torch.cartesian_prod(torch.arange(8.0), torch.arange(5.0))
        chosen = torch.cat([torch.randint(39, (1299,), generator=rng), torch.tensor([39])])
        targets = torch.randint(2, (1300,), generator=rng)
        targets[-1] = 1
        return (kinds - torch.tensor([4.0, 2.0])) / torch.tensor([2.0, 1.0]), chosen, targets

    def test_who_lists_them_reads_the_target_of_a_single_row(self, rows):
        kinds, chosen, targets = rows
        features = RandomFeatures(2, 60, scales=(2.0,))
        sums = Moments.of(features, kinds[chosen], targets, 2).sums[0].double()
        phi = features.on_grid(kinds, 2.0)
        by_class = torch.linalg.lstsq(phi.T, sums[:63, 63:] / 2**12, driver="gelsd").solution
        assert by_class[39].round().tolist() == [0, 1]

    def test_such_rows_are_refused_and_more_of_each_kind_are_not(self, rows):
        kinds, chosen, targets = rows
        plan = Plan.loads(self.PLAN)
        why = MomentSums().why_refused(plan, (kinds[chosen], targets), 5)
        assert "all kinds of rows can be listed" in why
        assert not MomentSums().why_refused(plan, (kinds[chosen[:-1]], targets[:-1]), 5)

    def test_a_scale_that_makes_two_values_of_every_number_is_no_way_round(self, rng):
        plan = Plan.loads(self.PLAN.replace("scale = 2 }", "scale = 1e-6 }"))
        inputs = torch.randn(1300, 2, generator=rng)
        inputs[:, 0] = 8 * inputs[:, 0].sign()
        inputs[:, 1] = (2 * inputs[:, 1]).round().clamp(-3, 3)
        inputs[:20, 1], inputs[0] = 0, torch.tensor([8.0, 4.0])
        inputs[1:10] = torch.tensor([-8.0, 4.0])
        targets = torch.randint(2, (1300,), generator=rng)
        why = MomentSums().why_refused(plan, (inputs, targets), 5)
        assert "all kinds of rows can be listed" in why

    @pytest.mark.parametrize(
        ("features", "scales", "found"),
        [(10, [0.1, 0.3, 1.0], 144), (10, [0.02], 100), (6, [0.1, 0.3, 1.0], 144)],
    )
    def test_several_scales_or_fewer_sums_than_kinds_are_no_way_round(
        self, features, scales, found
    ):
        """Kinds are more than the sums of one scale: other scales or whole numbers tell."""
        side = int(found**0.5)
        text = self.PLAN.replace("features = 60", f"features = {features}")
        plan = Plan.loads(text.replace("scales = [2]", f"scales = {scales}"))
        steps = torch.arange(float(side))
        kinds = (torch.cartesian_prod(steps, steps) - side / 2) / (side / 3)
        chosen = torch.cat(
            [torch.arange(found - 1).repeat_interleave(6), torch.tensor([found - 1])]
        )
        targets = torch.randint(2, (len(chosen),), generator=generator(0, "targets"))
        why = MomentSums().why_refused(plan, (kinds[chosen], targets), 5)
        assert "all kinds of rows can be listed" in why
        enough = chosen[:-1], targets[:-1]
        assert not MomentSums().why_refused(plan, (kinds[enough[0]], enough[1]), 5)

    def test_who_has_several_scales_counts_the_rows_of_each_kind(self):
        """There are 144 kinds, and 91 sums of each scale."""
        steps = torch.arange(12.0)
        kinds = (torch.cartesian_prod(steps, steps) - 6) / 4
        counts = torch.full((144,), 6)
        counts[143] = 1
        chosen = torch.arange(144).repeat_interleave(counts)
        features = RandomFeatures(2, 10, scales=(0.1, 0.3, 1.0))
        moments = Moments.of(features, kinds[chosen], chosen % 2, 2)
        rows, columns = torch.triu_indices(features.width, features.width)
        of_kinds = [features.on_grid(kinds, scale) for scale in features.scales]
        products = torch.cat([(phi[:, rows] * phi[:, columns]).T for phi in of_kinds]) / 2**24
        told = torch.cat([sums[rows, columns] for sums in moments.sums]).double() / 2**24
        found = torch.linalg.lstsq(products, told[:, None], driver="gelsd").solution[:, 0]
        assert torch.equal(found.round().long(), counts)

    def test_numbers_that_are_hardly_listed_are_summed(self, rng):
        """Rows of two measured numbers: of far more kinds than sums can tell."""
        text = self.PLAN.replace("features = 60", "features = 12")
        inputs = (torch.randn(900, 2, generator=rng) * 100).round() / 100
        targets = torch.randint(2, (900,), generator=rng)
        assert not MomentSums().why_refused(Plan.loads(text), (inputs, targets), 5)
