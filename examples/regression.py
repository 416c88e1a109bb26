"""Regression with intervals: three clinics foretell a number, and say how sure they are."""

import torch
from sklearn.datasets import load_diabetes

import predbayes as pb

x, y = load_diabetes(return_X_y=True)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).numpy()
x, y = x[order], y[order]

# --8<-- [start:run]
sites = {f"clinic {k}": (x[k:240:3], y[k:240:3]) for k in range(3)}
model = pb.FederatedRegressor("gaussian-process", pool="beta")
model.fit(sites, (x[240:300], y[240:300], x[300:]))  # the outcome is known of 60 reference rows

predicted = model.result_.predict(x[300:])
low, high = (end.numpy() for end in predicted.interval(0.9))
print(model.result_)
for k in range(3):
    print(f"patient {k}: {predicted.mean[k]:.0f}, 90 % interval {low[k]:.0f} to {high[k]:.0f}")
inside = ((low <= y[300:]) & (y[300:] <= high)).mean()
print(f"{inside:.0%} of 142 new patients lie in their interval")
print(f"NLL {pb.metrics.nll(predicted, torch.tensor(y[300:])):.3f}")
# --8<-- [end:run]
