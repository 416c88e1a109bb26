r"""Do sites agree on how right the stated risks are? Asked before anything is said of their mean.

A mean over sites hides that risks are too extreme at some and not spread out enough at others, or
too high at some and too low at others. Each site that counts sends its calibration slope and
intercept x_k with the variance v_k. If all sites are alike,

    Q = sum_k (x_k - m)^2 / v_k,    m = sum_k (x_k / v_k) / sum_k (1 / v_k),

is chi-squared with one degree of freedom less than there are sites (Cochran, 1954). Slopes and
intercepts, of more than two classes those of each class, are held against 0.05 together (Holm,
1979). Sites stand out that have to be left out, the farthest from the mean of the others first,
until the rest is alike. If that is half of them or more, none is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used

from predbayes.predictive.estimate import Estimate, Z
from predbayes_study.result.groups import ALPHA, num_real
from predbayes_study.result.schema import Between, Evaluated

Array = npt.NDArray[np.float64]

_MEASURES = ("slope", "intercept")


def between_sites(sites: Sequence[Evaluated]) -> tuple[Between, ...]:
    """Return in what sites differ by more than chance, the surest first."""
    found = []
    for measure, of in _told(sites):
        values = {
            site.site: risk.metrics[measure]
            for site in sites
            for risk in site.risks
            if risk.name == of and measure in risk.metrics
        }
        if len(values) > 1:
            found.append(_compared(measure, of, values))
    found.sort(key=lambda one: one.p_value)
    return tuple(found[: num_real([one.p_value for one in found])])


def _told(sites: Sequence[Evaluated]) -> list[tuple[str, str]]:
    names = dict.fromkeys(risk.name for site in sites for risk in site.risks)
    return [(measure, name) for name in names for measure in _MEASURES]


def _compared(measure: str, of: str, values: Mapping[str, Estimate]) -> Between:
    """Compare one figure of the sites."""
    names = list(values)
    means = np.array([values[name].value for name in names])
    weights = np.array([(Z / max(e.high - e.value, 1e-6)) ** 2 for e in values.values()])
    return Between(
        measure=measure,
        of=of,
        p_value=_heterogeneity(means, weights),
        num_sites=len(names),
        lowest=(names[int(means.argmin())], float(means.min())),
        highest=(names[int(means.argmax())], float(means.max())),
        sites=tuple(sorted(names[k] for k in _apart(means, weights))),
    )


def _apart(means: Array, weights: Array) -> list[int]:
    """Return who has to go until the others are alike; nobody if that is half of the sites."""
    out: list[int] = []
    rest = list(range(len(means)))
    while len(rest) > 1:
        if _heterogeneity(means[rest], weights[rest]) > ALPHA:
            break
        out.append(rest.pop(_farthest(means[rest], weights[rest])))
    return out if 2 * len(out) < len(means) else []


def _heterogeneity(means: Array, weights: Array) -> float:
    """Return the p-value of Q."""
    mean = float(weights @ means) / float(weights.sum())
    return float(scipy.stats.chi2.sf(float(weights @ (means - mean) ** 2), len(means) - 1))


def _farthest(means: Array, weights: Array) -> int:
    """Return which site is farthest from the mean of all others, in standard errors."""
    others = (weights.sum() - weights).clip(1e-9)
    z = (means - (weights @ means - weights * means) / others) / np.sqrt(1 / weights + 1 / others)
    return int(np.abs(z).argmax())
