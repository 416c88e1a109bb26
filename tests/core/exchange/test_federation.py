from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from predbayes.errors import DataError, TrainingError
from predbayes.exchange.federation import InProcess, LeftOut, Task, require_federation
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


class Breaks(Draw):
    """A method that fails at a site with a row below zero, by an error of the user's own."""

    def learn(self, state, rows, inputs, *, rng):
        if bool((rows[0] < 0).any()):
            raise RuntimeError("mat1 and mat2\ncannot be multiplied")
        return super().learn(state, rows, inputs, rng=rng)


class TestASiteThatFails:
    GOOD, BAD, WIDE = torch.zeros(3, 1), -torch.ones(3, 1), torch.zeros(3, 2)

    def collect(self, on_error, **inputs):
        sites = {name: (x, torch.zeros(3)) for name, x in inputs.items()}
        federation = InProcess(sites, on_error=on_error)
        return list(federation.collect(Task(Breaks(), 0.0, torch.zeros(1, 1))))

    def test_is_named_in_one_line_whatever_went_wrong(self):
        said = "^site 'Bern': RuntimeError: mat1 and mat2$"
        with pytest.raises(TrainingError, match=said) as error:
            self.collect("raise", Basel=self.GOOD, Bern=self.BAD)
        assert isinstance(error.value.__cause__, RuntimeError)

    def test_is_left_out_if_asked_for(self):
        arrived = self.collect("skip", Bern=self.BAD, Basel=self.GOOD, Zug=self.WIDE)
        assert arrived[0] == LeftOut("Bern", "RuntimeError: mat1 and mat2")
        assert arrived[1].info.site == "Basel"
        assert arrived[1].digest() == self.collect("raise", Basel=self.GOOD)[0].digest()
        assert arrived[2].site == "Zug"
        assert "2 inputs per row" in arrived[2].reason

    def test_cannot_be_the_only_one(self):
        with pytest.raises(TrainingError, match=r"^every site was left out; site 'Bern': Runtime"):
            self.collect("skip", Bern=self.BAD, Zug=self.BAD)


class TestALearnerOfItsOwn:
    SITES = dict.fromkeys(["Basel", "Bern"], (torch.zeros(3, 1), torch.zeros(3)))

    def test_is_what_the_method_has_at_that_site_alone(self):
        @dataclass(frozen=True)
        class Names:
            learner: str

            def with_learner(self, learner):
                return Names(learner)

            def learn(self, state, rows, inputs, *, rng):
                told.append(self.learner)
                return Draw().learn(0.0, rows, inputs, rng=rng)

        told = []
        federation = InProcess(self.SITES, learners={"Bern": "forest"})
        list(federation.collect(Task(Names("network"), 0.0, torch.zeros(1, 1))))
        assert told == ["network", "forest"]

    def test_is_of_a_site_that_exists(self):
        with pytest.raises(TrainingError, match="learners: no site 'Basl'; did you mean 'Basel'"):
            InProcess(self.SITES, learners={"Basl": None})
