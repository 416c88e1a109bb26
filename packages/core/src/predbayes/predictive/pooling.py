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
each term is also a weighted mean. Sums add term by term, here or on another machine, and they are
exact (`predbayes.exact`): any order and grouping gives the same bits, and a client that is taken
away is as if it had never been there. There is no zero: without clients there is no predictive.

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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from predbayes.errors import ImproperPoolError, PoolError
from predbayes.exact import LEAST_WEIGHT, WEIGHTS, ExactSum, Grid, Weights, add_weighted_
from predbayes.predictive.families import LOG_PROB_FLOOR, Gaussian, Predictive

P = TypeVar("P", bound=Predictive)
Coordinates = Literal["natural", "moments"]
Weight = float | tuple[float, ...]
"""Of a component: one number, or one for each class."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one site predicts on some rows, and how many rows it learnt from."""

    site: str
    predictive: Predictive
    num_rows: float
    class_rows: Tensor | None = None  # (C,)
    gate: Tensor | None = None  # (B,), log p_k(x) / p_ref(x)
    prior: Predictive | None = None

    @property
    def expert(self) -> Predictive:
        """The predictive as the paper's product sees it."""
        predictive = self.predictive
        return predictive if self.prior is None else predictive.informed(self.prior)

    def limited(self, most: float) -> Self:
        """Return the same with no more rows than these; its classes keep their shares."""
        if self.num_rows <= most:
            return self
        counts = self.class_rows
        scaled = None if counts is None else counts * (most / self.num_rows)
        return replace(self, num_rows=most, class_rows=scaled)

    def at(self, rows: Tensor | slice) -> Self:
        """Return the same on some of the rows."""
        gate = None if self.gate is None else self.gate[rows]
        return replace(self, predictive=self.predictive[rows], gate=gate)

    def summand(self, **options: Any) -> PredictiveSum[Any]:
        """Return the site as a sum of one; the options are those of `PredictiveSum.of`."""
        return PredictiveSum.of(
            self.predictive,
            self.num_rows,
            class_rows=self.class_rows,
            gate=self.gate,
            **options,
        )


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
    weigh: Callable[[Contribution], float | Tensor]
    shift: Callable[[Contribution], Tensor] | None = None
    available: Callable[[Contribution], bool] = lambda client: True  # noqa: ARG005
    adds: bool = False


_LEAST = 2.0**-30  # weight of one that knows nothing


def _information(client: Contribution) -> Tensor:
    """What the client knows about each input, (B, 1)."""
    known: Tensor = client.predictive.information(client.prior).unsqueeze(-1)
    return known


def _can_inform(client: Contribution) -> bool:
    return client.prior is not None or not isinstance(client.predictive, Gaussian)


NATURAL = Term("natural", "natural", lambda client: 1.0)  # noqa: ARG005
MOMENTS = Term("moments", "moments", lambda client: client.num_rows)
ENTROPY = Term(
    "entropy",
    "natural",
    # Numerics: not all weights at an input may be zero.
    lambda client: _information(client).clamp_min(_LEAST),
    available=_can_inform,
)
"""A log pool that listens, at each input, to the clients that know something there."""

ROBUST = Term("robust", "natural", _information, available=_can_inform, adds=True)
"""A product that counts each client, at each input, by what it knows there."""

LOG_POOL = Term("log_pool", "natural", lambda client: client.num_rows)


def _has_class_rows(client: Contribution) -> bool:
    return client.class_rows is not None


def _class_rows(client: Contribution) -> Tensor:
    assert client.class_rows is not None  # see `Term.available`
    return client.class_rows.double()


def _log_base_rates(client: Contribution) -> Tensor:
    """Log shares of the classes among the client's rows, with one row of each added."""
    counts = _class_rows(client) + 1
    return (counts / counts.sum()).log()


CLASS_MIXTURE = Term(
    "class_mixture",
    "moments",
    lambda client: _class_rows(client).clamp_min(_LEAST),  # a class that nobody has seen
    available=_has_class_rows,
)
CORRECTED = Term(
    "corrected",
    "natural",
    lambda client: client.num_rows,
    shift=lambda client: -_log_base_rates(client),
    available=_has_class_rows,
)


