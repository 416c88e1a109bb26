"""A network of the consortium's own: offered by an installed distribution, one source everywhere,
imported by nobody who did not allow it."""

import importlib.util
import py_compile
import shutil
import sys

import pytest

from predbayes.errors import PlanError
from predbayes.study.coordinator.intake import Expected
from predbayes.study.plan.models import make_learner, site_network
from predbayes.study.plan.networks import Installed, require_agreed
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.sizes import num_parameters
from predbayes.study.plan.text import dump
from predbayes.study.result.model import CalibratedModel
from predbayes.study.site.fitting import make_upload
from tests.study.plan.distribution import FILES, NAME, SOURCE, install
from tests.study.world import make_world

MODEL = f'module = "{NAME}"'


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "ournets"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    root = install(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(root)
    yield root
    forget()


@pytest.fixture
def world(installed, tmp_path):
    return make_world(tmp_path / "world", kind="weights", model=MODEL)


def test_a_cache_that_python_runs_without_a_look_at_its_source_is_refused(installed, tmp_path):
    """The same sources, so the same digest, and other code that runs."""
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit\n")
    source = next(installed.rglob("ournets/*.py"))
    Installed.find(NAME)
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
        assert agreed.parameters == 5 * (plan.num_inputs + 1) + 3 * 6 == num_parameters(plan)
        assert agreed.arrays["parameter/0.weight"] == ("float32", (5, plan.num_inputs))

    def test_of_a_regression_with_the_noise(self, installed, tmp_path):
        plan = make_world(tmp_path / "world", regression=True, model=MODEL).kit.plan
        assert plan.frozen.network.parameters == 5 * (plan.num_inputs + 1) + 6 + 1

    def test_its_text_reads_back(self, world):
        assert Plan.loads(dump(world.kit.plan)) == world.kit.plan

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"parameters": 3}, "parameters are not as many as the arrays have"),
            ({"digest": "x"}, "digest"),
        ],
    )
    def test_what_it_states_fits_together(self, world, change, problem):
        stated = world.kit.plan.model_dump()
        stated["frozen"]["network"] |= change
        with pytest.raises(ValueError, match=problem):
            Plan.model_validate(stated)

    def test_a_frozen_plan_states_its_network_and_no_other(self, world):
        stated = world.kit.plan.model_dump()
        stated["frozen"]["network"] = None
        with pytest.raises(ValueError, match=r"frozen\.network is not that of model\.module"):
            Plan.model_validate(stated)
        stated = world.kit.plan.model_dump()
        stated["model"]["module"] = ""
        with pytest.raises(ValueError, match=r"frozen\.network is not that of model\.module"):
            Plan.model_validate(stated)

    @pytest.mark.parametrize("name", ["a:b", "numpy.f2py.__main__:main", " x", "x" * 65, "a b"])
    def test_a_name_is_a_name(self, world, name):
        stated = world.kit.plan.model_dump()
        stated["model"]["module"] = name
        with pytest.raises(ValueError, match=r"names code by its place|must be at most 64"):
            Plan.model_validate(stated)


