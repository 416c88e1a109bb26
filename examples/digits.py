"""Digits in ten lines: five sites with pictures that nobody else sees, one network for all."""

# --8<-- [start:all]
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import predbayes as pb

x, y = shuffle(*load_digits(return_X_y=True), random_state=0)
parts = pb.partition.label_skew(torch.tensor(y[:600]), 5, 0.6, rng=torch.Generator().manual_seed(0))
sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
model = pb.FederatedClassifier("logistic-regression", pool="beta")
model.fit(sites, (x[600:700], y[600:700], x[700:1300]))  # 100 of 700 reference rows have a label
print(model.result_)
print(f"of 497 new digits {model.score(x[1300:], y[1300:]):.0%} are read right")
print(f"NLL {pb.metrics.nll(model.result_.predict(x[1300:]), torch.tensor(y[1300:])):.3f}")
# --8<-- [end:all]
