"""The statistics of the benchmark `hospitals`; its figures are in `test_targets.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.hospitals import (
    SETTINGS,
    nearest,
    patient_table,
    score_split,
)
from predbayes.experiments.world import make_world


@pytest.mark.data
@pytest.mark.parametrize("seed", [1, 2])
def test_every_patient_is_recognised_in_every_split(seed):
    """Numbers are scaled by the training rows, so a patient looks different in each split."""
    canonical, table = (patient_table(make_world(SETTINGS, s).dataset) for s in (0, seed))
    assert not torch.allclose(table, canonical)
    distances = torch.cdist(table, canonical, compute_mode="donot_use_mm_for_euclid_dist")
    assert float(distances.min(1).values.max()) < 1e-4
    # Patients with all values alike are taken for one.
    assert len(np.unique(nearest(table, canonical))) == len(np.unique(canonical.numpy(), axis=0))


@pytest.mark.data
def test_a_split_scores_every_line_on_the_same_rows():
    canonical = patient_table(make_world(SETTINGS, 0).dataset)
    split = score_split(0, canonical)
    assert {"cleveland", "va plus labels", "labels alone", "beta", "auto"} <= split.losses[
        "nll"
    ].keys()
    for by_line in split.losses.values():
        assert {len(values) for values in by_line.values()} == {len(split.patients)}
    # The canonical order has the test rows of this very split last.
    first = len(canonical) - len(split.patients)
    assert set(split.patients.tolist()) <= set(range(first, len(canonical)))
    # Nearly all patients of this hospital are ill, so its own model misleads elsewhere.
    assert split.losses["nll"]["switzerland"].mean() > split.losses["nll"]["auto"].mean()
