"""A torch module of one's own at every site: a small convolutional network reads digits."""

import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn

import predbayes as pb

pictures, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
x = torch.tensor(pictures / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.tensor(labels)
parts = pb.partition.label_skew(y[:1000], 4, 0.6, rng=torch.Generator().manual_seed(0))
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
reference = pb.ReferenceRows.of((x[1000:1100], y[1000:1100]), unlabelled=x[1100:1400])


# --8<-- [start:run]
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.classes = nn.Linear(16 * 3 * 3, 10)

    def forward(self, pictures):
        return self.classes(self.features(pictures).flatten(1))


network = pb.Network(Reader, pb.Softmax(10))
fit = pb.OptimizerSettings("adam", lr=0.01, num_epochs=20)
method = pb.Distilled(pb.Pooled(pb.SGDLearner(network, fit), pb.pools.beta()), student=network)
result = pb.run(method, sites, reference)

predicted = result.predict(x[1400:])
print(result)
print(f"NLL {pb.metrics.nll(predicted, y[1400:]):.3f}")
print(f"accuracy {pb.metrics.accuracy(predicted, y[1400:]):.3f}")
print(type(result.module()).__name__)  # the model is a module of the same class
# --8<-- [end:run]
