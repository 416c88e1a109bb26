"""Normalisation layers: scales without a prior, and statistics that belong to the weights.

    y = scale (x - mean) / std + shift

A prior around 0 on the scale would switch the layer off rather than hold the network back, so
scales and shifts have none. In a batch normalisation `mean` and `std` are running statistics, which
lag behind a sampler's weights and mix those of many. So each network that is kept gets its own: the
average over the batches of one more pass over the site's rows, with dropout off (as Izmailov et
al., 2018, do for averaged weights).

A layer whose scale and shift are frozen keeps the statistics that it came with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from predbayes.learning.likelihood import NOISE_PARAMETER
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import isolated

if TYPE_CHECKING:
    from predbayes.learning.training import Batches

_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def norm_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of scales and shifts of normalisation layers.

    Examples:
        >>> sorted(norm_parameters(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
        ['1.bias', '1.weight']
    """
    layers = ((n, layer) for n, layer in model.named_modules() if isinstance(layer, _LAYERS))
    return frozenset(name for prefix, layer in layers for name, _ in layer.named_parameters(prefix))


def without_prior(model: nn.Module) -> frozenset[str]:
    """Return the names of parameters that are no weights: those of norms, and a learnt noise."""
    return norm_parameters(model) | {NOISE_PARAMETER}


def set_training(model: nn.Module) -> None:
    """Put a model into training mode, but for normalisations that are frozen."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, _NormBase) and _is_frozen(layer):
            layer.eval()


def restate(model: nn.Module, batches: Batches, *, rng: torch.Generator) -> None:
    """Set the running statistics of a model to those of a site's rows under its weights.

    Args:
        model: Left in training mode.
        batches: The site's rows.
        rng: Order of the rows; untouched where nothing runs.
    """
    layers = list(_running(model))
    if not layers:
        return
    kept = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.num_batches_tracked = torch.zeros_like(_counter(layer))
        layer.reset_running_stats()
        layer.momentum = None  # the plain average over batches
    with torch.no_grad(), isolated(rng, _counter(layers[0]).device):
        for inputs, _targets in batches.epoch(rng):
            model(inputs)
    for layer, (momentum, counter) in zip(layers, kept, strict=True):
        layer.momentum, layer.num_batches_tracked = momentum, counter
    set_training(model)


def restated(
    samples: WeightSamples, model: nn.Module, batches: Batches, *, rng: torch.Generator
) -> WeightSamples:
    """Return samples with the buffers of their own weights; ``model`` is what they go through."""
    if next(_running(model), None) is None:
        return samples
    found = []
    for index in range(len(samples)):
        samples.load_into(model, index)
        restate(model, batches, rng=rng)
        found.append({name: value.detach().cpu().clone() for name, value in model.named_buffers()})
    buffers = {name: torch.stack([one[name] for one in found]) for name in samples.buffers}
    return replace(samples, buffers=buffers)


def _running(model: nn.Module) -> Iterator[_NormBase]:
    for layer in model.modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats and not _is_frozen(layer):
            yield layer


def _is_frozen(layer: nn.Module) -> bool:
    own = list(layer.parameters())
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _counter(layer: _NormBase) -> Tensor:
    counter = layer.num_batches_tracked
    assert counter is not None
    return counter
