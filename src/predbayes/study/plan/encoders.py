"""Encoders: installed networks that make vectors of images, the same at every site.

    [project.entry-points."predbayes.encoders"]   in the pyproject.toml of a distribution
    tiny = "ournets.tiny:build"

A column of the plan says `encoder = "tiny", images = [64, 64, 3]`. The function takes nothing and
returns a torch module, with its weights, from images (N, channels, height, width) between 0 and 1
to vectors (N, size). A frozen plan has the digest of the distribution's Python files and of all
weights, so sites agree on features or are refused. As of networks, naming one does not run it.

`predbayes embed` runs it before anything else, and writes the vectors beside the table:

    TABLE.COLUMN.safetensors   one row for each of the table's, with digests of the encoder and of
                               the table's cells

Whoever reads the table takes vectors of no other encoder, and of no other rows (`arraycells`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from predbayes.errors import PlanError
from predbayes.spill import blocks, room, row_bytes
from predbayes.study.plan.networks import Installed
from predbayes.study.plan.schema import FrozenEncoder, Image, Plan, Vector

GROUP = "predbayes.encoders"


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """An encoder that was built, and what a plan states of it."""

    module: nn.Module
    stated: FrozenEncoder
    column: Vector

    @classmethod
    def load(cls, plan: Plan, name: str) -> ImageEncoder:
        """Import and build the encoder of a column; refuse another than a frozen plan states."""
        column = plan.encoded[name]
        found = Installed.find(column.encoder, GROUP)
        agreed = None if plan.frozen is None else plan.frozen.encoders[name]
        if agreed is not None:
            found.require(agreed.digest, agreed.distribution, agreed.version)
        module = found.load()().eval()  # type: ignore[call-arg]
        stated = FrozenEncoder(
            distribution=found.distribution,
            version=found.version,
            digest=found.digest,
            weights=_weights_digest(module),
        )
        if agreed is not None and stated.weights != agreed.weights:
            raise PlanError(
                f"encoder {column.encoder!r} has other weights than those of the plan; ask the "
                "coordinator where they are from"
            )
        return cls(module, stated, column)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return vectors (N, size) of images (N, height, width, channels) in bytes."""
        vectors = room((len(images), self.column.size))
        for part in blocks(len(images), 4 * row_bytes(images)):
            made = self.module(images[part].movedim(-1, 1).float() / 255)
            if tuple(made.shape[1:]) != (self.column.size,) or not bool(made.isfinite().all()):
                raise PlanError(
                    f"encoder {self.column.encoder!r} does not make {self.column.size:,} finite "
                    f"numbers of an image, as the plan says"
                )
            vectors[part] = made.float()
        return vectors


def image_column(column: Vector) -> Image:
    """Return the form of the images that an encoder takes."""
    return Image(type="image", shape=column.images, missing=column.missing)


def freeze_encoders(plan: Plan) -> dict[str, FrozenEncoder]:
    """Import the encoders that a draft names, and state what they are."""
    return {name: ImageEncoder.load(plan, name).stated for name in plan.encoded}


def _weights_digest(module: nn.Module) -> str:
    """SHA-256 of all parameters and buffers, by name."""
    content = hashlib.sha256()
    for name, values in sorted(module.state_dict().items()):
        content.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        content.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
