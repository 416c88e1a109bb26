"""How many independent samples the samples of a cyclical sampler are worth.

C cycles of m samples each, w_cj. With the mean squares of a one-way analysis of variance, over all
parameters at once,

    between = m sum_c |w_c - w|^2 / (C - 1),     within = sum_cj |w_cj - w_c|^2 / (C (m - 1))
    r = (between - within) / (between + (m - 1) within)
    effective = C m / (1 + (m - 1) r)

r is the correlation of samples of one cycle, and the last line Kish's design effect: the variance
of the samples' mean is that of so many independent ones. Samples that do not move within a cycle
are worth C, independent ones C m. One cycle does not tell: another one might end elsewhere.
"""

from __future__ import annotations

import math

from predbayes.posterior.samples import WeightSamples


def effective_samples(samples: WeightSamples, per_cycle: int) -> float:
    """Return the effective number of samples, of which ``per_cycle`` in a row are of one cycle.

    A first cycle of which not all samples were kept is left out; NaN if there is only one.

    Examples:
        >>> import torch
        >>> twice = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, 5.0], [3.0, 5.0]])
        >>> effective_samples(WeightSamples({"w": twice}, {}), per_cycle=2)
        2.0
    """
    num_cycles = len(samples) // per_cycle
    if num_cycles < 2:
        return math.nan
    if per_cycle == 1:
        return float(num_cycles)
    vectors = samples.vectors()[0][-num_cycles * per_cycle :].view(num_cycles, per_cycle, -1)
    means = vectors.mean(1)
    between = per_cycle * float((means - means.mean(0)).square().sum()) / (num_cycles - 1)
    scatter = float((vectors - means.unsqueeze(1)).square().sum())
    within = scatter / (num_cycles * (per_cycle - 1))
    total = between + (per_cycle - 1) * within
    # Below 0 by chance alone; samples that never move are one.
    correlation = max(0.0, (between - within) / total) if total else 1.0
    return num_cycles * per_cycle / (1 + (per_cycle - 1) * correlation)
