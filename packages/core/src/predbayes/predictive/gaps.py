"""What the true calibration error may be, given the gaps that bins show.

The gap of bin m, share of hits minus confidence, is observed with noise, and noise only ever adds
to a sum of absolute values: the observed error is too large, and the more so the nearer gaps are to
zero. No bootstrap knows how near they are. So the gaps are inferred first. Given the true gap g_m

    observed gap  ~  N(g_m, a_m (1 - a_m) / n_m)          a_m: share of hits in the bin
    g_m           ~  N(mean s_m, (std s_m)^2) with probability share, else 0

where mean, std and share are the same for all bins and unknown: a model that is overconfident
everywhere, one that errs in a few places and one that is calibrated are all special cases. The
scale s_m is 1 for all bins, or c_m (1 - c_m) at a confidence of c_m, which is what logits that are
off by the same everywhere come to. All of it is summed out on a grid, flat in mean, std and the two
scales; half of the weight is on share = 1. Draws of the gaps, and of how many rows a bin has, are
draws of the true error sum_m (n_m / N) |g_m|.

Their quantiles are an interval; docs/intervals.md says what it covers for fourteen kinds of models
at 500 rows. With 100 rows it is wide.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_DRAWS = 1000
_SHARES = (1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1)
_SHARE_PRIOR = (0.5, *[0.5 / 6] * 6)
_NUM_MEANS, _NUM_STDS = 41, 15
_REACH = 2.5  # of the grid, in root mean square gaps


def plausible_errors(
    count: Tensor, confidence: Tensor, hits: Tensor, *, rng: torch.Generator
) -> Tensor:
    """Draw from what the true calibration error may be, (NUM_DRAWS,).

    Args:
        count: Rows of each bin, (M,), none of them empty.
        confidence: Their mean confidence, (M,).
        hits: How many of them were right, (M,).
        rng: Draws the error.
    """
    observed = hits / count - confidence
    # A row of the model's own opinion, and a miss, keep a bin without a miss from certainty.
    rate = (hits + confidence) / (count + 1)
    var = (rate * (1 - rate) + 1 / count) / count
    share = count / count.sum()
    # Noise can hide a gap as large as itself, so the grid goes beyond it.
    reach = _REACH * _mean(share, observed.square() + var) ** 0.5
    slope = (confidence * (1 - confidence)).clamp_min(1e-6)  # of a probability in its logit
    scales = torch.stack([torch.ones_like(slope), slope / _mean(share, slope.square()) ** 0.5])
    gaps = _gaps(observed, var, scales, reach, rng)
    drawn = torch.poisson(count.expand(NUM_DRAWS, -1), generator=rng)
    errors: Tensor = (drawn * gaps.abs()).sum(1) / drawn.sum(1).clamp_min(1)
    return errors.clamp_max(1.0)  # a normal gap of few rows may be beyond what a share can be


def _gaps(
    observed: Tensor, var: Tensor, scales: Tensor, reach: float, rng: torch.Generator
) -> Tensor:
    """Draws of the true gaps, (NUM_DRAWS, M)."""
    means = torch.linspace(-reach, reach, _NUM_MEANS, dtype=torch.float64)[:, None, None]
    stds = torch.linspace(0, reach, _NUM_STDS, dtype=torch.float64)[:, None]
    shares = torch.tensor(_SHARES, dtype=torch.float64)[:, None, None, None]
    each = scales[:, None, None, None]
    slab = _density(observed - means * each, var + (stds * each).square())  # (2, 1, means, stds, M)
    spike = _density(observed, var)
    evidence = (shares * slab + (1 - shares) * spike).log().sum(-1)
    evidence += torch.tensor(_SHARE_PRIOR, dtype=torch.float64).log()[:, None, None]
    cells = torch.multinomial(
        evidence.flatten().softmax(0), NUM_DRAWS, replacement=True, generator=rng
    )
    scale, share, mean, std = torch.unravel_index(cells, evidence.shape)
    prior_var = (stds[std] * scales[scale]).square()
    post_mean = (prior_var * observed + var * means[mean, 0] * scales[scale]) / (prior_var + var)
    post_std = (prior_var * var / (prior_var + var)).sqrt()
    inside = shares[share, 0, 0] * slab[scale, 0, mean, std]
    is_gap = inside / (inside + (1 - shares[share, 0, 0]) * spike)
    noise = torch.randn(post_mean.shape, generator=rng, dtype=torch.float64)
    kept = torch.rand(post_mean.shape, generator=rng, dtype=torch.float64) < is_gap
    return torch.where(kept, post_mean + post_std * noise, 0.0)


def _mean(share: Tensor, values: Tensor) -> float:
    return float((share * values).sum())


def _density(residual: Tensor, var: Tensor) -> Tensor:
    """A normal density, up to a constant."""
    return (-0.5 * residual.square() / var).exp() / var.sqrt()
