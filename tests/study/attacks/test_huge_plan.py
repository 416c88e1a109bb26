"""A plan that no computer can carry out is refused before anybody tries: finding 8."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from predbayes.errors import PlanError
from predbayes_study.cli.app import app
from predbayes_study.kit.kit import FINGERPRINT_FILE, Kit
from predbayes_study.kit.review import UnsoundPlanError
from predbayes_study.plan.schema import PLAN_FILE, Plan
from predbayes_study.plan.text import dump
from predbayes_study.site.policy import Asked, SitePolicy
from predbayes_study.site.rows import SiteRows
from tests.study.world import frozen, make_world, own_table

HUGE = {
    "hidden = [8]": ("hidden = [1000000, 1000000]", "max_samples"),
    "min_steps = 200": ("min_steps = 1000000000000", "learner.min_steps"),
    "threads = 1 ": ("threads = 4096 ", "learner.threads"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("huge") / "world")


@pytest.fixture(params=HUGE)
def asked(request, world):
    """The kit's plan with one setting that asks for too much, and the limit that it is above."""
    path = world.kit.folder / PLAN_FILE
    honest, (change, limit) = path.read_text(), HUGE[request.param]
    assert request.param in honest
    path.write_text(honest.replace(request.param, change))
    (world.kit.folder / FINGERPRINT_FILE).unlink(missing_ok=True)
    yield path, limit
    path.write_text(honest)


def test_plan_check_and_a_site_refuse_it(asked, world):
    path, limit = asked
    told = CliRunner().invoke(app, ["plan", "check", str(path.parent)])
    assert limit in told.output
    assert isinstance(told.exception, PlanError)
    with pytest.raises(PlanError, match=rf"{limit} = "):
        SitePolicy.of().require(Asked.of(Plan.load(path)))


def test_site_check_says_so(asked, world):
    path, limit = asked
    files = [path.parent, world.root / "reference.csv", "--site", world.root / "site.toml"]
    told = CliRunner().invoke(app, ["site", "check", *map(str, files)])
    assert limit in told.output


@pytest.mark.parametrize("path", ["check", "train", "audit", "node"])
def test_no_row_is_encoded_before_it_is_refused(asked, world, tmp_path, monkeypatch, path):
    """A vector of a million numbers, which a table need not have, is wide in each of its rows."""
    kit, limit = str(asked[0].parent), asked[1]
    monkeypatch.setattr(SiteRows, "of", classmethod(lambda *_, **__: pytest.fail("encoded")))
    (tmp_path / "site.toml").write_text('format = 1\nname = "Alpha"\n')
    world.key("Alpha").save(tmp_path / "Alpha.key")
    rows = tmp_path / "rows.csv"
    rows.write_text(own_table((world.root / "reference.csv").read_text()))
    site = ("--site", str(tmp_path / "site.toml"))
    out = ("--out", str(tmp_path / "out"))
    if path == "check":
        told = CliRunner().invoke(app, ["site", "check", kit, str(rows), *site])
        assert limit in told.output
    elif path == "node":
        node = require_node().of_config(
            {"site": site[1], "data": str(rows), "kit": kit, "out": out[1]}
        )
        node.training.approvals.record("plan", node.training.kit.digest, "officer")
        with pytest.raises(PlanError, match=rf"{limit} = "):
            node.answer(node.training.kit.digest)
    else:
        told = CliRunner().invoke(app, ["site", path, kit, str(rows), *site, *out])
        assert isinstance(told.exception, PlanError)
        assert f"{limit} = " in str(told.exception)


def require_node():
    """The Flower node, where Flower is installed."""
    return pytest.importorskip("predbayes_flower.node").Node


def test_it_cannot_be_frozen(tmp_path):
    with pytest.raises(UnsoundPlanError, match="max_memory"):
        make_world(tmp_path / "world", model="hidden = [1000000, 1000000]")


def test_a_small_kit_that_unfolds_to_much_is_refused_unread(tmp_path):
    """A million bytes, 120,000 categories and 60,000 rows, were 57 GB when somebody opened it."""
    plan = frozen(
        'format = 1\nname = "huge"\n[target]\nname = "y"\ntask = "regression"\n'
        f"centre = 0.0\nscale = 1.0\n[columns]\nword = {{ type = 'category', categories = "
        f"{[f'{n:x}' for n in range(20_000)]} }}\n[reference]\nlabelled = 60000\n"
    )
    (tmp_path / "plan.toml").write_text(dump(plan))
    with pytest.raises(PlanError, match="which no kit may ask a computer to hold"):
        Kit.load(tmp_path)