class TestInstalled:
    def test_looking_imports_nothing(self, installed):
        Installed.find(NAME)
        assert "ournets" not in sys.modules

    @pytest.mark.parametrize("name", FILES)
    def test_every_file_counts(self, world, installed, name):
        (installed / name).write_text(f"{FILES[name]}\nraise SystemExit('ran')")
        with pytest.raises(PlanError, match=r"not those of the plan; install ournets 1\.0"):
            require_agreed(world.kit.plan)

    def test_line_endings_do_not(self, installed):
        before = Installed.find(NAME).digest
        path = installed / "ournets" / "nets.py"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert Installed.find(NAME).digest == before

    def test_a_network_that_nobody_offers_is_named(self, installed):
        with pytest.raises(PlanError, match="no installed network 'our'; did you mean 'ours'"):
            Installed.find("our")

    def test_two_that_offer_one_name_are_refused(self, installed):
        install(installed, {"theirs.py": SOURCE}, distribution="theirs", offers={NAME: "theirs:b"})
        with pytest.raises(PlanError, match="2 installed distributions offer the network 'ours'"):
            Installed.find(NAME)

    def test_one_that_lists_no_files_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(install(tmp_path / "site-packages", record=False))
        with pytest.raises(PlanError, match=r"does not list ournets\.nets among its files"):
            Installed.find(NAME)

    @pytest.mark.parametrize("file", ["ournets/fast.so", "ournets/nets2.pyc"])
    def test_compiled_code_is_refused(self, tmp_path, monkeypatch, file):
        root = install(tmp_path / "site-packages", {**FILES, file: ""})
        monkeypatch.syspath_prepend(root)
        with pytest.raises(PlanError, match="has compiled files"):
            Installed.find(NAME)

    def test_what_lies_in_the_working_directory_is_not_installed(self, installed, monkeypatch):
        monkeypatch.chdir(installed)
        with pytest.raises(PlanError, match="outside its installation"):
            Installed.find(NAME)

    def test_a_missing_file_is_one_line(self, world, installed):
        (installed / "ournets" / "nets.py").unlink()
        with pytest.raises(PlanError):
            require_agreed(world.kit.plan)

    @pytest.mark.parametrize(
        ("offered", "problem"),
        [("ournets.nets:absent", "no attribute"), ("ournets.nets:not_callable", "no function")],
    )
    def test_what_cannot_be_called_is_one_line(self, tmp_path, monkeypatch, offered, problem):
        root = install(tmp_path / "site-packages", offers={NAME: offered})
        monkeypatch.syspath_prepend(root)
        with pytest.raises(PlanError, match=problem):
            Installed.find(NAME).load()
        forget()


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
        rows = world.kit.inputs[:40], (world.kit.inputs[:40, 0] > 0).long()
        with pytest.raises(PlanError, match=r'write allow_networks = \["ours"\] in site\.toml'):
            make_upload(world.kit, "Alpha", rows)
        assert "ournets" not in sys.modules
        upload = make_upload(world.kit, "Alpha", rows, allow_networks=(NAME,))
        assert Expected.of(world.kit.plan).arrays.keys() == upload.arrays.keys()

    def test_what_a_file_is_to_hold_is_known_without_importing(self, world):
        forget()
        Expected.of(world.kit.plan)
        assert "ournets" not in sys.modules

    def test_a_lie_about_its_size_is_found(self, world):
        stated = world.kit.plan.model_dump()
        stated["frozen"]["network"] |= {
            "parameters": 1,
            "arrays": {"parameter/w": ("float32", (1,))},
        }
        with pytest.raises(PlanError, match=r"does not have the arrays of frozen\.network"):
            site_network(Plan.model_validate(stated))

    def test_a_draft_has_no_network_to_run(self, world):
        draft = world.kit.plan.model_copy(update={"frozen": None})
        with pytest.raises(PlanError, match="this is a draft"):
            site_network(draft)


def test_a_study_with_it_goes_to_the_end_and_its_model_runs_where_it_is_allowed(
    installed, tmp_path
):
    world = make_world(tmp_path / "world", model=MODEL)
    study = world.begin()
    for site in ("Alpha", "Beta"):
        study.add(world.file(site))
    _, result = study.finish()
    assert result.student.num_parameters == 5 * (world.kit.plan.num_inputs + 1) + 3 * 6
    forget()
    model = study.result_folder(1) / "model"
    with pytest.raises(PlanError, match="'ours' is code that would run here; allow it with"):
        CalibratedModel.load(model)
    assert "ournets" not in sys.modules
    CalibratedModel.load(model, (NAME,))


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("nowhere.nets:build", "package nowhere is not installed"),
        ("sklearn.absent:build", r"No module named 'sklearn\.absent'"),
        ("sklearn.svm:absent", "nothing called 'absent'"),
    ],
)
def test_a_learner_that_is_not_there_is_one_line(world, reference, problem):
    with pytest.raises(PlanError, match=problem):
        make_learner(world.kit.plan, reference)


def test_no_plan_names_a_learner_by_its_place(world):
    stated = world.kit.plan.model_dump()
    stated["pool"]["own"] = "numpy.f2py.__main__:main"
    with pytest.raises(ValueError, match=r"pool\.own"):
        Plan.model_validate(stated)
