"""Pooling clients' predictives into one: what a site sends is a summand.

With eta the natural and mu the moment coordinates of a family, clients k = 1..n that learnt from
w_k = |D_k| rows, and a prior predictive eta_0:

    product   eta_prod = sum_k eta_k - (n - 1) eta_0
    mixture   mu_mix   = sum_k w_k mu_k / sum_k w_k
    beta      eta_beta = beta eta_prod + (1 - beta) eta_mix

Paper: eq:prod_rule, eq:var_regr, eq:mean_regr (product); eq:mixture_model, eq:mixture_gaussian
(mixture); eq:interp_model, eq:interp_gaussian (beta).

On fixed inputs all of it is a function of sums over clients. `PredictiveSum` keeps such sums as
named *terms*; a term is a weighted sum of coordinates together with the sum of its weights, so
each term is also a weighted mean. Sums add term by term, in any order and grouping, here or on
another machine. There is no zero: without clients there is no predictive.

Terms beyond the paper's two, each the base of a pool or a component of one (H: entropy, C classes,
n_kc: rows of class c at client k, pi_k: their shares, smoothed):

    log pool        sum_k w_k eta_k / sum_k w_k
    entropy         the same with weights i_k(x): who knows something at this input
    class mixture   sum_k n_kc p_kc / sum_k n_kc: who has seen the class
    corrected       sum_k w_k (log p_k - log pi_k) / sum_k w_k: without the clients' own base rates
    trust T         the mixture with weights w_k v_k(x)^-T, v the epistemic variance
    gated T         the mixture with weights w_k r_k(x)^T, r the client's gate p_k(x) / p_ref(x)
    gated log T     the log pool with the same weights
    robust          eta_0 + sum_k i_k (eta_k - eta_0), with i_k the weights of entropy

With T = 1 and exact gates the gated mixture is what all rows together say (`docs/gates.md`).

What a client knows at an input is i_k(x) = H(prior) - H(p_k(x)) in nats, at least zero: for a
Gaussian 1/2 (log var_0 - log var_k(x)). The mean with these weights, *entropy*, is the generalised
product of experts (Cao and Fleet, 2014); the sum, *robust*, the robust Bayesian committee machine
(Deisenroth and Ng, 2015). Both fade continuously as a client comes to know no more than the prior,
and no client takes precision away: robust is proper wherever the prior is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from predbayes.errors import ImproperPoolError, PoolError
from predbayes.predictive.families import LOG_PROB_FLOOR, Gaussian, Predictive

P = TypeVar("P", bound=Predictive)
Coordinates = Literal["natural", "moments"]
_Kind = Coordinates | Literal["added", "fixed"]  # natural, added to the prior, or of what is no sum
Weight = float | tuple[float, ...]
"""Of a component: one number, or one for each class."""


@dataclass(frozen=True, slots=True)
class Client(Generic[P]):
    """One client as the terms see it: its predictive and how many rows it learnt from."""

    predictive: P
    rows: float
    class_rows: Tensor | None = None  # (C,)
    gate: Tensor | None = None  # (B,), log p_k(x) / p_ref(x)
    prior: P | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """An additive term: which coordinates of the clients are summed, and with what weights.

    Args:
        name: What the component is called.
        coordinates: Which are summed.
        weigh: Gives a number, or a tensor that broadcasts against (B, D): (B, 1) for weights that
            depend on the input, (D,) for weights that depend on the class.
        shift: Gives what is added to a client's coordinates first.
        available: Whether a client can contribute; if one cannot, the sum is without this term.
        adds: Whether the component is the prior and the sum of what clients add to it, of natural
            coordinates, and not the mean over clients.
    """

    name: str
    coordinates: Coordinates
    weigh: Callable[[Client[Any]], float | Tensor]
    shift: Callable[[Client[Any]], Tensor] | None = None
    available: Callable[[Client[Any]], bool] = lambda client: True  # noqa: ARG005
    adds: bool = False


def _information(client: Client[Any]) -> Tensor:
    """What the client knows about each input, (B, 1)."""
    known: Tensor = client.predictive.information(client.prior).unsqueeze(-1)
    return known


def _can_inform(client: Client[Any]) -> bool:
    return client.prior is not None or not isinstance(client.predictive, Gaussian)


NATURAL = Term("natural", "natural", lambda client: 1.0)  # noqa: ARG005
MOMENTS = Term("moments", "moments", lambda client: client.rows)
ENTROPY = Term(
    "entropy",
    "natural",
    # Numerics: not all weights at an input may be zero.
    lambda client: _information(client).clamp_min(1e-9),
    available=_can_inform,
)
"""A log pool that listens, at each input, to the clients that know something there."""

ROBUST = Term("robust", "natural", _information, available=_can_inform, adds=True)
"""A product that counts each client, at each input, by what it knows there."""

LOG_POOL = Term("log_pool", "natural", lambda client: client.rows)


def _has_class_rows(client: Client[Any]) -> bool:
    return client.class_rows is not None


def _class_rows(client: Client[Any]) -> Tensor:
    assert client.class_rows is not None  # see `Term.available`
    return client.class_rows.double()


def _log_base_rates(client: Client[Any]) -> Tensor:
    """Log shares of the classes among the client's rows, with one row of each added."""
    counts = _class_rows(client) + 1
    return (counts / counts.sum()).log()


