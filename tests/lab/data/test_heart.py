from __future__ import annotations

import pytest
import torch

from predbayes.errors import DataError
from predbayes.partition import by_group
from predbayes.seeding import generator
from predbayes_lab.data.heart import HOSPITALS, parse_hospital
from predbayes_lab.data.registry import load
from tests.lab.data.publishers import write_hospitals

SIZES = (50, 30, 10, 20)
NUM_TEST = [17, 11, 4, 7]  # a third and a bit, rounded up


@pytest.fixture
def root(tmp_path):
    write_hospitals(tmp_path, SIZES)
    return tmp_path


def test_every_hospital_is_split_in_the_same_proportion(root, rng):
    heart = load("heart", root=root, rng=rng)
    assert heart.group_names == HOSPITALS
    assert heart.test_groups.bincount().tolist() == NUM_TEST
    sizes = [len(part) for part in by_group(heart.train_groups)]
    assert sizes == [n - t for n, t in zip(SIZES, NUM_TEST, strict=True)]


def test_numbers_are_scaled_by_training_rows_and_categories_are_indicators(root, rng):
    heart = load("heart", root=root, rng=rng)
    names = list(heart.feature_names)
    ages = heart.train_inputs[:, names.index("age")]
    assert float(ages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(ages.std(correction=0)) == pytest.approx(1, abs=1e-5)
    for column in ("cp", "restecg"):
        own = [k for k, name in enumerate(names) if name.startswith(f"{column}=")]
        assert len(own) == {"cp": 4, "restecg": 3}[column]
        assert torch.equal(heart.train_inputs[:, own].sum(1), torch.ones(len(ages)))
    assert heart.train_inputs.shape[1] == len(names) == 15


def test_test_rows_change_no_training_number(root):
    before = load("heart", root=root, rng=generator(1))
    path = root / "uci" / "heart" / "processed.va.data"
    lines = path.read_text().splitlines()
    rng = generator(1)
    orders = [torch.randperm(size, generator=rng) for size in SIZES]
    for row in orders[-1][: NUM_TEST[-1]].tolist():
        cells = lines[1 + row].split(",")  # the first line has a missing value
        lines[1 + row] = ",".join(["99", *cells[1:-1], "4"])
    path.write_text("\n".join(lines))
    after = load("heart", root=root, rng=generator(1))
    assert torch.equal(before.train_inputs, after.train_inputs)
    assert torch.equal(before.train_targets, after.train_targets)
    assert not torch.equal(before.test_inputs, after.test_inputs)


def test_any_narrowing_is_positive():
    rows = [f"50,1,2,130,200,0,0,150,0,1.5,?,?,?,{num}" for num in range(5)]
    parsed = parse_hospital("\n".join(rows).encode(), "x")
    assert (parsed[:, -1] > 0).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "x, line 1 has 3 columns, not 14"),
        ("50,1,2,130,old,0,0,150,0,1.5,?,?,?,0", "x, line 1: could not convert"),
        ("50,1,2,130,?,0,0,150,0,1.5,?,?,?,0", "x has no complete rows"),
    ],
)
def test_other_files_are_refused(line, message):
    with pytest.raises(DataError, match=message):
        parse_hospital(line.encode(), "x")
