from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from predbayes.errors import DataError, PoolError
from predbayes.learning.likelihood import Softmax
from predbayes.learning.training import (
    LoaderBatches,
    TensorBatches,
    as_batches,
    count_rows,
    train,
)
from predbayes.seeding import generator, isolated

CPU = torch.device("cpu")


def rows(num: int = 23):
    return torch.arange(num, dtype=torch.float32).unsqueeze(-1), torch.arange(num)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square().mean()


def fit(batches, seed: int = 0, **options) -> tuple[nn.Module, list[int]]:
    with isolated(generator(0)):
        model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    steps: list[int] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    settings = {"num_epochs": 2, "rng": generator(seed), "after_step": steps.append} | options
    train(model, squared, batches, optimizer, **settings)
    return model, steps


def anything(targets: torch.Tensor) -> None:
    """A check that refuses nothing."""


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_an_epoch_visits_every_row_once(batch_size, rng):
    x, y = rows()
    batches = TensorBatches(x, y, batch_size)
    seen = list(batches.epoch(rng))
    assert len(seen) == len(batches)
    assert sorted(torch.cat([targets for _, targets in seen]).tolist()) == list(range(23))
    assert all(torch.equal(inputs[:, 0].long(), targets) for inputs, targets in seen)


def test_batches_are_of_nearly_equal_size(rng):
    """101 rows in batches of 100 are 51 and 50: no batch of one, which batch norm refuses."""
    sizes = [len(y) for _, y in TensorBatches(*rows(101), 100).epoch(rng)]
    assert sizes == [51, 50]


def test_batches_are_the_rows_of_a_permutation_drawn_from_the_generator():
    """Images and targets of any shape; the order is a function of the seed alone."""
    x, y = torch.arange(24.0).reshape(6, 1, 2, 2), torch.arange(12.0).reshape(6, 2)
    order = torch.randperm(6, generator=generator(5))
    seen = list(TensorBatches(x, y, 4).epoch(generator(5)))
    assert torch.equal(torch.cat([inputs for inputs, _ in seen]), x[order])
    assert torch.equal(torch.cat([targets for _, targets in seen]), y[order])


def test_gradients_do_not_add_up_over_steps():
    """Every step sees its own batch's gradient, also when the model comes with an old one."""
    model, seen = nn.Linear(1, 1), []
    model.weight.grad = torch.full((1, 1), 1e6)
    train(
        model,
        lambda outputs, targets: outputs.mean(),
        TensorBatches(torch.ones(6, 1), torch.ones(6), 2),
        torch.optim.SGD(model.parameters(), lr=1.0),
        num_epochs=1,
        rng=generator(0),
        after_backward=lambda: seen.append(float(model.weight.grad)),
    )
    assert seen == [1.0] * 3


def test_any_dataloader_will_do():
    loader = DataLoader(TensorDataset(*rows()), batch_size=4, shuffle=True)
    batches = as_batches(loader, batch_size=99, device=CPU, check=anything)
    assert isinstance(batches, LoaderBatches)
    assert (batches.num_rows, len(batches), count_rows(loader)) == (23, 6, 23)
    first, second = (fit(batches, seed=3)[0] for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)  # a shuffling loader and dropout repeat, too


def test_a_loader_of_arrays_is_of_the_networks_type():
    x, y = rows()
    loader = DataLoader(TensorDataset(x.double(), y.int()), batch_size=4)
    batches = as_batches(loader, batch_size=99, device=CPU, check=anything)
    inputs, targets = next(batches.epoch(generator(0)))
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_targets_of_a_loader_are_checked_as_those_in_memory():
    loader = DataLoader(TensorDataset(*rows()), batch_size=4)
    check = Softmax(5).check
    batches = as_batches(loader, batch_size=99, device=CPU, check=check)
    with pytest.raises(PoolError, match="class labels run from 4 to 7; with 5 classes"):
        list(batches.epoch(generator(0)))


def test_a_loader_without_rows_is_refused():
    loader = DataLoader(TensorDataset(*rows()), batch_size=99, drop_last=True)
    with pytest.raises(DataError, match="the site's loader yields no rows"):
        as_batches(loader, batch_size=99, device=CPU, check=anything)


@pytest.mark.parametrize("make", [lambda x, y: (x.numpy(), y.numpy()), TensorDataset])
def test_arrays_and_datasets_in_memory_are_batches_of_tensors(make):
    batches = as_batches(make(*rows()), batch_size=5, device=CPU, check=anything)
    assert isinstance(batches, TensorBatches)
    assert torch.equal(batches.inputs, rows()[0])


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (lambda x, y: x, "pair"),
        (lambda x, y: (x.double(), y), "float32"),
        (lambda x, y: (x / 0 * 0, y), "NaN"),
    ],
)
def test_rows_that_cannot_be_are_refused(bad, named):
    with pytest.raises(DataError, match=named):
        as_batches(bad(*rows()), batch_size=5, device=CPU, check=anything)


def test_a_stream_without_a_length_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(DataError, match="must have a length"):
        count_rows(DataLoader(Stream()))