CLASS_MIXTURE = Term(
    "class_mixture",
    "moments",
    lambda client: _class_rows(client).clamp_min(1e-9),  # a class that nobody has seen
    available=_has_class_rows,
)
CORRECTED = Term(
    "corrected",
    "natural",
    lambda client: client.rows,
    shift=lambda client: -_log_base_rates(client),
    available=_has_class_rows,
)


def trust(exponent: float) -> Term:
    """A mixture that trusts clients by their epistemic variance v, with weights rows × v^-T.

    v is taken as no less than 1e-4 of the whole variance: nobody is trusted without bound.
    """

    def weigh(client: Client[Gaussian]) -> Tensor:
        predictive = client.predictive
        assert predictive.epistemic_var is not None  # see `Term.available`
        least = 1e-4 * predictive.var.double()
        epistemic = predictive.epistemic_var.double().maximum(least)
        return client.rows * epistemic.pow(-exponent).unsqueeze(-1)

    return Term(
        f"trust_{exponent:g}",
        "moments",
        weigh,
        available=lambda client: client.predictive.epistemic_var is not None,
    )


def gated(exponent: float = 1.0, coordinates: Coordinates = "moments") -> Term:
    """A pool that listens, at each input, to the clients that have rows there.

    Weights are rows × r(x)^T, with r the client's gate: how much denser its own rows lie at x than
    the reference rows do.
    """

    def weigh(client: Client[Any]) -> Tensor:
        assert client.gate is not None  # see `Term.available`
        return client.rows * (exponent * client.gate.double()).exp().unsqueeze(-1)

    return Term(
        gated_name(exponent, coordinates),
        coordinates,
        weigh,
        available=lambda client: client.gate is not None,
    )


def gated_name(exponent: float = 1.0, coordinates: Coordinates = "moments") -> str:
    """Return what the component is called that is gated with this exponent."""
    name = "gated" if coordinates == "moments" else "gated_log"
    return name if exponent == 1 else f"{name}_{exponent:g}"


_ALWAYS = (NATURAL, MOMENTS)
_RESERVED = {"natural", "moments", "mixture", "product"}