def trust(exponent: float) -> Term:
    """A mixture that trusts clients by their epistemic variance v, with weights rows × v^-T.

    v is taken as no less than 1e-4 of the whole variance: nobody is trusted without bound.
    """

    def weigh(client: Contribution) -> Tensor:
        predictive = client.predictive
        assert isinstance(predictive, Gaussian)  # see `Term.available`
        assert predictive.epistemic_var is not None
        least = 1e-4 * predictive.var.double()
        epistemic = predictive.epistemic_var.double().maximum(least)
        return client.num_rows * epistemic.pow(-exponent).unsqueeze(-1)

    return Term(
        f"trust_{exponent:g}",
        "moments",
        weigh,
        available=lambda client: getattr(client.predictive, "epistemic_var", None) is not None,
    )


def gated(exponent: float = 1.0, coordinates: Coordinates = "moments") -> Term:
    """A pool that listens, at each input, to the clients that have rows there.

    Weights are rows × r(x)^T, with r the client's gate: how much denser its own rows lie at x than
    the reference rows do.
    """

    def weigh(client: Contribution) -> Tensor:
        assert client.gate is not None  # see `Term.available`
        return client.num_rows * (exponent * client.gate.double()).exp().unsqueeze(-1)

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


_BATCH = 32  # clients that are added at once
_BATCH_NUMBERS = 2**21  # that they have together, at most

_LOW_FLOOR = -14.0  # of log p
_BOUNDED: dict[Coordinates, Grid] = {"natural": Grid(5, -2, 2), "moments": Grid(1, -2, 2)}
"""Log p to 1.5e-8, p to 1e-9: beyond what an upload in half precision tells."""

_LOW: dict[Coordinates, Grid] = {"natural": Grid(8, -2, 4), "moments": Grid(1, -2, 4)}
"""Likewise to 1e-16 and 9e-19, where the floor is low."""

_UNBOUNDED = Grid(7, -13, 6)  # means, variances, precisions and their powers: 2^-84 to 2^230
_LEAST_MOMENT = 2.0**-60  # below which a sum of probabilities is rounding
_Source = Coordinates | Literal["expert"]


def grids(family: type[Predictive], floor: float) -> dict[Coordinates, Grid]:
    """Return the digits in which coordinates are added."""
    if issubclass(family, Gaussian):
        return {"natural": _UNBOUNDED, "moments": _UNBOUNDED}
    return _LOW if floor < _LOW_FLOOR else _BOUNDED


def _source(term: Term, client: Contribution) -> _Source:
    # Only the paper's product counts a client that knows nothing as the prior.
    differs = term is NATURAL and client.expert is not client.predictive
    return "expert" if differs else term.coordinates


def _coordinates(source: _Source, client: Contribution) -> Tensor:
    predictive = client.expert if source == "expert" else client.predictive
    found: Tensor = predictive.moments() if source == "moments" else predictive.natural()
    return found


def _by_row(shifts: Sequence[Tensor]) -> Tensor:
    """Shifts of clients, of each class or of each row too, as (K, 1 or B, D)."""
    stacked = torch.stack(list(shifts))
    return stacked if stacked.ndim == 3 else stacked.unsqueeze(1)


def _of_numbers(weights: list[list[float]]) -> Weights:
    return Weights.of(torch.tensor(weights, dtype=torch.float64), LEAST_WEIGHT)


def _lifted(term: Term, client: Contribution) -> tuple[Tensor, Tensor]:
    """One client's value (B, D) and weight in a term."""
    values = _coordinates(_source(term, client), client).double()
    if term.shift is not None:
        values = values + term.shift(client)
    weight = torch.as_tensor(term.weigh(client), dtype=torch.float64)
    return values * weight, weight


@dataclass(slots=True)
class _Total:
    """One term over the clients that contribute to it."""

    value: ExactSum  # (B, D)
    weight: ExactSum  # (), (D,) or (B, 1)

    def clone(self) -> _Total:
        return _Total(self.value.clone(), self.weight.clone())

    def at(self, rows: slice | Tensor) -> _Total:
        # (B, 1) weights go with the rows; (D,) weights do not, also where B happens to be D.
        by_row = len(self.weight.shape) == 2
        return _Total(self.value[rows], self.weight[rows] if by_row else self.weight.clone())


