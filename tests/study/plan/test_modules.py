"""A network of the consortium's own: of installed packages only, one source everywhere."""

import importlib
import json
import shutil
import sys

import pytest

from predbayes.errors import PlanError
from predbayes.study.coordinator.intake import Expected
from predbayes.study.kit.review import num_parameters
from predbayes.study.plan.models import site_network
from predbayes.study.plan.modules import load_module, load_object, source_digest
from tests.study.world import make_world

SOURCE = """
from torch import nn

def build(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 5), nn.Tanh(), nn.Linear(5, num_outputs))

not_callable = 3
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package as pip would leave it: a module, and the metadata of its distribution."""
    root = tmp_path / "site-packages"
    (root / "ournets").mkdir(parents=True)
    (root / "ournets" / "__init__.py").write_text("")
    (root / "ournets" / "nets.py").write_text(SOURCE)
    info = root / "ournets-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ournets\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("ournets\n")
    monkeypatch.syspath_prepend(root)
    yield root
    _forget()


def _forget():
    for name in ("ournets", "ournets.nets"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def world(installed, tmp_path):
    return make_world(tmp_path / "world", model='module = "ournets.nets:build"')


def test_the_plans_network_is_the_packages(world):
    plan = world.kit.plan
    assert plan.frozen.module_digest == source_digest("ournets.nets:build")
    sends_weights = plan.model_copy(
        update={"upload": plan.upload.model_copy(update={"kind": "weights"})}
    )
    arrays = Expected.of(sends_weights).arrays
    assert arrays["parameter/0.weight"][1] == (5, plan.num_inputs)
    assert num_parameters(plan) == sum(p.numel() for p in site_network(plan).build().parameters())


def test_another_source_than_was_agreed_on_is_refused(world, installed):
    path = installed / "ournets" / "nets.py"
    path.write_text(SOURCE.replace("5", "6"))
    with pytest.raises(PlanError, match="not that of the plan"):
        load_module(world.kit.plan)


def test_line_endings_do_not_change_the_digest(installed):
    before = source_digest("ournets.nets:build")
    path = installed / "ournets" / "nets.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert source_digest("ournets.nets:build") == before


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("nowhere.nets:build", "package nowhere is not installed"),
        ("ournets.absent:build", "no module ournets.absent"),
        ("ournets.nets:absent", "nothing called 'absent'"),
        ("ournets.nets:not_callable", "nothing called 'not_callable'"),
    ],
)
def test_what_is_not_there_is_one_line(installed, reference, problem):
    with pytest.raises(PlanError, match=problem):
        load_object(reference)


def test_a_file_beside_the_plan_is_no_installed_package(tmp_path, monkeypatch):
    (tmp_path / "sneaky.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match="package sneaky is not installed"):
        load_object("sneaky:build")


@pytest.fixture
def edited(installed, tmp_path, monkeypatch):
    """The same package as `pip install -e` would leave it: a line that names its project."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.move(installed / "ournets", project / "ournets")
    info = installed / "ournets-1.0.dist-info"
    (info / "top_level.txt").unlink()
    (info / "direct_url.json").write_text(
        json.dumps({"dir_info": {"editable": True}, "url": project.as_uri()})
    )
    (info / "RECORD").write_text("_ournets.pth,,\nournets-1.0.dist-info/METADATA,,\n")
    (installed / "_ournets.pth").write_text(f"import this_is_code\n{project}\n")
    monkeypatch.syspath_prepend(project)  # as Python does at its start
    return project


def test_an_editable_installation_counts(edited):
    assert load_object("ournets.nets:build")(2, 3)[0].in_features == 2


def test_of_an_editable_installation_only_what_its_folder_has_counts(edited, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sneaky.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(PlanError, match="package sneaky is not installed"):
        load_object("sneaky:build")


def test_a_folder_that_some_other_installation_names_is_no_editable_one(edited, installed):
    (installed / "ournets-1.0.dist-info" / "direct_url.json").unlink()
    with pytest.raises(PlanError, match="package ournets is not installed"):
        load_object("ournets.nets:build")


@pytest.fixture
def bundle(world, installed, tmp_path, monkeypatch):
    """A copy of the package, first on the path, as Flower unpacks the bundle of an app."""
    shutil.copytree(installed / "ournets", tmp_path / "bundle" / "ournets")
    monkeypatch.syspath_prepend(tmp_path / "bundle")
    _forget()
    return tmp_path / "bundle"


def test_a_bundle_with_the_plans_source_is_run(world, bundle):
    assert load_module(world.kit.plan)(2, 3)[0].out_features == 5
    assert sys.modules["ournets.nets"].__file__.startswith(str(bundle))


def test_a_bundle_with_another_source_is_refused_and_not_run(world, bundle):
    (bundle / "ournets" / "nets.py").write_text("raise SystemExit('ran')")
    with pytest.raises(PlanError, match=r"not that of the plan: .*bundle"):
        load_module(world.kit.plan)


def test_a_bundle_is_no_installation(world, bundle, installed):
    shutil.rmtree(installed / "ournets-1.0.dist-info")
    with pytest.raises(PlanError, match="package ournets is not installed"):
        load_module(world.kit.plan)


def test_a_study_with_it_goes_to_the_end(world):
    study = world.begin()
    for site in ("Alpha", "Beta"):
        study.add(world.file(site))
    _, result = study.finish()
    assert result.student.num_parameters == 5 * (world.kit.plan.num_inputs + 1) + 3 * 6
