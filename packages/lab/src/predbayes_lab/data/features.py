"""Frozen features of photographs: what random patches find in them, without a label.

Coates, Lee and Ng (2011). A filter is a patch of a training image, contrast-normalised and whitened
as every patch is; a feature is the mean response to it over a quadrant, of either sign:

    max(0, w . x - a)   and   max(0, -w . x - a)

A small network or a linear model on top of them stands for a head on a frozen, public extractor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from predbayes.seeding import generator

SIZE = 6  # of a patch, in pixels
NUM_FILTERS = 128
_THRESHOLD = 0.25  # a
_NUM_SEEN = 1000  # training images that patches are taken from
_CHUNK = 10  # images at a time: 3 MB of patches, which stay in the cache


def patch_features(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return features (N, 8 x filters) of images (N, 3, H, W), scaled by the training part."""
    rng = generator(0, "patch features")
    seen = torch.randperm(len(train), generator=rng)[:_NUM_SEEN]
    patches = _patches(train[seen]).flatten(0, 1)
    chosen = patches[torch.randperm(len(patches), generator=rng)[: 200 * NUM_FILTERS]]
    mean, white = _whitening(chosen)
    filters = (chosen[:NUM_FILTERS] - mean) @ white
    filters = white @ nn.functional.normalize(filters, dim=1).T
    parts = [_responses(images, mean, filters) for images in (train, test)]
    centre, scale = parts[0].mean(0), parts[0].std(0).clamp_min(1e-6)
    train_features, test_features = ((part - centre) / scale for part in parts)
    return train_features, test_features


def _patches(images: Tensor) -> Tensor:
    """All patches (N, places, values) of images, each with mean 0 and the same contrast."""
    patches = nn.functional.unfold(images, SIZE).transpose(1, 2)
    centred = patches - patches.mean(-1, keepdim=True)
    # Numerics: a plain patch is noise after a division by its contrast; the sum keeps it small.
    return centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt()


def _whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    return mean, vectors @ torch.diag((values.clamp_min(0) + 0.1).rsqrt()) @ vectors.T


def _responses(images: Tensor, mean: Tensor, filters: Tensor) -> Tensor:
    # One tensor from the start: small ones, kept between large ones that go, fragment the heap.
    found = torch.empty(len(images), 8 * filters.shape[1])
    for chunk, out in zip(torch.split(images, _CHUNK), torch.split(found, _CHUNK), strict=True):
        responses = (_patches(chunk) - mean) @ filters
        side = chunk.shape[-1] - SIZE + 1
        maps = responses.transpose(1, 2).reshape(len(chunk), -1, side, side)
        both = torch.cat([(maps - _THRESHOLD).relu(), (-maps - _THRESHOLD).relu()], 1)
        out.copy_(nn.functional.adaptive_avg_pool2d(both, 2).flatten(1))
    return found
