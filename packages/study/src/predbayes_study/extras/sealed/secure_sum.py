"""From one site's predictives to words of 64 bits, and from summed words to the sum of all sites.

    to_words      lift the site into its terms, round each number to whole units: (W,) int64
    from_words    the words of n sites, added modulo 2^64, as a `PredictiveSum` like any other

Where the words lie and why they cannot wrap is in `fixed_point`. Rounding and adding
are those of `predbayes.exact`: a word is the digits of an exact sum of one site, read as one whole
number, and a sum of words goes back into exact sums without a further rounding. So the
coordinator's own model is added to it as to any sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.exact import WEIGHTS, ExactSum, Grid
from predbayes.predictive.families import Categorical, Survival
from predbayes.predictive.pooling import (
    CLASS_MIXTURE,
    CORRECTED,
    ENTROPY,
    LOG_POOL,
    Contribution,
    PredictiveSum,
    grids,
)
from predbayes.predictive.selection import CATEGORICAL_TERMS, SURVIVAL_TERMS
from predbayes_study.extras.sealed.fixed_point import (
    BASE_RATES,
    CLASS_ROWS,
    INFORMATION,
    ROWS,
    FixedPoint,
    Part,
)

_PLACES = 3  # before the last, of 15 bits each: room for 62 bits
_HALF = 32  # bits of a word that are turned into floats at a time


def to_words(
    form: FixedPoint,
    predictive: Categorical | Survival,
    num_rows: float,
    class_rows: Tensor | None = None,
) -> Tensor:
    """Return one site's terms as words (W,).

    Args:
        form: Where they lie.
        predictive: On the reference rows.
        num_rows: Rows that the site learnt from; it counts for no more than the form's.
        class_rows: Of each class, (C,); they keep their shares. A time to an event has none.
    """
    _require_rows(form, predictive)
    counted = min(float(num_rows), float(form.max_rows))
    if isinstance(predictive, Survival):
        told = _of_times(form, predictive, counted)
    else:
        assert class_rows is not None  # as every site has them
        told = _of_classes(form, predictive, counted, class_rows.double() * (counted / num_rows))
    told |= {ROWS: torch.tensor(counted, dtype=torch.float64)}
    return torch.cat([_rounded(part, told[part.name]) for part in form.parts])


def _of_times(form: FixedPoint, predictive: Survival, counted: float) -> dict[str, Tensor]:
    """The terms of a time to an event by name."""
    terms = (LOG_POOL, ENTROPY)
    lifted = PredictiveSum.of(predictive, counted, terms=terms, floor=form.floor).floats()
    return {name: value for name, (value, _) in lifted.items()} | {
        INFORMATION: lifted["entropy"][1]
    }


def _of_classes(
    form: FixedPoint, predictive: Categorical, counted: float, class_rows: Tensor
) -> dict[str, Tensor]:
    """The terms of classes by name."""
    terms = (LOG_POOL, ENTROPY, CLASS_MIXTURE)
    lifted = PredictiveSum.of(
        predictive, counted, class_rows=class_rows, terms=terms, floor=form.floor
    ).floats()
    assert CORRECTED.shift is not None
    shift = CORRECTED.shift(Contribution("", predictive, counted, class_rows))
    return {name: value for name, (value, _) in lifted.items()} | {
        INFORMATION: lifted["entropy"][1],
        CLASS_ROWS: lifted["class_mixture"][1],
        BASE_RATES: counted * shift,
    }


def _require_rows(form: FixedPoint, predictive: Categorical | Survival) -> None:
    outputs = "intervals" if form.survival else "classes"
    family = Survival if form.survival else Categorical
    shape = (form.num_rows, form.num_classes)
    if not isinstance(predictive, family) or predictive.natural().shape != shape:
        raise PoolError(f"these are not predictions of the plan's {outputs} on all reference rows")


def _rounded(part: Part, values: Tensor) -> Tensor:
    if values.shape != part.shape or not float(values.abs().max()) <= part.largest:
        raise PoolError(f"the term {part.name!r} is beyond what the plan allows")
    digits = ExactSum.of(values.unsqueeze(0), Grid(part.exponent, -_PLACES, 0)).digits
    word = digits[0]
    for digit in digits[1:]:
        word = (word << 15) + digit
    return word.reshape(-1)


def from_words(form: FixedPoint, words: Tensor, num_sites: int) -> PredictiveSum[Any]:
    """Return the sum of so many sites, of which nothing but the sum of their words is known."""
    if words.shape != (form.size,) or words.dtype != torch.int64:
        raise PoolError(f"a sum of this plan has {form.size:,} words")
    if not 0 < num_sites <= form.max_sites:
        raise PoolError(f"{num_sites:,} sites are more than max_sites = {form.max_sites:,}")
    sizes = [part.size for part in form.parts]
    found = {
        part.name: (part, some.view(part.shape))
        for part, some in zip(form.parts, torch.split(words, sizes), strict=True)
    }
    for part, some in found.values():
        _require_possible(part, some, num_sites)
    return _total(form, found, num_sites)


def _require_possible(part: Part, words: Tensor, num_sites: int) -> None:
    """Refuse sums that no sites within the plan's bounds have: masks that do not belong to them."""
    most = num_sites * (part.largest / 2.0**part.exponent + 1)
    if float(words.double().abs().max()) > most:
        raise PoolError(
            f"the opened sum of {part.name!r} is beyond what {num_sites:,} sites can have: the "
            "masks are not those of these uploads"
        )


def _total(
    form: FixedPoint, found: Mapping[str, tuple[Part, Tensor]], num_sites: int
) -> PredictiveSum[Any]:
    family = Survival if form.survival else Categorical
    of = grids(family, form.floor)

    def summed(name: str, grid: Grid) -> ExactSum:
        part, words = found[name]
        return _exact(words, part.exponent, grid)

    natural, moments = of["natural"].weighted, of["moments"].weighted
    sites = ExactSum.of(torch.full((1,), float(num_sites), dtype=torch.float64), WEIGHTS)
    sums = {
        "natural": (summed("natural", natural), sites),
        "moments": (summed("moments", moments), summed(ROWS, WEIGHTS)),
        "log_pool": (summed("log_pool", natural), summed(ROWS, WEIGHTS)),
        "entropy": (summed("entropy", natural), summed(INFORMATION, WEIGHTS)),
    }
    if form.survival:
        return PredictiveSum.of_sums(
            Survival, sums, num_sites, terms=SURVIVAL_TERMS, floor=form.floor
        )
    shifts = summed(BASE_RATES, natural)
    corrected = summed("log_pool", natural)
    corrected.add_(shifts.expand(corrected.shape))
    sums |= {
        "class_mixture": (summed("class_mixture", moments), summed(CLASS_ROWS, WEIGHTS)),
        "corrected": (corrected, summed(ROWS, WEIGHTS)),
    }
    return PredictiveSum.of_sums(
        Categorical, sums, num_sites, terms=CATEGORICAL_TERMS, floor=form.floor
    )


def _exact(words: Tensor, exponent: int, grid: Grid) -> ExactSum:
    """A word is two floats without rounding: its upper and its lower half."""
    upper = words >> _HALF
    lower = words - (upper << _HALF)
    unit = 2.0**exponent
    halves = torch.stack([upper.double() * (unit * 2.0**_HALF), lower.double() * unit])
    return ExactSum.of(halves, grid)