@dataclass(slots=True, eq=False, repr=False)
class PredictiveSum(Generic[P]):
    """What a server must remember about the clients seen so far, on fixed inputs.

    Coordinates enter in the precision in which they came and are accumulated in float64. The prior
    is fixed when a client is lifted, because a Gaussian client that knows no more than the prior
    enters the product as the prior; sums with different priors, rows or terms do not add.

    Examples:
        >>> from predbayes.predictive.families import Categorical
        >>> certain = Categorical.from_moments(torch.tensor([[0.9, 0.1]]))
        >>> unsure = Categorical.from_moments(torch.tensor([[0.5, 0.5]]))
        >>> total = PredictiveSum.of(certain).add_(PredictiveSum.of(unsure))
        >>> [round(float(total.pool(beta).moments()[0, 0]), 3) for beta in (0.0, 0.5, 1.0)]
        [0.7, 0.821, 0.9]
    """

    family: type[P]
    prior: P | None
    num_clients: int
    _values: dict[str, Tensor]
    _weights: dict[str, float | Tensor]
    _kinds: dict[str, _Kind]
    _lacking: frozenset[str]  # terms to which some client could not contribute

    @classmethod
    def of(
        cls,
        predictive: P,
        rows: float = 1.0,
        *,
        class_rows: Tensor | None = None,
        gate: Tensor | None = None,
        prior: P | None = None,
        terms: Sequence[Term] = (),
        floor: float = LOG_PROB_FLOOR,
    ) -> Self:
        """Lift one client.

        Args:
            predictive: The client's predictives on the reference inputs.
            rows: The client's weight in the mixture, |D_k| in the paper.
            class_rows: Rows per class, for terms that weigh by class.
            gate: Log density ratio at each reference input, for terms that are gated.
            prior: The prior predictive, one row or as many as ``predictive``; None is a flat prior.
            terms: Terms to keep beside the two that every sum has.
            floor: Least log-probability of a client.
        """
        if rows <= 0:
            raise PoolError(f"a client must have learnt from a positive number of rows, not {rows}")
        if prior is not None and type(prior) is not type(predictive):
            raise PoolError(
                f"the prior is {type(prior).__name__}, the predictive {type(predictive).__name__}"
            )
        clash = {term.name for term in terms} & _RESERVED
        if clash:
            raise PoolError(f"a term may not be called {sorted(clash)[0]!r}: every sum has that")
        if gate is not None and gate.shape != (len(predictive),):
            raise PoolError(
                f"a gate has one number per row, {len(predictive)} of them, not {tuple(gate.shape)}"
            )
        client = Client(predictive.bounded(floor), rows, class_rows, gate, prior)
        expert = client.predictive if prior is None else client.predictive.informed(prior)
        values: dict[str, Tensor] = {}
        weights: dict[str, float | Tensor] = {}
        given = [term for term in (*_ALWAYS, *terms) if term.available(client)]
        for term in given:
            # Only the paper's product counts a client that knows nothing as the prior.
            source = expert if term is NATURAL else client.predictive
            coordinates = source.natural() if term.coordinates == "natural" else source.moments()
            if term.shift is not None:
                coordinates = coordinates + term.shift(client)
            weight = term.weigh(client)
            # Only one term may keep the tensor itself: accumulators must not share memory.
            values[term.name] = coordinates if term is NATURAL else coordinates * weight
            weights[term.name] = weight.double() if isinstance(weight, Tensor) else weight
        # Numerics: after the floor a sum is finite if and only if each coordinate is; one
        # reduction is far cheaper than testing every element.
        if not all(math.isfinite(value.sum().item()) for value in values.values()):
            raise PoolError("a client's predictives are not finite; check the upload for NaN")
        kinds: dict[str, _Kind] = {
            term.name: "added" if term.adds else term.coordinates for term in given
        }
        lacking = frozenset(term.name for term in terms) - kinds.keys()
        return cls(type(predictive), prior, 1, values, weights, kinds, lacking)

    def __len__(self) -> int:
        """The number of reference rows."""
        return self._values["natural"].shape[0]

    def __getitem__(self, rows: slice | Tensor) -> PredictiveSum[P]:
        """The sum restricted to some of the reference rows; slices share memory with this one."""

        def of_rows(weight: float | Tensor) -> float | Tensor:
            # (B, 1) weights go with the rows; (D,) weights do not, also where B happens to be D.
            return weight[rows] if isinstance(weight, Tensor) and weight.ndim == 2 else weight

        prior = self.prior
        return replace(
            self,
            prior=prior if prior is None or len(prior) == 1 else prior[rows],
            _values={name: value[rows] for name, value in self._values.items()},
            _weights={name: of_rows(weight) for name, weight in self._weights.items()},
        )

    @property
    def components(self) -> tuple[str, ...]:
        """The names that `component` knows."""
        return ("mixture", "product", *(name for name in self._values if name not in _RESERVED))

    def with_component(self, name: str, predictive: P) -> PredictiveSum[P]:
        """This sum with one more component that is no sum, such as the coordinator's own model.

        It is no summand any more: two such sums do not add.
        """
        if name in self._values or name in _RESERVED:
            raise PoolError(f"this sum has a component {name!r} already")
        return replace(
            self,
            _values=self._values | {name: predictive.natural().double()},
            _weights=self._weights | {name: 1.0},
            _kinds=self._kinds | {name: "fixed"},
        )

    def add_(self, other: PredictiveSum[P]) -> Self:
        """Add another sum to this one in place; memory does not grow with the number of clients."""
        self._require_same_shape(other)
        self._lacking |= other._lacking
        for name in self._lacking & self._values.keys():
            del self._values[name], self._weights[name]
        for name in self._values:
            value = other._values[name]
            # The first addition widens the accumulator; float32 clients are never widened first.
            self._values[name] = self._values[name].double().add_(value)
            self._weights[name] = self._weights[name] + other._weights[name]
        self.num_clients += other.num_clients
        return self

    def __add__(self, other: PredictiveSum[P]) -> PredictiveSum[P]:
        copies = {name: value.clone() for name, value in self._values.items()}
        return replace(self, _values=copies, _weights=dict(self._weights)).add_(other)

    def product(self) -> P:
        """The Bayesian committee machine (Paper: eq:prod_rule)."""
        return self.family.from_natural(self._proper(self.component("product")))

    def mixture(self) -> P:
        """The row-weighted average of the clients' densities (Paper: eq:mixture_model).

        A mixture of Gaussians is replaced by the Gaussian with its moments.
        """
        return self.family.from_moments(self._mean("moments"))

    def pool(self, weights: float | Mapping[str, Weight]) -> P:
        """A log-linear pool of components: a number is the paper's beta (Paper: eq:interp_model).

        Args:
            weights: Weight by component: ``"mixture"``, ``"product"``, or the name of a further
                term; several numbers are one for each class. ``beta`` stands for
                ``{"mixture": 1 - beta, "product": beta}``.
        """
        if not isinstance(weights, Mapping):
            weights = {"mixture": 1.0 - weights, "product": float(weights)}
        # A component of weight zero is left out, so that it may be improper.
        parts = [
            torch.as_tensor(weight, dtype=torch.float64) * self.component(name)
            for name, weight in weights.items()
            if weight
        ]
        if not parts:
            raise PoolError(
                "every weight of the pool is zero; give at least one component a weight"
            )
        return self.family.from_natural(self._proper(torch.stack(parts).sum(0)))

    def component(self, name: str) -> Tensor:
        """Natural coordinates (B, D) of one component of a pool, in float64."""
        if name == "mixture":
            return self.mixture().natural()
        if name == "product":
            natural = self._values["natural"].double()
            if self.prior is None or self.num_clients == 1:
                return natural
            return natural - (self.num_clients - 1) * self.prior.natural().double()
        if name in self._lacking:
            raise PoolError(f"component {name!r} needs what some site did not send")
        if name not in self.components:
            raise PoolError(
                f"this sum has no component {name!r}; it has {', '.join(self.components)}"
            )
        if self._kinds[name] == "added":
            return self._added(name)
        mean = self._mean(name)
        if self._kinds[name] == "moments":
            return self.family.from_moments(mean).natural()
        return mean

    def _added(self, name: str) -> Tensor:
        """eta_0 + sum_k a_k (eta_k - eta_0), with a_k the weights of the term."""
        value = self._values[name].double()
        if self.prior is None:
            return value
        return value + (1 - self._weights[name]) * self.prior.natural().double()

    def weight(self, name: str) -> float | Tensor:
        """The clients' weights in a term, summed: a number, or (B, 1) if they differ by row."""
        if name not in self._weights:
            raise PoolError(f"this sum has no term {name!r}; it has {', '.join(self._weights)}")
        return self._weights[name]

    def _mean(self, name: str) -> Tensor:
        return self._values[name].double() / self._weights[name]

    def _proper(self, natural: Tensor) -> Tensor:
        if not self.family.is_proper(natural):
            raise ImproperPoolError(
                "this pool is not a distribution at some input; give the clients a prior, or keep "
                "beta between 0 and 1"
            )
        return natural

    def _require_same_shape(self, other: PredictiveSum[P]) -> None:
        if self.family is not other.family:
            raise PoolError(f"cannot pool {self.family.__name__} with {other.family.__name__}")
        if "fixed" in {*self._kinds.values(), *other._kinds.values()}:
            raise PoolError("a sum with a component that is no sum does not add")
        lacking = self._lacking | other._lacking
        if self._values.keys() - lacking != other._values.keys() - lacking:
            raise PoolError(f"cannot add terms {sorted(other._values)} to {sorted(self._values)}")
        for name in self._values.keys() - lacking:
            shape, others = self._values[name].shape, other._values[name].shape
            if shape != others:
                raise PoolError(
                    f"cannot add predictives of shape {tuple(others)} to {tuple(shape)}; all "
                    "clients predict on the same reference inputs"
                )
        if self.prior is not other.prior and not _same_prior(self.prior, other.prior):
            raise PoolError("cannot add sums that were lifted with different priors")


def _same_prior(first: Predictive | None, second: Predictive | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first.natural(), second.natural())
