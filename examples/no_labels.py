"""No label anywhere but at the sites: gates weigh them, and held-out rows set how sure they are."""

import torch
from sklearn.linear_model import LogisticRegression

import predbayes as pb

# Data: two features, three classes; the sites' class shares differ (h = 0.9).
rng = torch.Generator().manual_seed(0)
y = torch.randint(3, (3000,), generator=rng)
x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
parts = pb.partition.label_skew(y[:2000], 4, 0.9, rng=rng)
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}

# --8<-- [start:run]
reference = pb.ReferenceRows.of((x[:0], y[:0]), unlabelled=x[2000:2500])
learner = pb.SklearnClassifier(LogisticRegression(), num_classes=3)
student = pb.Network.mlp(2, pb.Softmax(3))
for gate, calibrate in (("none", "labels"), ("same", "labels"), ("same", "sites")):
    method = pb.Pooled(learner, send="predictions", gate=gate)
    distilled = pb.Distilled(method, student=student)
    result = pb.run(distilled, sites, reference, calibrate=calibrate)
    found = pb.metrics.nll(result.predict(x[2500:]), y[2500:])
    print(f"gate={gate!r}, calibrate={calibrate!r}: NLL {found:.3f}")
# --8<-- [end:run]
