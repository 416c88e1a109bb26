"""Algorithm 1 from end to end: four sites with different mixes of classes, one student."""

# --8<-- [start:all]
import torch

import predbayes as pb

# Three classes. Four sites with different mixes of them; 100 labelled reference rows, 400 without.
rng = torch.Generator().manual_seed(0)
y = torch.randint(3, (3000,), generator=rng)
x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
parts = pb.partition.label_skew(y[:2000], 4, 0.9, rng=rng)
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), unlabelled=x[2100:2500])

# The paper's Algorithm 1: every site samples and sends; pool, tune beta, distil.
network = pb.Network.mlp(2, pb.Softmax(3))
learner = pb.SGHMCLearner(network, pb.PRESETS["paper"])
result = pb.run(pb.Distilled(pb.Pooled(learner, pb.pools.beta()), network), sites, reference)

print(result)
print("test NLL", pb.metrics.nll(result.predict(x[2500:]), y[2500:]))
result.save("model")
# --8<-- [end:all]
