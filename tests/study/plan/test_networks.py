"""A network of the consortium's own: offered by an installed distribution, one source everywhere,
imported by nobody who did not allow it."""

import functools
import importlib.util
import py_compile
import shutil
import sys

import pytest

from predbayes.errors import PlanError
from predbayes_study.payload import payload_of
from predbayes_study.plan.models import make_learner, site_network
from predbayes_study.plan.networks import Installed, require_agreed
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.sizes import num_parameters
from predbayes_study.plan.text import dump
from predbayes_study.result.model import CalibratedModel
from predbayes_study.site.fitting import make_upload
from tests.study.plan.distribution import FILES, NAME, SOURCE, forget, install
from tests.study.world import make_world

MODEL = f'module = "{NAME}"'


@pytest.fixture
def installed(tmp_path, monkeypatch):
    root = install(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(root)
    yield root
    forget()


@pytest.fixture
def world(installed, tmp_path):
    return make_world(tmp_path / "world", model=MODEL)


def test_a_cache_that_python_runs_without_a_look_at_its_source_is_refused(installed, tmp_path):
    """The same sources, so the same digest, and other code that runs."""
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit\n")
    source = next(installed.rglob("ournets/*.py"))
    Installed.find(NAME)
    assert "ournets" not in sys.modules  # looking imports nothing
    py_compile.compile(
        str(other),
        importlib.util.cache_from_source(str(source)),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    with pytest.raises(PlanError, match="which may be of other code"):
        Installed.find(NAME)


class TestFrozen:
    def test_a_plan_states_the_code_its_size_and_its_arrays(self, world, installed):
        plan = world.kit.plan
        agreed = plan.frozen.network
        assert (agreed.distribution, agreed.version) == ("ournets", "1.0")
        assert agreed.digest == Installed.find(NAME).digest
        assert Plan.loads(dump(plan)) == plan
        assert agreed.parameters == 5 * (plan.num_inputs + 1) + 3 * 6 == num_parameters(plan)
        assert agreed.arrays["parameter/0.weight"] == ("float32", (5, plan.num_inputs))

    def test_of_a_regression_with_the_noise(self, installed, tmp_path):
        plan = make_world(tmp_path / "world", regression=True, model=MODEL).kit.plan
        assert plan.frozen.network.parameters == 5 * (plan.num_inputs + 1) + 6 + 1

    @pytest.mark.parametrize(
        ("section", "change", "problem"),
        [
            ("frozen.network", {"parameters": 3}, "not as many as the arrays have"),
            ("frozen.network", {"digest": "x"}, "digest"),
            ("frozen", {"network": None}, r"frozen\.network: is not that"),
            ("model", {"module": ""}, r"frozen\.network: is not that"),
            ("model", {"module": "a:b"}, "entry point"),
            ("model", {"module": "numpy.f2py.__main__:main"}, "entry point"),
            ("model", {"module": " x"}, "at most 64"),
            ("model", {"module": "x" * 65}, "at most 64"),
            ("pool", {"own": "numpy.f2py.__main__:main"}, r"pool\.own"),
        ],
    )
    def test_what_it_states_fits_together_and_names_no_place(self, world, section, change, problem):
        stated = world.kit.plan.model_dump()
        functools.reduce(dict.__getitem__, section.split("."), stated).update(change)
        with pytest.raises(ValueError, match=problem):
            Plan.model_validate(stated)


class TestInstalled:
    @pytest.mark.parametrize(
        ("installation", "problem"),
        [
            ({"offers": {"other": "ournets.nets:build"}}, "no installed network 'ours'"),
            ({"record": False}, r"does not list ournets\.nets among its files"),
            ({"files": {**FILES, "ournets/fast.so": ""}}, "has compiled files"),
            ({"files": {**FILES, "ournets/nets2.pyc": ""}}, "has compiled files"),
            ({"offers": {NAME: "ournets.nets:absent"}}, "no attribute"),
            ({"offers": {NAME: "ournets.nets:not_callable"}}, "no function"),
        ],
    )
    def test_what_is_not_whole_is_refused(self, tmp_path, monkeypatch, installation, problem):
        monkeypatch.syspath_prepend(install(tmp_path / "site-packages", **installation))
        with pytest.raises(PlanError, match=problem):
            Installed.find(NAME).load()
        forget()

    @pytest.mark.parametrize("name", FILES)
    def test_every_file_counts(self, world, installed, name):
        (installed / name).write_text(f"{FILES[name]}\nraise SystemExit('ran')")
        with pytest.raises(PlanError, match=r"not those of the plan; install ournets 1\.0"):
            require_agreed(world.kit.plan)
        (installed / name).unlink()
        with pytest.raises(PlanError):
            require_agreed(world.kit.plan)

    def test_line_endings_do_not(self, installed):
        before = Installed.find(NAME).digest
        path = installed / "ournets" / "nets.py"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert Installed.find(NAME).digest == before

    def test_two_that_offer_one_name_are_refused(self, installed):
        install(installed, {"theirs.py": SOURCE}, distribution="theirs", offers={NAME: "theirs:b"})
        with pytest.raises(PlanError, match="2 installed distributions offer the network 'ours'"):
            Installed.find(NAME)

    def test_what_lies_in_the_working_directory_is_not_installed(self, installed, monkeypatch):
        monkeypatch.chdir(installed)
        with pytest.raises(PlanError, match="outside its installation"):
            Installed.find(NAME)


class TestBundle:
    """A copy of the package, first on the path, as Flower unpacks the bundle of an app."""

    @pytest.fixture
    def bundle(self, world, installed, tmp_path, monkeypatch):
        shutil.copytree(installed / "ournets", tmp_path / "bundle" / "ournets")
        monkeypatch.syspath_prepend(tmp_path / "bundle")
        forget()
        return tmp_path / "bundle"

    def test_with_the_plans_files_is_run(self, world, bundle):
        assert site_network(world.kit.plan).build()[0].out_features == 5
        assert sys.modules["ournets.nets"].__file__.startswith(str(bundle))

    def test_with_others_is_refused_and_not_run(self, world, bundle):
        (bundle / "ournets" / "nets.py").write_text("raise SystemExit('ran')")
        with pytest.raises(PlanError, match="not those of the plan"):
            site_network(world.kit.plan)

    def test_is_no_installation(self, world, bundle, installed):
        shutil.rmtree(installed / "ournets-1.0.dist-info")
        with pytest.raises(PlanError, match="no installed network 'ours'"):
            site_network(world.kit.plan)

    def test_of_a_part_is_refused(self, tmp_path, monkeypatch):
        files = {**FILES, "more/__init__.py": ""}
        monkeypatch.syspath_prepend(install(tmp_path / "site-packages", files))
        (tmp_path / "bundle" / "more").mkdir(parents=True)
        (tmp_path / "bundle" / "more" / "__init__.py").write_text("raise SystemExit('ran')")
        monkeypatch.syspath_prepend(tmp_path / "bundle")
        with pytest.raises(PlanError, match="Python finds more outside its installation"):
            Installed.find(NAME)


class TestAllowed:
    def test_a_site_imports_only_what_it_allows(self, world):
        forget()
        payload_of(world.kit.plan).arrays(
            world.kit.plan
        )  # what a file is to hold is known without importing
        rows = world.kit.inputs[:40], (world.kit.inputs[:40, 0] > 0).long()
        with pytest.raises(PlanError, match=r'write allow_networks = \["ours"\] in site\.toml'):
            make_upload(world.kit, "Alpha", rows)
        assert "ournets" not in sys.modules
        upload = make_upload(world.kit, "Alpha", rows, allow_networks=(NAME,))
        assert payload_of(world.kit.plan).arrays(world.kit.plan).keys() == upload.arrays.keys()

    def test_a_lie_about_its_size_is_found(self, world):
        stated = world.kit.plan.model_dump()
        stated["frozen"]["network"] |= {
            "parameters": 1,
            "arrays": {"parameter/w": ("float32", (1,))},
        }
        with pytest.raises(PlanError, match=r"does not have the arrays of frozen\.network"):
            site_network(Plan.model_validate(stated))
        draft = world.kit.plan.model_copy(update={"frozen": None})
        with pytest.raises(PlanError, match="this is a draft"):
            site_network(draft)


def test_a_study_with_it_goes_to_the_end_and_its_model_runs_where_it_is_allowed(
    installed, tmp_path
):
    world = make_world(tmp_path / "world", model=MODEL)
    study = world.begin(added=("Alpha", "Beta"))
    _, result = study.finish()
    assert result.student.num_parameters == 5 * (world.kit.plan.num_inputs + 1) + 3 * 6
    forget()
    model = study.result_folder(1) / "model"
    with pytest.raises(PlanError, match="'ours' is code that would run here; allow it with"):
        CalibratedModel.load(model)
    assert "ournets" not in sys.modules
    CalibratedModel.load(model, (NAME,))


def test_a_learner_that_is_not_there_is_one_line(world):
    for reference, problem in (
        ("nowhere.nets:build", "package nowhere is not installed"),
        ("sklearn.absent:build", r"No module named 'sklearn\.absent'"),
        ("sklearn.svm:absent", "nothing called 'absent'"),
    ):
        with pytest.raises(PlanError, match=problem):
            make_learner(world.kit.plan, reference)
