"""Time to tune beta on 12,000 x 10 against the time to distil (100 epochs on 12,000 rows).

`ratio` is tuning, with its curve and interval, over distillation; CPU time, one thread, one run.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from predbayes.learning.distill import distill
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network
from predbayes.learning.nets import mlp
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_beta
from predbayes.seeding import generator
from predbayes.summand import fold

NUM_ROWS, NUM_CLASSES, NUM_CLIENTS, ROUNDS = 12_000, 10, 5, 7


def run() -> dict[str, Any]:
    """Tune several times, distil once."""
    torch.set_num_threads(1)
    rng = generator(0, "tuning")
    targets = torch.randint(NUM_CLASSES, (NUM_ROWS,), generator=rng)
    signal = 2.0 * torch.nn.functional.one_hot(targets, NUM_CLASSES)
    logits = torch.randn(NUM_CLIENTS, NUM_ROWS, NUM_CLASSES, generator=rng) + signal
    total = fold(PredictiveSum.of(Categorical.from_natural(client)) for client in 4 * logits)
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        tuned = tune_beta(total, targets)
        seconds.append(time.process_time() - start)
    inputs = torch.randn(NUM_ROWS, 784, generator=rng)
    student = Network(lambda: mlp(784, NUM_CLASSES), Softmax(NUM_CLASSES))
    start = time.process_time()
    distill(student, total.pool(tuned.weights), inputs, rng=rng)
    distillation = time.process_time() - start
    print(f"tuning {1e3 * median(seconds):.0f} ms, distillation {distillation:.1f} s")
    return {"ratio": median(seconds) / distillation, "beta": tuned.beta}
