from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from predbayes.errors import DataError, TrainingError
from predbayes.exchange.federation import InProcess, Task, require_federation
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Gaussian


class Draw:
    """A method whose upload is the first number that its site draws."""

    def learn(self, state, rows, inputs, *, rng):
        mean = torch.rand(1, generator=rng) + state
        return Upload.of_predictions(Gaussian(mean, torch.ones(1)), num_rows=len(rows[0]))


def collect(names, seed=0, number=0):
    sites = {name: (torch.zeros(3, 1), torch.zeros(3)) for name in names}
    uploads = InProcess(sites).collect(Task(Draw(), 0.0, torch.zeros(1, 1), number, seed))
    return {upload.info.site: upload.digest() for upload in uploads}


def test_uploads_carry_their_sites_name():
    assert set(collect(["basel", "bern"])) == {"basel", "bern"}


def test_a_site_does_not_depend_on_the_others():
    assert collect(["bern", "basel", "zug"])["basel"] == collect(["basel"])["basel"]


def test_sites_rounds_and_seeds_differ():
    digests = {
        collect(["basel"], seed, number)["basel"] for seed in range(2) for number in range(2)
    }
    digests.add(collect(["bern"])["bern"])
    assert len(digests) == 5


def test_uploads_come_one_at_a_time():
    trained = []

    class Record(Draw):
        def learn(self, state, rows, inputs, *, rng):
            trained.append(len(trained))
            return super().learn(state, rows, inputs, rng=rng)

    sites = {str(k): (torch.zeros(3, 1), torch.zeros(3)) for k in range(3)}
    stream = InProcess(sites).collect(Task(Record(), 0.0, torch.zeros(1, 1)))
    next(stream)
    assert trained == [0]


@pytest.mark.parametrize("other", [InProcess, {}, None])
def test_what_cannot_reach_sites_is_no_federation(other):
    with pytest.raises(TrainingError, match=r"^\w+ is no federation: [^\n]+$"):
        require_federation(other)


def test_a_federation_needs_sites():
    with pytest.raises(DataError, match="there is no site"):
        InProcess({})
    with pytest.raises(DataError, match=r"dict name -> \(inputs, targets\), not a list"):
        InProcess([(torch.zeros(3, 1), torch.zeros(3))])


@pytest.mark.parametrize("given", [torch.zeros(3, 4), np.zeros((3, 2, 2))])
def test_a_site_of_another_width_is_refused_before_any_trains(given):
    class Untouched:
        def learn(self, state, rows, inputs, *, rng):
            raise AssertionError("a site was trained")

    sites = {"A": (torch.zeros(3, 13), torch.zeros(3)), "B": (given, torch.zeros(3))}
    message = "^site 'B' has 4 inputs per row, the reference rows 13$"
    with pytest.raises(DataError, match=message):
        next(InProcess(sites).collect(Task(Untouched(), 0.0, torch.zeros(1, 13))))


def test_loaders_are_not_read_for_their_width():
    loader = DataLoader(TensorDataset(torch.zeros(3, 4), torch.zeros(3)))

    class Count:
        def learn(self, state, rows, inputs, *, rng):
            assert rows.loader is loader
            return Upload.of_predictions(Gaussian(torch.zeros(1), torch.ones(1)), num_rows=3)

    assert next(InProcess({"A": loader}).collect(Task(Count(), 0.0, torch.zeros(1, 13))))
