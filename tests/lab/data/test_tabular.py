from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.errors import DataError
from predbayes.seeding import generator
from predbayes_lab.data.registry import count_rows, load
from predbayes_lab.data.tabular import TABLES
from tests.lab.data.publishers import table, write_table


@pytest.fixture
def root(tmp_path):
    for name in TABLES:
        write_table(tmp_path, *table(name))
    return tmp_path


@pytest.mark.parametrize("name", TABLES)
class TestEveryTable:
    def test_scaling_knows_the_training_rows_only(self, name, root, rng):
        dataset = load(name, root=root, rng=rng)
        assert (len(dataset.train_targets), len(dataset.test_targets)) == (40, 10)
        column = dataset.feature_names.index({"airquality": "T"}.get(name, TABLES[name].sorted_by))
        for values in (dataset.train_inputs[:, column], dataset.train_targets):
            assert values.dtype == torch.float32
            assert float(values.mean()) == pytest.approx(0, abs=1e-6)
            assert float(values.std(correction=0)) == pytest.approx(1, abs=1e-5)
        assert abs(float(dataset.test_targets.mean())) > 1e-3

    def test_test_rows_change_no_training_number(self, name, root):
        """Every number of the rows that this seed holds out is changed in the file."""
        before = load(name, root=root, rng=generator(3))
        file, frame = table(name)
        test = torch.randperm(50, generator=generator(3))[:10].tolist()
        numbers = [c for c in frame.select_dtypes("number") if c not in ("NMHC(GT)", "instant")]
        frame[numbers] = frame[numbers].astype(float)
        frame.loc[test, numbers] *= 7.5
        write_table(root, file, frame)
        after = load(name, root=root, rng=generator(3))
        for field in ("train_inputs", "train_targets", "sort_feature"):
            assert torch.equal(getattr(before, field), getattr(after, field))
        assert not torch.equal(before.test_targets, after.test_targets)

    def test_clients_are_sorted_by_the_named_feature(self, name, root, rng):
        dataset = load(name, root=root, rng=rng)
        assert (TABLES[name].sorted_by in dataset.feature_names) == (name != "airquality")
        if name != "airquality":
            values = dataset.train_inputs[:, dataset.feature_names.index(TABLES[name].sorted_by)]
            assert torch.equal(dataset.sort_feature.argsort(), values.argsort())

    def test_released_variant_holds_the_last_fifth_out_and_scales_by_all_rows(self, name, root):
        first, second = (
            load(name, root=root, rng=generator(s), variant="released") for s in (0, 1)
        )
        assert torch.equal(first.test_inputs, second.test_inputs)
        targets = torch.cat([first.train_targets, first.test_targets])
        assert float(targets.mean()) == pytest.approx(0, abs=1e-6)
        assert float(targets.std()) == pytest.approx(1, abs=1e-5)
        spec = TABLES[name]
        published = torch.tensor(table(name)[1][spec.target].to_numpy(dtype=np.float64))
        assert targets.double().argsort().tolist() == published.argsort().tolist()
        assert first.fingerprint.variant == "released"
        assert "leaks" in first.fingerprint.note


def test_what_gives_the_target_away_is_dropped_but_for_the_released_variant(root, rng):
    names = {
        (name, variant): load(name, root=root, rng=rng, variant=variant).feature_names
        for name in TABLES
        for variant in ("default", "released")
    }
    circles = ("month sine", "month cosine", "day sine", "day cosine")
    assert names == {
        ("airquality", "default"): ("T", "RH"),
        ("airquality", "released"): ("T", "RH", "month", "hour"),
        ("bike", "default"): ("temp",),
        ("bike", "released"): ("temp", "casual", "registered"),
        ("forest-fires", "default"): ("temp", *circles),
        ("forest-fires", "released"): ("month", "day", "temp"),
        ("real-estate", "default"): ("X1 transaction date",),
        ("real-estate", "released"): ("No", "X1 transaction date"),
        ("wine", "default"): ("alcohol", "pH"),
        ("wine", "released"): ("alcohol", "pH"),
    }


def test_rows_of_air_quality_with_missing_values_are_dropped(root, rng):
    file, frame = table("airquality")
    frame.loc[0, "CO(GT)"] = -200
    frame.loc[[0, 1, 2], "RH"] = -200
    write_table(root, file, frame)
    assert count_rows("airquality", root) == 47
    released = load("airquality", root=root, rng=rng, variant="released").fingerprint
    assert released.num_train + released.num_test == 49


def test_air_quality_is_sorted_by_date_and_time(root):
    """Time runs backwards in the file: row k is 49 - k hours after the first measurement."""
    hours = load("airquality", root=root, rng=generator(3)).sort_feature
    rows = torch.randperm(50, generator=generator(3))[10:]
    assert hours.tolist() == (49 - rows).tolist()


def test_december_is_as_close_to_january_as_february_is():
    frame = pd.DataFrame({"month": ["dec", "jan", "feb", "jul"], "day": "sun", "area": 0.0})
    points = TABLES["forest-fires"].prepare(frame)[["month sine", "month cosine"]].to_numpy()
    distances = np.linalg.norm(points - points[1], axis=1)
    assert distances[0] == pytest.approx(distances[2])
    assert distances[3] == pytest.approx(2)


def test_the_target_of_forest_fires_is_the_logarithm_of_one_plus_area(root, rng):
    _, frame = table("forest-fires")
    dataset = load("forest-fires", root=root, rng=generator(3))
    rows = torch.randperm(50, generator=generator(3))[10:]
    logs = torch.tensor(np.log1p(frame["area"].to_numpy()))[rows]
    expected = (logs - logs.mean()) / logs.std(correction=0)
    torch.testing.assert_close(dataset.train_targets.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "file", "content", "named"),
    [
        ("wine", "winequality-red.csv", b"a;b\n1;2\n", "'quality'"),
        ("wine", "winequality-red.csv", b"alcohol;quality\n1;good\n", "other than numbers"),
        ("wine", "winequality-red.csv", b"alcohol;quality\n1;2\n;3\n", "empty cells"),
        ("wine", "winequality-red.csv", b"", "not a table"),
        ("bike", "bike.csv", b"cnt,temp\n1,2\n", "lacks a column"),
        ("airquality", "AirQualityUCI.xlsx", b"no archive", "not a table"),
        ("forest-fires", "forestfires.csv", b"month,day,temp,area\nDez,sun,1,1\n", "'Dez'"),
    ],
)
def test_tables_of_another_shape_are_refused(name, file, content, named, tmp_path, rng):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / file).write_bytes(content)
    with pytest.raises(DataError, match=named):
        load(name, root=tmp_path, rng=rng)
