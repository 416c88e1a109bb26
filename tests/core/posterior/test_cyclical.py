from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import TrainingError
from predbayes.posterior.cyclical import PRESETS, CyclicalSchedule, SamplerSettings


@st.composite
def schedules(draw):
    cycles = draw(st.integers(1, 6))
    per_cycle = draw(st.integers(1, 4))
    exploration = draw(st.floats(0, 0.9))
    shortest = math.ceil(per_cycle / (1 - exploration)) + 2
    steps = draw(st.integers(shortest * cycles, 40 * shortest * cycles))
    return CyclicalSchedule(steps, cycles, 0.5, per_cycle, exploration)


@given(schedules())
def test_every_cycle_restarts_and_decays(schedule):
    sizes = [schedule.step_size_at(step) for step in range(schedule.num_steps)]
    restarts = [i for i in range(1, len(sizes)) if sizes[i] > sizes[i - 1]]
    assert len(restarts) == schedule.num_cycles - 1
    assert all(sizes[i] == 0.5 for i in [0, *restarts])
    assert all(0 < size <= 0.5 for size in sizes)


@given(schedules())
def test_samples_come_from_sampling_stages(schedule):
    steps = schedule.snapshot_steps()
    assert len(steps) == len(set(steps)) == schedule.num_cycles * schedule.samples_per_cycle
    assert steps == sorted(steps)
    assert all(schedule.is_sampling(step) for step in steps)
    assert steps[-1] == schedule.num_steps - 1


@given(schedules())
def test_noise_is_on_for_the_declared_fraction(schedule):
    noisy = sum(schedule.is_sampling(step) for step in range(schedule.num_steps))
    declared = (1 - schedule.exploration) * schedule.num_steps
    assert abs(noisy - declared) <= schedule.num_cycles


def test_step_size_is_the_papers_cosine():
    """Zhang et al. 2020, eq. 1, with cycles of ten steps."""
    schedule = CyclicalSchedule(30, 3, 0.2, 1)
    for step in range(30):
        expected = 0.1 * (math.cos(math.pi * (step % 10) / 10) + 1)
        assert schedule.step_size_at(step) == pytest.approx(expected)


@given(schedules(), st.floats(0, 1))
def test_a_floor_holds_where_noise_is_on_and_nowhere_else(schedule, floor):
    floored = replace(schedule, step_floor=floor)
    for step in range(schedule.num_steps):
        cosine = schedule.step_size_at(step)
        expected = max(cosine, floor * 0.5) if schedule.is_sampling(step) else cosine
        assert floored.step_size_at(step) == expected


def test_counter_counts_batches_over_the_whole_run():
    """MNIST's 96 batches × 25 epochs make five cycles; the released counter never restarts."""
    settings = PRESETS["paper"]
    schedule = settings.schedule(25 * 96)
    assert [schedule.step_size_at(480 * k) for k in range(5)] == [0.1] * 5
    assert schedule.snapshot_steps()[-6:] == [1391, 1439, 1871, 1919, 2351, 2399]


@pytest.mark.parametrize("bad", [{"num_cycles": 0}, {"samples_per_cycle": 0}, {"exploration": 1.0}])
def test_schedules_that_make_no_sense_are_refused(bad):
    options = {"num_steps": 100, "num_cycles": 1, "step_size": 0.1, "samples_per_cycle": 1} | bad
    with pytest.raises(TrainingError):
        CyclicalSchedule(**options)


@pytest.mark.parametrize(
    "bad", [{"max_samples": 0}, {"batch_size": 0}, {"temperature": "1/N"}, {"step_floor": 2.0}]
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(TrainingError):
        SamplerSettings(**bad)
