"""A dataset of one's own in an experiment: a function of a generator that returns rows.

[data]
name = "own_dataset:load"
[partition]
kind = "groups"
"""

# --8<-- [start:load]
import torch


def load(rng):
    """Two clinics with different patients; a fifth of the rows to test on, other ones each seed."""
    draw = torch.Generator().manual_seed(0)
    clinic = torch.randint(2, (400,), generator=draw)
    x = torch.randn(400, 3, generator=draw) + clinic.unsqueeze(1)
    y = (x.sum(1) + torch.randn(400, generator=draw) > 1).long()
    test, train = torch.randperm(400, generator=rng).split([80, 320])
    mean, std = x[train].mean(0), x[train].std(0)
    x = (x - mean) / std
    return (x[train], y[train]), (x[test], y[test]), [f"clinic {k}" for k in clinic[train]]


# --8<-- [end:load]

if __name__ == "__main__":
    import predbayes as pb

    (x, y), test, clinics = load(torch.Generator().manual_seed(1))
    names = sorted(set(clinics))
    rows = {name: torch.tensor([clinic == name for clinic in clinics]) for name in names}
    sites = {name: (x[own], y[own]) for name, own in rows.items()}
    learner = pb.SGDLearner(pb.Network.mlp(3, pb.Softmax(2)))
    result = pb.run(pb.Pooled(learner, pb.pools.mixture()), sites, test)
    print(f"{len(y)} rows of {len(sites)} clinics: NLL {result.account.nll:.3f}")
