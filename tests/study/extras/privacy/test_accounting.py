"""Closed forms of Gaussian privacy, against accountants that others wrote."""

from itertools import product

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from predbayes.learning.guarantee import Guarantee
from predbayes_study.extras.privacy.accounting import composed, delta_of, epsilon_of, mu_of, total

DELTA = 1e-5


@pytest.mark.parametrize(("mu", "steps"), [(0.3, 1), (0.925, 10), (2.0, 40)])
def test_epsilon_is_that_of_privacy_loss_distributions(mu, steps):
    deviation = steps**0.5 / mu  # in sensitivities
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(deviation), steps))
    assert epsilon_of(mu, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=0.01)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [*product((0.1, 1.0, 4.0, 50.0), (1e-3, 1e-5, 1e-9))]
)
def test_there_and_back(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta  # rounded to the safe side
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, abs=1e-6)


def test_nothing_told_promises_everything():
    assert delta_of(0.0, 0.0) == 0.0
    assert epsilon_of(0.0, DELTA) == 0.0
    assert composed([]) == 0.0


class TestTotal:
    def test_of_one_is_itself(self):
        one = Guarantee(4.0, DELTA, "replace-one", "person")
        assert total([one], DELTA).epsilon == pytest.approx(4.0, abs=1e-6)
        assert total([one], DELTA).text == one.text

    def test_of_several_is_below_their_sum_and_above_each(self):
        four = Guarantee(4.0, DELTA, "add-or-remove", "row")
        found = total([four, four], DELTA)
        assert 4.0 < found.epsilon < 8.0
        assert (found.adjacency, found.unit) == ("add-or-remove", "row")

    def test_of_two_kinds_is_of_replaced_rows_and_doubles_who_is_added(self):
        replaced = Guarantee(1.0, DELTA, "replace-one", "person")
        added = Guarantee(1.0, DELTA, "add-or-remove", "person")
        found = total([replaced, added], DELTA)
        mu = mu_of(1.0, DELTA)
        assert (found.adjacency, found.unit) == ("replace-one", "row")
        assert found.epsilon == pytest.approx(epsilon_of(5**0.5 * mu, DELTA), abs=1e-6)

    def test_is_as_accountants_compose(self):
        both = [
            Guarantee(1.0, DELTA, "replace-one", "row"),
            Guarantee(3.0, DELTA, "replace-one", "row"),
        ]
        accountant = PLDAccountant()
        for one in both:
            accountant.compose(GaussianDpEvent(1 / mu_of(one.epsilon, one.delta)))
        assert total(both, DELTA).epsilon == pytest.approx(accountant.get_epsilon(DELTA), abs=0.01)
