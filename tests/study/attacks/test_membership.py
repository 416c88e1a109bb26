"""A patient among the reference rows is found before anything is sent: finding 8.

What a site sends about such a row tells whether the patient is in its table: with 32 shadow models
the attack had an AUC of up to .88. Now `site check` compares reference rows with the site's own.
"""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from predbayes.errors import DataError
from predbayes.seeding import generator
from predbayes_study.cli.app import app
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import Training
from tests.study.world import make_world

NUM_OWN = 120


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("membership") / "world")


def check(world, candidates: int, policy: str = "", *options: str):
    """Check a site's table that has so many of the reference rows in it."""
    rng = generator(0, "own rows")
    own = pd.DataFrame((10 * torch.randn(NUM_OWN, 2, generator=rng)).numpy(), columns=["x", "y"])
    reference = pd.read_csv(world.kit.folder / "reference.csv")[:candidates]
    frame = pd.concat([own, reference]).assign(kind="red")
    (world.root / "rows.csv").write_text(frame.to_csv(index=False, float_format="%.6g"))
    (world.root / "site.toml").write_text(f'format = 1\nname = "Alpha"\n{policy}')
    paths = [world.kit.folder, world.root / "rows.csv", "--site", world.root / "site.toml"]
    told = CliRunner().invoke(app, ["site", "check", *map(str, paths), *options])
    return f"{told.output}\n{told.exception}"


def test_a_planted_candidate_is_found(world):
    nothing = check(world, 0, "", "--show-values")
    assert "equal to one of your rows: 0 reference rows; nearer than yours" in nothing
    found = check(world, 1, "", "--show-values")
    assert "warning: 1 reference row is nearer to one of your rows" in found
    assert "1 of them equal: ask the coordinator" in found
    assert "fits the plan" in found


def test_what_may_be_mailed_does_not_tell_how_many(world):
    """Whoever put three people there could be told how many of them are patients."""
    found = {check(world, candidates) for candidates in (1, 2, 3)}
    without_counts = {text.replace(f"{NUM_OWN + n} rows", "") for text in found for n in range(4)}
    assert all("warning: fewer than 5 reference rows are nearer" in text for text in found)
    assert not any("of them equal" in text for text in without_counts)


def test_a_policy_refuses_any(world):
    found = check(world, 1, "[policy]\nmax_near = 0\n")
    assert "error: fewer than 5 reference rows are nearer" in found
    assert "max_near allows 0 (site.toml)" in found


def test_many_are_refused_without_a_policy(world):
    found = check(world, 40)
    assert "error: at least 40 reference rows are nearer" in found
    assert "does not fit yet" in found


def test_nor_does_a_site_train_with_them(world, tmp_path):
    """`site check` may have been left out, and at a Flower node nobody runs it."""
    reference = pd.read_csv(world.kit.folder / "reference.csv")
    frame = pd.concat([reference[:60]]).assign(kind=["red", "green", "blue"] * 20)
    training = Training(
        world.kit, "Alpha", world.key("Alpha"), Approvals(tmp_path), tmp_path / "out"
    )
    with pytest.raises(DataError, match=r"at least 60 .* chance explains"):
        training.run(SiteRows.of(world.kit.plan, frame))
