"""Random forests in the federation: any scikit-learn estimator as a local learner."""

import torch
from sklearn.ensemble import RandomForestClassifier

import predbayes as pb

# Data: two features, three classes; the sites' class shares differ (h = 0.9).
rng = torch.Generator().manual_seed(0)
y = torch.randint(3, (3000,), generator=rng)
x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
parts = pb.partition.label_skew(y[:2000], 4, 0.9, rng=rng)
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), unlabelled=x[2100:2500])

# --8<-- [start:run]
forest = RandomForestClassifier(50, min_samples_leaf=5)
method = pb.Distilled(
    pb.Pooled(pb.SklearnClassifier(forest, num_classes=3), pb.pools.beta(), send="predictions"),
    student=pb.Network.mlp(2, pb.Softmax(3)),
)
result = pb.run(method, sites, reference)
# --8<-- [end:run]
print(result)
print(f"NLL {pb.metrics.nll(result.predict(x[2500:]), y[2500:]):.3f}")
