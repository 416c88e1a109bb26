from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from predbayes.errors import DataError
from predbayes.exchange.reference import ReferenceRows


def test_roles_lie_in_order():
    rows = ReferenceRows.of(
        (torch.zeros(2, 1), torch.tensor([0, 1])),
        unlabelled=torch.ones(3, 1),
        evaluate=2 * torch.ones(4, 1),
    )
    assert rows.inputs[rows.labelled].unique().tolist() == [0]
    assert rows.inputs[rows.distillation].unique().tolist() == [0, 1]
    assert rows.inputs[rows.evaluate].unique().tolist() == [2]
    assert [len(rows.inputs[s]) for s in (rows.labelled, rows.distillation, rows.evaluate)] == [
        2,
        5,
        4,
    ]


def test_counts_must_fit():
    with pytest.raises(DataError, match="cannot hold"):
        ReferenceRows(torch.zeros(3, 1), torch.zeros(2), num_evaluate=2)
    with pytest.raises(DataError, match="one shape"):
        ReferenceRows.of((torch.zeros(2, 1), torch.zeros(2)), unlabelled=torch.zeros(2, 3))
    with pytest.raises(DataError, match="2 labelled inputs with 1 labels"):
        ReferenceRows.of((torch.zeros(2, 1), torch.zeros(1)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_refused(bad):
    inputs = torch.zeros(9, 2)
    inputs[7, 1] = bad
    with pytest.raises(DataError, match=r"^reference row 7, counted from 0, is not finite[^\n]*$"):
        ReferenceRows(inputs, torch.zeros(2))


@pytest.mark.parametrize("bad", [torch.zeros(2, 1), (torch.zeros(2, 1),), None])
def test_what_else_is_given_is_told_how(bad):
    with pytest.raises(DataError, match=r"pb\.ReferenceRows\.of\(.*not \w+$"):
        ReferenceRows.given(bad)


def test_labelled_rows_may_be_whatever_a_sites_rows_may_be():
    inputs, targets = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 0, 1, 1])
    dicts = [{"img": x, "label": y} for x, y in zip(inputs, targets, strict=True)]
    pairs = TensorDataset(inputs, targets)
    whole = Subset(pairs, range(5))
    for given in (
        DataLoader(dicts, 2),
        DataLoader(pairs, 2),
        pairs,
        whole,
        {"x": inputs, "y": targets},
    ):
        rows = ReferenceRows.of(given, unlabelled=torch.zeros(1, 2))
        assert torch.equal(rows.inputs[:5], inputs)
        assert torch.equal(rows.targets, targets)


def test_inputs_alone_are_told_how_rows_without_labels_are_written():
    x, y = torch.zeros(3, 2), torch.zeros(5)
    for alone in (x, x.numpy(), TensorDataset(x)):
        with pytest.raises(DataError) as refused:
            ReferenceRows.of(alone)
        assert "ReferenceRows.of((x[:0], y[:0]), unlabelled=x)" in str(refused.value)
    rows = ReferenceRows.of((x[:0], y[:0]), unlabelled=x)
    assert (len(rows.inputs), len(rows.targets)) == (3, 0)
