"""A site's own model in the federation: a random forest beside a network, by predictions.

A learner is anything with `fit(rows, *, rng)` that returns something with `predict(inputs)`; what
`predict` returns is a `Categorical` (or a `Gaussian`) with a column for every class of the task.
"""

# --8<-- [start:learner]
import torch
from sklearn.ensemble import RandomForestClassifier

import predbayes as pb


class Forest:
    """The learner: fits one site's rows and returns what predicts."""

    def fit(self, rows, *, rng):
        x, y = rows
        seed = int(torch.randint(2**31, (), generator=rng))
        model = RandomForestClassifier(200, min_samples_leaf=5, random_state=seed)
        return FittedForest(model.fit(x.numpy(), y.numpy()), num_classes=3)


class FittedForest:
    """The predictor: every class of the task has a column, also one the site has never seen."""

    def __init__(self, model, num_classes):
        self.model, self.num_classes = model, num_classes

    def predict(self, inputs):
        probs = torch.full((len(inputs), self.num_classes), 0.01)
        probs[:, self.model.classes_] += torch.tensor(self.model.predict_proba(inputs.numpy()))
        return pb.Categorical.from_moments(probs)


# --8<-- [end:learner]


def main() -> None:
    """Four sites with skewed classes, pooled and distilled."""
    from predbayes.data.partition import label_skew
    from predbayes.predictive import metrics

    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (3000,), generator=rng)
    x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
    parts = label_skew(y[:2000], 4, 0.9, rng=rng)
    sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
    reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), unlabelled=x[2100:2500])
    # --8<-- [start:run]
    method = pb.Distilled(
        pb.BetaPredBayes(Forest(), send="predictions"),
        student=pb.Network(lambda: pb.mlp(2, 3), pb.Softmax(3)),
    )
    result = pb.run(method, pb.InProcess(sites, seed=0), reference, seed=0)
    # --8<-- [end:run]
    print(f"beta {result.teacher.beta:.2f}, student {result.gap:.4f} nats from its teacher")
    print(f"NLL {metrics.nll(result.student.predict(x[2500:]), y[2500:]):.3f}")


if __name__ == "__main__":
    main()
