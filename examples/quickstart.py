"""Algorithm 1 from end to end: four sites with different mixes of classes, one student."""

import torch

import predbayes as pb
from predbayes.data.partition import label_skew
from predbayes.predictive import metrics

# Data: two features, three classes; the sites' class shares differ (h = 0.9).
rng = torch.Generator().manual_seed(0)
y = torch.randint(3, (3000,), generator=rng)
x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
parts = label_skew(y[:2000], 4, 0.9, rng=rng)
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), unlabelled=x[2100:2500])
x_test, y_test = x[2500:], y[2500:]

# --8<-- [start:algorithm]
network = pb.Network(lambda: pb.mlp(2, 3), pb.Softmax(3))
learner = pb.SGHMCLearner(network, pb.PRESETS["paper"])
method = pb.Distilled(pb.Pooled(learner, pb.BetaPool()), student=network)
result = pb.run(method, pb.InProcess(sites, seed=0), reference, seed=0)

tuned = result.teacher.tuned.profiles["beta"]
predictive = result.student.predict(x_test)
print(f"beta {tuned.value:.2f}, 95 % interval {tuned.interval[0]:.2f} to {tuned.interval[1]:.2f}")
print(f"NLL {metrics.nll(predictive, y_test):.3f}")
print(metrics.ece(predictive, y_test, rng=rng))
# --8<-- [end:algorithm]
