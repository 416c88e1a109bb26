from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predbayes.data.tabular import load_table
from predbayes.errors import DataError
from predbayes.seeding import generator


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"alcohol": draw.uniform(8, 14, 50), "pH": np.full(50, 3.3)})
    frame["quality"] = frame["alcohol"].round()
    frame.to_csv(tmp_path / "winequality-red.csv", sep=";", index=False)
    casual = draw.integers(0, 100, 30)
    frame = pd.DataFrame({"instant": range(30), "dteday": "2011-01-01", "temp": casual / 100})
    frame = frame.assign(casual=casual, registered=2 * casual, cnt=3 * casual)
    frame.to_csv(tmp_path / "bike.csv", index=False)
    return tmp_path


def test_scaling_knows_the_training_rows_only(folder, rng):
    table = load_table("wine", folder, rng=rng)
    assert (len(table.train_targets), len(table.test_targets)) == (40, 10)
    for values in (table.train_inputs[:, 0], table.train_targets):
        assert float(values.mean()) == pytest.approx(0, abs=1e-6)
        assert float(values.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(table.test_targets.mean())) > 1e-3


def test_constant_columns_do_no_harm(folder, rng):
    table = load_table("wine", folder, rng=rng)
    assert table.train_inputs[:, 1].abs().max() < 1e-6


def test_columns_that_give_the_target_away_are_dropped(folder, rng):
    assert load_table("bike", folder, rng=rng).feature_names == ("temp",)


def test_the_sorting_feature_is_one_of_the_features(folder, rng):
    table = load_table("wine", folder, rng=rng)
    assert table.sort_feature.tolist() == table.train_inputs[:, 0].tolist()


def test_seeds_change_the_split(folder):
    first, again, other = (load_table("wine", folder, rng=generator(s)) for s in (0, 0, 1))
    assert first.test_targets.tolist() == again.test_targets.tolist()
    assert first.test_inputs.tolist() != other.test_inputs.tolist()


def test_unknown_tables_and_columns_are_named(folder, rng):
    with pytest.raises(DataError, match="there are bike, wine"):
        load_table("vine", folder, rng=rng)
    (folder / "winequality-red.csv").write_text("a;b\n1;2\n")
    with pytest.raises(DataError, match="no column 'quality'"):
        load_table("wine", folder, rng=rng)
