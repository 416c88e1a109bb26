"""Before a result is made it is said from which earlier ones it differs by one site."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from predbayes.cli.app import app
from predbayes.errors import StudyError
from tests.study.world import SITES, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("differencing"))


@pytest.fixture
def study(world, tmp_path):
    """With a result of all sites but the last."""
    found = world.begin(tmp_path / "study")
    for site in SITES[:-1]:
        found.add(world.file(site))
    found.finish()
    return found


def test_nothing_is_said_of_a_first_result_or_of_the_same_again(world, study, tmp_path):
    fresh = world.begin(tmp_path / "fresh")
    fresh.add(world.file(SITES[0]))
    assert fresh.told_apart() == []
    assert study.told_apart() == []


def test_a_late_site_is_told_apart(world, study):
    study.add(world.file(SITES[-1]))
    (line,) = study.told_apart()
    assert line.startswith(f"this result and result 1 differ by {SITES[-1]} alone")


def test_a_site_that_withdrew_or_is_left_out_is_told_apart(study):
    (line,) = study.told_apart([SITES[0]])
    assert f"differ by {SITES[0]} alone" in line
    study.withdraw(SITES[1])
    (line,) = study.told_apart()
    assert f"differ by {SITES[1]} alone" in line


def test_two_sites_at_once_are_not_told_apart(world, study):
    study.add(world.file(SITES[-1]))
    assert study.told_apart([SITES[0]]) == []


def test_the_command_says_it_before_it_begins(world, study):
    study.add(world.file(SITES[-1]))
    said = CliRunner().invoke(app, ["study", "finish", "--study", str(study.folder)]).stdout
    assert said.index("differ by") < said.index("screening, pooling")


def test_a_plan_may_forbid_it(tmp_path):
    world = make_world(tmp_path / "forbids", gate='[privacy]\ndifferences = "forbid"\n')
    found = world.begin(tmp_path / "study")
    for site in SITES[:-2]:
        found.add(world.file(site))
    found.finish()
    found.add(world.file(SITES[-2]))
    with pytest.raises(StudyError, match=r"privacy\.differences forbids it"):
        found.finish()
    found.add(world.file(SITES[-1]))
    assert found.finish()[0].number == 2
