"""A learner of one's own in the federation: naive Bayes in a dozen lines, by predictions.

A learner is anything with `fit(rows, *, rng)` that returns something with `predict(inputs)`; what
`predict` returns is a `Categorical` (or a `Gaussian`) with a column for every class of the task.
"""

# --8<-- [start:learner]
import torch

import predbayes as pb


class NaiveBayes(pb.Learner):
    """The learner: in each class the features are independent and normal."""

    def fit(self, rows, *, rng):
        x, y = rows
        belongs = torch.eye(3)[y]
        # One row more per class, at zero with variance one: all there is of a class never seen.
        counts = belongs.sum(0).unsqueeze(-1) + 1
        mean = belongs.T @ x / counts
        var = (belongs.T @ x**2 + 1) / counts - mean**2
        return FittedNaiveBayes(counts[:, 0].log(), torch.distributions.Normal(mean, var.sqrt()))


class FittedNaiveBayes:
    """The predictor: every class of the task has a column, also one the site has never seen."""

    def __init__(self, log_counts, features):
        self.log_counts, self.features = log_counts, features

    def predict(self, inputs):
        log_likelihoods = self.features.log_prob(inputs.unsqueeze(1)).sum(-1)
        return pb.Categorical.from_natural(self.log_counts + log_likelihoods)


# --8<-- [end:learner]


def main() -> None:
    """Four sites with skewed classes, pooled and distilled."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (3000,), generator=rng)
    x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
    parts = pb.partition.label_skew(y[:2000], 4, 0.9, rng=rng)
    sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
    reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), unlabelled=x[2100:2500])
    # --8<-- [start:run]
    method = pb.Distilled(
        pb.Pooled(NaiveBayes(), pb.pools.beta(), send="predictions"),
        student=pb.Network.mlp(2, pb.Softmax(3)),
    )
    result = pb.run(method, sites, reference)
    # --8<-- [end:run]
    print(result)
    print(f"NLL {pb.metrics.nll(result.predict(x[2500:]), y[2500:]):.3f}")


if __name__ == "__main__":
    main()
