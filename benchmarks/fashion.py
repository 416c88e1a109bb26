"""Algorithm 1 on Fashion-MNIST (and MNIST for preset `tuned`): pools, student and control, 3 seeds.

Five clients, 25 epochs, 12,000 labelled reference rows, 10,000 test rows that only score. In
each cell the sites train once; mixture, product, beta and student come from the same uploads.
The control is the same learner trained on the labelled reference rows alone.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.records import cached, mean
from predbayes.data.files import data_root
from predbayes.data.images import ImageSet, load_mnist_like
from predbayes.data.partition import label_skew
from predbayes.exchange.federation import InProcess, Task
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.methods.beta_pred_bayes import BetaPredBayes
from predbayes.methods.distilled import Distilled
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import fold
from predbayes.seeding import generator

SEEDS = (0, 1, 2)
NUM_CLIENTS, NUM_REFERENCE = 5, 12_000
CELLS = [
    ("fashion-mnist", "paper", 0.9),
    ("fashion-mnist", "paper", 0.0),
    ("fashion-mnist", "tuned", 0.0),
    ("mnist", "tuned", 0.0),
]
POOLS = ("mixture", "product", "beta", "student", "server_only")


def run() -> dict[str, Any]:
    """Run every cell that has no record yet; return the means over seeds."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"seeds": list(SEEDS)}
    for dataset, preset, heterogeneity in CELLS:
        records = []
        for seed in SEEDS:
            key = {"dataset": dataset, "preset": preset, "h": heterogeneity, "seed": seed}
            record = cached("fashion", key, lambda key=key: _cell(**key))  # type: ignore[misc]
            print(f"{dataset} {preset} h={heterogeneity} seed {seed}: {_line(record)}", flush=True)
            records.append(record)
        figures[f"{dataset} {preset} h={heterogeneity}"] = {
            "beta": mean(records, "tuned_beta"),
            **{
                pool: {name: mean(records, pool, name) for name in ("nll", "ece", "accuracy")}
                for pool in POOLS
            },
        }
    return figures


def _cell(dataset: str, preset: str, h: float, seed: int) -> dict[str, Any]:
    images = load_mnist_like(data_root() / dataset)
    sites, reference = _deal(images, h, seed)
    network = Network(lambda: mlp(784, images.num_classes), Softmax(images.num_classes))
    learner = SGHMCLearner(network, PRESETS[preset])
    method = Distilled(BetaPredBayes(learner), student=network)

    state = method.init(reference, rng=generator(seed, "init"))
    uploads = InProcess(sites, seed).collect(Task(method, state, reference.inputs))
    total = fold(method.lift(state, upload, reference.inputs) for upload in uploads)
    state = method.finish(state, total, reference, rng=generator(seed, "finish"))
    control = learner.fit(
        (reference.inputs[reference.labelled], reference.targets), rng=generator(seed, "control")
    )

    test = total[reference.evaluate]
    return {
        "tuned_beta": state.teacher.beta,
        "mixture": _score(test.pool(0.0), images, seed),
        "product": _score(test.pool(1.0), images, seed),
        "beta": _score(state.teacher.predictive[reference.evaluate], images, seed),
        "student": _score(state.student.predict(images.test_inputs), images, seed),
        "server_only": _score(control.predict(images.test_inputs), images, seed),
    }


def _deal(
    images: ImageSet, heterogeneity: float, seed: int
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], ReferenceRows]:
    """Reference rows at random, the rest to the clients."""
    inputs, targets = images.train_inputs, images.train_targets
    order = torch.randperm(len(targets), generator=generator(seed, "reference"))
    chosen, rest = order[:NUM_REFERENCE], order[NUM_REFERENCE:]
    parts = label_skew(targets[rest], NUM_CLIENTS, heterogeneity, rng=generator(seed, "partition"))
    sites = {f"site{k}": (inputs[rest[part]], targets[rest[part]]) for k, part in enumerate(parts)}
    reference = ReferenceRows.of((inputs[chosen], targets[chosen]), evaluate=images.test_inputs)
    return sites, reference


def _score(predictive: Any, images: ImageSet, seed: int) -> dict[str, float]:
    assert isinstance(predictive, Categorical)
    targets = images.test_targets
    calibration = metrics.ece(predictive, targets, rng=generator(seed, "ece"), num_draws=50)
    return {
        "nll": metrics.nll(predictive, targets),
        "ece": calibration.value,
        "ece_null": calibration.null,
        "accuracy": metrics.accuracy(predictive, targets),
    }


def _line(record: dict[str, Any]) -> str:
    return ", ".join(f"{pool} {record[pool]['nll']:.4f}" for pool in POOLS)
