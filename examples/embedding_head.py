"""A small head on embeddings: every site has the same frozen encoder, and learns a linear layer.

The encoder here has random weights and stands for a foundation model that all sites have.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn

import predbayes as pb

pictures, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
pictures = torch.tensor(pictures / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.tensor(labels)

# --8<-- [start:run]
torch.manual_seed(0)
encoder = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
with torch.no_grad():
    x = 10 * encoder(pictures)  # 288 numbers for each picture; nothing of the encoder is trained

parts = pb.partition.label_skew(y[:600], 4, 0.6, rng=torch.Generator().manual_seed(0))
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
reference = pb.ReferenceRows.of((x[600:700], y[600:700]), unlabelled=x[700:1300])
head = pb.Network.mlp(288, pb.Softmax(10), hidden=())
learner = pb.SGDLearner(head, pb.OptimizerSettings("adam", lr=0.01, num_epochs=40))
result = pb.run(pb.Distilled(pb.Pooled(learner, pb.pools.beta()), head), sites, reference)

print(result)
print(f"NLL {pb.metrics.nll(result.predict(x[1300:]), y[1300:]):.3f}")
print(f"accuracy {pb.metrics.accuracy(result.predict(x[1300:]), y[1300:]):.3f}")
# --8<-- [end:run]