@dataclass(slots=True, eq=False, repr=False)
class PredictiveSum(Generic[P]):
    """What a server must remember about the clients seen so far, on fixed inputs.

    The prior is fixed when a client is lifted, because a Gaussian client that knows no more than
    the prior enters the product as the prior; sums with different priors, rows or terms do not add.
    The last few clients are kept as they came, until there are enough to be added at once.

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
    _terms: dict[str, Term]
    _grids: dict[Coordinates, Grid]
    _shape: tuple[int, ...]  # (B, D)
    _waiting: list[Contribution]  # who are counted, but not added yet
    _totals: dict[str, _Total]
    _lacking: Counter[str]  # clients that could not contribute, by term
    _fixed: dict[str, Tensor]  # natural coordinates of components that are no sums

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
        client = Contribution("", predictive.bounded(floor), rows, class_rows, gate, prior)
        natural = client.predictive.natural()
        # Numerics: after the floor a sum is finite if and only if each coordinate is; one
        # reduction is far cheaper than testing every element.
        told = [natural] if gate is None else [natural, gate]
        if not all(math.isfinite(value.sum().item()) for value in told):
            raise PoolError("a client's predictives are not finite; check the upload for NaN")
        named = {term.name: term for term in (*_ALWAYS, *terms)}
        family, shape = type(predictive), tuple(natural.shape)
        digits = grids(family, floor)
        return cls(family, prior, 1, named, digits, shape, [client], {}, Counter(), {})

    @classmethod
    def of_sums(
        cls,
        family: type[P],
        sums: Mapping[str, tuple[ExactSum, ExactSum]],
        num_clients: int,
        *,
        terms: Sequence[Term],
        floor: float = LOG_PROB_FLOOR,
    ) -> PredictiveSum[P]:
        """Return the sum of clients under a flat prior of whom only sums are known.

        Args:
            family: Of their predictives.
            sums: Value and weight of each term, on the digits of `grids`, weighted; terms without
                one are those to which no client contributed.
            num_clients: How many they are.
            terms: As in `of`.
            floor: Likewise.
        """
        named = {term.name: term for term in (*_ALWAYS, *terms)}
        totals = {name: _Total(value, weight) for name, (value, weight) in sums.items()}
        lacking = Counter({name: num_clients for name in named if name not in totals})
        shape = tuple(totals["natural"].value.shape)
        digits = grids(family, floor)
        return PredictiveSum(
            family, None, num_clients, named, digits, shape, [], totals, lacking, {}
        )

    def __len__(self) -> int:
        """The number of reference rows."""
        return self._shape[0]

    def __getitem__(self, rows: slice | Tensor) -> PredictiveSum[P]:
        """The sum restricted to some of the reference rows; slices share memory with this one."""
        totals = {name: total.at(rows) for name, total in self._settled().items()}
        prior, shape = self.prior, totals["natural"].value.shape
        return replace(
            self,
            prior=prior if prior is None or len(prior) == 1 else prior[rows],
            _shape=tuple(shape),
            _totals=totals,
            _lacking=self._lacking.copy(),
            _fixed={name: value[rows] for name, value in self._fixed.items()},
            _waiting=[],
        )

    @property
    def components(self) -> tuple[str, ...]:
        """The names that `component` knows."""
        totals = self._settled()
        sums = (name for name in totals if name not in _RESERVED and not self._lacking[name])
        return ("mixture", "product", *sums, *self._fixed)

    def with_component(self, name: str, predictive: P) -> PredictiveSum[P]:
        """This sum with one more component that is no sum, such as the coordinator's own model.

        It is no summand any more: two such sums do not add.
        """
        if name in self._terms or name in self._fixed or name in _RESERVED:
            raise PoolError(f"this sum has a component {name!r} already")
        fixed = self._fixed | {name: predictive.natural().double()}
        self._settled()
        return replace(self, _fixed=fixed, _waiting=[])

    def add_(self, other: PredictiveSum[P]) -> Self:
        """Add another sum to this one in place; memory does not grow with the number of clients."""
        self._require_same_shape(other)
        self._waiting.extend(other._waiting)
        for name, total in other._totals.items():
            if name in self._totals:
                self._totals[name].value.add_(total.value)
                self._totals[name].weight.add_(total.weight)
            else:
                self._totals[name] = total.clone()
        self._lacking.update(other._lacking)
        self.num_clients += other.num_clients
        if len(self._waiting) >= min(_BATCH, max(1, _BATCH_NUMBERS // math.prod(self._shape))):
            self._settled()
        return self

    def take_away_(self, other: PredictiveSum[P]) -> Self:
        """Take clients away that were added: the bits are those of the sum without them."""
        self._require_same_shape(other)
        if other.num_clients >= self.num_clients:
            raise PoolError("taking these clients away would leave none")
        mine = self._settled()
        for name, total in other._settled().items():
            mine[name].value.take_away_(total.value)
            mine[name].weight.take_away_(total.weight)
        self._lacking.subtract(other._lacking)
        self.num_clients -= other.num_clients
        return self

    def __add__(self, other: PredictiveSum[P]) -> PredictiveSum[P]:
        return self._copy().add_(other)

    def _copy(self) -> PredictiveSum[P]:
        copies = {name: total.clone() for name, total in self._settled().items()}
        return replace(self, _totals=copies, _lacking=self._lacking.copy(), _waiting=[])

    def combined(self, part: PredictiveSum[P], *, sign: int) -> PredictiveSum[P]:
        """Return the sum with a part more, or with a negative sign without it, apart from this one.

        Components that are no sums stay.
        """
        copy = replace(self._copy(), _fixed={})
        changed = copy.add_(part) if sign > 0 else copy.take_away_(part)
        return replace(changed, _fixed=self._fixed)

    def floats(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Each term's value and weight in float64; of one client not rounded to the grid."""
        if self._totals or len(self._waiting) > 1:
            totals = self._settled().items()
            found = {name: (total.value.value(), total.weight.value()) for name, total in totals}
        else:
            client = self._waiting[0]
            found = {n: _lifted(t, client) for n, t in self._terms.items() if t.available(client)}
        return {name: pair for name, pair in found.items() if not self._lacking[name]}

    def with_floats(
        self, terms: Mapping[str, tuple[Tensor, Tensor]], num_clients: int, prior: P | None
    ) -> PredictiveSum[P]:
        """Return a sum of such values and weights, to be looked at: it adds no more."""
        totals = {
            name: _Total(ExactSum.shown(v), ExactSum.shown(w)) for name, (v, w) in terms.items()
        }
        shape = tuple(terms["natural"][0].shape)
        times = shape[0] // len(self)
        fixed = {name: value.repeat(times, 1) for name, value in self._fixed.items()}
        return replace(
            self,
            prior=prior,
            num_clients=num_clients,
            _totals=totals,
            _shape=shape,
            _lacking=Counter(),
            _fixed=fixed,
            _waiting=[],
        )

    def _settled(self) -> dict[str, _Total]:
        """Every term over all clients, those that waited included."""
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), _BATCH):
            for clients, terms in self._able(waiting[start : start + _BATCH]):
                by_source: dict[_Source, list[Term]] = {}
                for term in terms:
                    by_source.setdefault(_source(term, clients[0]), []).append(term)
                for source, among in by_source.items():
                    self._add_terms(source, among, clients)
        return self._totals

    def _able(self, clients: list[Contribution]) -> Iterable[tuple[list[Contribution], list[Term]]]:
        """Clients that can contribute to the same terms, with these; mostly all to all."""
        found: dict[tuple[bool, ...], list[Contribution]] = {}
        for client in clients:
            able = tuple(term.available(client) for term in self._terms.values())
            found.setdefault(able, []).append(client)
        for able, some in found.items():
            told = list(zip(self._terms.items(), able, strict=True))
            self._lacking.update({name: len(some) for (name, _), is_able in told if not is_able})
            yield some, [term for (_, term), is_able in told if is_able]

    def _add_terms(self, source: _Source, terms: list[Term], clients: list[Contribution]) -> None:
        values = torch.stack([_coordinates(source, client) for client in clients])
        numbers: dict[str, list[float]] = {}
        groups: list[tuple[list[ExactSum], Weights]] = []
        for term in terms:
            given = [term.weigh(client) for client in clients]
            shifts = [] if term.shift is None else [term.shift(client) for client in clients]
            if not (isinstance(given[0], Tensor) and given[0].ndim):
                numbers[term.name] = [float(weight) for weight in given]
                total = self._total(term, values.shape[1:], ())
                if shifts:
                    self._add_shifts(total.value, shifts, numbers[term.name])
                continue
            each = torch.stack(given).double()  # type: ignore[arg-type]
            total = self._total(term, values.shape[1:], each.shape[1:])
            wide = each if each.ndim == 3 else each.unsqueeze(1)
            if self._unbounded or shifts:
                total.value.add_many_(values + _by_row(shifts) if shifts else values, wide)
                total.weight.add_many_(each)
                continue
            weights = Weights.of(wide.unsqueeze(0))
            weights.add_to_([total.weight])
            groups.append(([total.value], weights))
        if numbers:
            totals = [self._totals[name] for name in numbers]
            weights = _of_numbers(list(numbers.values()))
            weights.add_to_([total.weight for total in totals])
            groups.append(([total.value for total in totals], weights))
        if groups:
            add_weighted_(groups, values)

    def _add_shifts(self, total: ExactSum, shifts: list[Tensor], weights: list[float]) -> None:
        """Add what is the same at every row, (D,), or not."""
        stacked = torch.stack(shifts)
        sums = ExactSum.zero(total.grid, stacked.shape[1:])
        add_weighted_([([sums], _of_numbers([weights]))], stacked)
        total.add_(sums.expand(total.shape))

    def _total(self, term: Term, shape: Sequence[int], weight_shape: Sequence[int]) -> _Total:
        """The total of a term, which begins at zero."""
        if term.name not in self._totals:
            grid = self._grids[term.coordinates].weighted
            of_weights = grid if self._unbounded and weight_shape else WEIGHTS
            zeros = ExactSum.zero(grid, shape), ExactSum.zero(of_weights, weight_shape)
            self._totals[term.name] = _Total(*zeros)
        return self._totals[term.name]

    @property
    def _unbounded(self) -> bool:
        """Whether weights may be so large or small that only their products are rounded."""
        return issubclass(self.family, Gaussian)

    def product(self) -> P:
        """The Bayesian committee machine (Paper: eq:prod_rule)."""
        return self.family.from_natural(self._proper(self.component("product")))

    def mixture(self) -> P:
        """The row-weighted average of the clients' densities (Paper: eq:mixture_model).

        A mixture of Gaussians is replaced by the Gaussian with its moments.
        """
        return self._from_moments(self._mean("moments"))

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
            natural = self._settled()["natural"].value.value()
            if self.prior is None or self.num_clients == 1:
                return natural
            return natural - (self.num_clients - 1) * self.prior.natural().double()
        if name in self._fixed:
            return self._fixed[name]
        if self._lacking[name]:
            raise PoolError(f"component {name!r} needs what some site did not send")
        if name not in self.components:
            raise PoolError(
                f"this sum has no component {name!r}; it has {', '.join(self.components)}"
            )
        term = self._terms[name]
        if term.adds:
            return self._added(name)
        mean = self._mean(name)
        return self._from_moments(mean).natural() if term.coordinates == "moments" else mean

    def _from_moments(self, mean: Tensor) -> P:
        # Numerics: a probability that is nothing but rounding must not have the logarithm of zero.
        bounded = mean if issubclass(self.family, Gaussian) else mean.clamp_min(_LEAST_MOMENT)
        return self.family.from_moments(bounded)

    def _added(self, name: str) -> Tensor:
        """eta_0 + sum_k a_k (eta_k - eta_0), with a_k the weights of the term."""
        value = self._settled()[name].value.value()
        if self.prior is None:
            return value
        return value + (1 - self.weight(name)) * self.prior.natural().double()

    def weight(self, name: str) -> float | Tensor:
        """The clients' weights in a term, summed: a number, or (B, 1) if they differ by row."""
        totals = self._settled()
        if name not in totals or self._lacking[name]:
            known = ", ".join(name for name in totals if not self._lacking[name])
            raise PoolError(f"this sum has no term {name!r}; it has {known}")
        weight = totals[name].weight.value()
        return weight if weight.ndim else float(weight)

    def _mean(self, name: str) -> Tensor:
        return self._settled()[name].value.value() / self.weight(name)

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
        if self._fixed or other._fixed:
            raise PoolError("a sum with a component that is no sum does not add")
        if self._terms.keys() != other._terms.keys():
            raise PoolError(f"cannot add terms {sorted(other._terms)} to {sorted(self._terms)}")
        if self._grids != other._grids:
            raise PoolError("cannot add sums that were lifted with floors so different")
        if self._shape != other._shape:
            raise PoolError(
                f"cannot add predictives of shape {other._shape} to {self._shape}; all clients "
                "predict on the same reference inputs"
            )
        one, two = self.prior, other.prior
        if one is not two and (
            one is None or two is None or not torch.equal(one.natural(), two.natural())
        ):
            raise PoolError("cannot add sums that were lifted with different priors")
