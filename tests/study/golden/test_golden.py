"""Studies give bit-identical uploads, models and predictions.

`scripts/regenerate golden` makes `digests.json` anew after a change that is meant to change them.
The changelog has the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.study.golden.studies import STUDIES

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEPT = json.loads((HERE / "digests.json").read_text())


def made(name: str) -> dict[str, dict[str, str]]:
    """What a study leaves now; in a process of its own, which pins its arithmetic."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.study.golden.studies", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.data] if name in {"hospitals", "regression"} else [])
        for name in STUDIES
    ],
)
@pytest.mark.ci("whole studies with small kernels alone")
def test_a_study_leaves_the_same_bits(name):
    now = made(name)
    if now["probe"] == KEPT["probe"]:
        assert now[name] == KEPT[name]
    else:  # this processor rounds differently, in spite of what is pinned: no bits can be compared
        assert now[name].keys() == KEPT[name].keys()
        assert now["figures"][name] == pytest.approx(KEPT["figures"][name], rel=0.02)
