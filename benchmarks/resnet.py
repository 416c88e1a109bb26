"""A ResNet-18 with six samples: peak memory, bytes of the upload and seconds, by learner.

Every learner runs in a process of its own: it trains a few steps on 64 images of 64 x 64, predicts,
writes an upload and reads it back. `--width 64` is ResNet-18, with 11.2 million parameters;
`--frozen` trains its last layer alone.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from predbayes.exchange.reader import Reader
from predbayes.exchange.upload import Upload
from predbayes.learning.laplace import LastLayerLaplace
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import (
    DeepEnsemble,
    Network,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.seeding import generator, isolated

NUM_SAMPLES, NUM_CLASSES, SIDE = 6, 10, 64
LEARNERS = ("sghmc", "ensemble", "laplace")


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            conv = nn.Conv2d(width_in, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Add the two."""
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet18(width: int = 64, frozen: bool = False) -> nn.Sequential:
    """Build a ResNet-18; ``frozen``, all but its last layer is always the same."""
    if frozen:
        with isolated(generator(0, "pretrained")):
            body = resnet18(width)[0].requires_grad_(False)
        return nn.Sequential(body, nn.Linear(8 * width, NUM_CLASSES))
    stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width_in = width
    for stage in range(4):
        width_out = width << stage
        layers += [Block(width_in, width_out, 1 + (stage > 0)), Block(width_out, width_out, 1)]
        width_in = width_out
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(body, nn.Linear(width_in, NUM_CLASSES))


def run(width: int = 64, frozen: bool = False) -> dict[str, Any]:
    """Measure every learner in a process of its own."""
    return {name: _measured(name, width, frozen) for name in LEARNERS}


def _measured(name: str, width: int, frozen: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.resnet", name, str(width), str(int(frozen))]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    peak, upload = found["peak_bytes"] / 1e6, found["upload_bytes"] / 1e6
    size = f"{found['parameters']:,} parameters"
    print(
        f"{name}: {size}, peak {peak:,.0f} MB, upload {upload:,.1f} MB, {found['seconds']:.0f} s",
        flush=True,
    )
    return found


def _learner(name: str, network: Network) -> Any:
    point = SGDLearner(network, OptimizerSettings(lr=0.01, num_epochs=1, batch_size=16))
    if name == "ensemble":
        return DeepEnsemble(point, NUM_SAMPLES)
    if name == "laplace":
        return LastLayerLaplace(point, NUM_SAMPLES)
    settings = SamplerSettings(
        num_epochs=3, batch_size=16, step_size=0.01, num_cycles=2, samples_per_cycle=3,
        exploration=0.5,
    )  # fmt: skip
    return SGHMCLearner(network, settings)


def _fit_and_report(name: str, width: int, frozen: bool) -> None:
    torch.set_num_threads(1)
    network = Network(partial(resnet18, width, frozen), Softmax(NUM_CLASSES))
    rng = generator(0, "images")
    inputs = torch.randn(64, 3, SIDE, SIDE, generator=rng)
    targets = torch.randint(NUM_CLASSES, (64,), generator=rng)
    learner, began = _learner(name, network), time.monotonic()
    fitted = learner.fit((inputs, targets), rng=generator(0, "fit"))
    predicted = fitted.predict(inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.upload"
        Upload.of_weights(fitted.samples, num_rows=len(inputs)).named("site").save(path)
        upload_bytes = path.stat().st_size
        read = Reader.of(learner).read(Upload.load(path), inputs)
    figures = {
        "parameters": sum(p[0].numel() for p in fitted.samples.parameters.values()),
        "samples": len(fitted.samples),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "upload_bytes": upload_bytes,
        "seconds": time.monotonic() - began,
        "as_read": bool(torch.equal(read.moments(), predicted.moments())),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    _fit_and_report(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
