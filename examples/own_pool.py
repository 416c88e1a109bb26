"""A pool of one's own, in one file of one's own: the median of the sites' predictions.

A mean is moved by one bad site, a median is not. Medians do not add, so the coordinator keeps every
site's predictions: the pool does not stream, and says so.

Run it on its own, or beside the paper's pools in an experiment, by where it is:

    [methods.median]
    method = "own_pool:Median"
"""

# --8<-- [start:pool]
from dataclasses import dataclass, replace

import torch

import predbayes as pb
from predbayes.summand import Collected


@dataclass(frozen=True)
class Median:
    """Class by class, the median of the sites' probabilities."""

    least: float = 1e-6  # probability

    families = frozenset({pb.Categorical})
    streams = False

    def init(self, reference):
        return pb.pools.PoolState()

    def lift(self, state, site):
        return Collected(site.predictive.moments())

    def finish(self, state, total, reference, *, rng):
        median = torch.stack(total.items).quantile(0.5, dim=0)
        return replace(state, pooled=pb.Categorical.from_moments(median.clamp_min(self.least)))


# --8<-- [end:pool]


def main() -> None:
    """Five sites, one of which has its labels mixed up."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (3000,), generator=rng)
    x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
    parts = pb.partition.homogeneous(2000, 5, rng=rng)
    sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
    sites["site 0"] = (sites["site 0"][0], (sites["site 0"][1] + 1) % 3)
    reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), evaluate=x[2500:])
    network = pb.Network.mlp(2, pb.Softmax(3))
    learner = pb.SGDLearner(network, pb.OptimizerSettings("adam", lr=0.01, num_epochs=20))
    # --8<-- [start:run]
    pools = {"median": Median(), "mixture": pb.pools.mixture(), "beta": pb.pools.beta()}
    for name, pool in pools.items():
        result = pb.run(pb.Pooled(learner, pool), sites, reference)
        predicted = result.predictive[reference.evaluate]
        print(f"{name}: NLL {pb.metrics.nll(predicted, y[2500:]):.3f}")
    # --8<-- [end:run]


if __name__ == "__main__":
    main()
