"""Runs: what determines one, and that methods of a cell do not disturb each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import predbayes
from predbayes.api.run import run
from predbayes.errors import ExperimentError, TrainingError
from predbayes.exchange.federation import InProcess
from predbayes.learning.likelihood import LearnedNoise
from predbayes.learning.local import Network, SGDLearner, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta
from predbayes.predictive import metrics
from predbayes.seeding import generator
from predbayes_lab.config import load_experiment
from predbayes_lab.data.registry import load
from predbayes_lab.methods import (
    METHODS,
    build_method,
    find_method,
    import_object,
    method_options,
)
from predbayes_lab.run import plan, run_methods
from predbayes_lab.world import make_world


def all_records(experiment):
    return {record.method: record for record, _ in run_methods(experiment, plan(experiment, [0]))}


def with_learner(config, name):
    """Give the sites of one method another learner."""
    text = config.read_text().replace("[methods.mixture]", f"[methods.mixture]\nlearner='{name}'")
    config.write_text(text)


def keys(experiment, seed=0):
    return {label: key for one in plan(experiment, [seed]) for label, key in one.keys.items()}


class TestKeys:
    def test_every_record_has_its_own(self, config):
        experiment = load_experiment(str(config))
        found = [key for one in plan(experiment, [0, 1]) for key in one.keys.values()]
        assert len(found) == len(set(found)) == 8

    @pytest.mark.parametrize(
        ("assignment", "changed"),
        [
            ("sampler.step-size=0.02", {"mixture", "beta", "beta student"}),
            ("optimizer.lr=0.02", {"fedavg"}),
            ("distillation.lr=0.02", {"beta", "beta student"}),
            ("reference.fraction=0.3", {"mixture", "beta", "beta student", "fedavg"}),
        ],
    )
    def test_settings_that_a_method_uses_are_covered_and_no_others(
        self, config, assignment, changed
    ):
        before, after = (
            keys(load_experiment(str(config), assignments=a)) for a in ([], [assignment])
        )
        assert {label for label in before if before[label] != after[label]} == changed

    def test_settings_that_came_later_count_only_where_they_are_set(self, config, monkeypatch):
        from predbayes_lab import records

        plain = keys(load_experiment(str(config)))
        chosen = keys(load_experiment(str(config), assignments=["sampler.min-steps=7"]))
        assert chosen["fedavg"] == plain["fedavg"]
        assert chosen["beta"] != plain["beta"]
        config_of_then = {"sampler": {"lr": 1}, "data": {"name": "x"}}
        monkeypatch.setattr(
            records, "ADDED", {"sampler": {"new": 0, "newer": "a"}, "later": {"key": 1}}
        )
        now = {"sampler": {"lr": 1, "new": 0, "newer": "a"}, "later": {"key": 1}}
        assert records.without_additions(now | {"data": {"name": "x"}}) == config_of_then
        other = {"sampler": {"lr": 1, "new": 0, "newer": "b"}, "later": {"key": 2}}
        assert records.without_additions(other) == {
            "sampler": {"lr": 1, "newer": "b"},
            "later": {"key": 2},
        }
        assert other["sampler"]["new"] == 0  # the record shows all settings

    def test_runs_go_seed_by_seed(self, config):
        with config.open("a") as file:
            file.write("[axes]\n'reference.fraction' = [0.2, 0.3]\n")
        runs = plan(load_experiment(str(config), methods=["mixture"]), [0, 1])
        fractions = [(one.seed, one.cell["reference.fraction"]) for one in runs]
        assert fractions == [(0, 0.2), (0, 0.3), (1, 0.2), (1, 0.3)]

    def test_data_are_covered(self, config, data_root):
        before = keys(load_experiment(str(config)))
        from predbayes_lab import run as module

        module._data_digest.cache_clear()
        path = data_root / "uci" / "winequality-red.csv"
        path.write_text(path.read_text().replace("0.1", "0.2"))
        after = keys(load_experiment(str(config)))
        module._data_digest.cache_clear()
        assert not set(before.values()) & set(after.values())

    def test_results_versions_are_covered_and_the_package_version_is_not(self, config, monkeypatch):
        before = keys(load_experiment(str(config)))
        monkeypatch.setattr(predbayes, "__version__", "9.9")
        assert keys(load_experiment(str(config))) == before
        raised = replace(METHODS["beta"], version=METHODS["beta"].version + 1)
        monkeypatch.setitem(METHODS, "beta", raised)
        after = keys(load_experiment(str(config)))
        assert {label for label in before if before[label] != after[label]} == {
            "beta",
            "beta student",
        }

    def test_code_of_ones_own_is_covered_by_its_text_or_its_results_version(
        self, config, tmp_path, monkeypatch
    ):
        monkeypatch.syspath_prepend(tmp_path)
        path = tmp_path / "mine_for_digest.py"
        path.write_text("def build(shape, num_outputs): ...\n")
        experiment = load_experiment(
            str(config), assignments=["network.kind=mine_for_digest:build"], methods=["fedavg"]
        )
        found = [keys(experiment)["fedavg"]]
        path.write_text("def build(shape, num_outputs): ...  # mended\n")
        found.append(keys(experiment)["fedavg"])
        assert len(set(found)) == 2
        import_object("mine_for_digest:build").results_version = 1
        versioned = keys(experiment)["fedavg"]
        path.write_text("def build(shape, num_outputs): ...  # mended again\n")
        assert keys(experiment)["fedavg"] == versioned
        assert versioned not in found


class TestResults:
    def test_records_are_what_the_library_gives(self, config):
        """The runner adds nothing: the same split, learner, method and student by hand."""
        experiment = load_experiment(str(config), methods=["beta"])
        records = all_records(experiment)
        settings = experiment.settings({}, "beta")
        world = make_world(settings, 0)
        network = Network(lambda: mlp(11, 1, hidden=(5,)), LearnedNoise())
        pool = Pooled(SGHMCLearner(network, settings.sampler), beta(), send="predictions")
        student = Network(lambda: mlp(11, 2, hidden=(5,)), LearnedNoise(per_input=True))
        method = Distilled(pool, student, settings.distillation, recalibrate=False)
        state = run(method, InProcess(world.sites), world.reference, seed=0).state
        pooled = state.teacher.predictive[world.reference.evaluate]
        assert records["beta"].scores["nll"] == metrics.nll(pooled, world.targets)
        assert records["beta"].details["beta"] == state.teacher.beta
        predicted = state.student.predict(world.reference.inputs[world.reference.evaluate])
        assert records["beta student"].scores["nll"] == metrics.nll(predicted, world.targets)
        assert records["beta student"].scores != records["beta"].scores

    def test_records_of_a_sampler_say_how_many_samples_it_is_worth(self, config):
        cycles = ["sampler.num-cycles=2", "sampler.samples-per-cycle=2", "sampler.num-epochs=20"]
        records = all_records(load_experiment(str(config), assignments=cycles))
        assert 1 < records["beta"].details["effective_samples"] <= 4
        assert "effective_samples" not in records["fedavg"].details

    def test_methods_with_settings_of_their_own_equal_their_solo_runs(self, config):
        """Worlds and learners are shared only where all their settings are the same."""
        variants = {
            "other sampler": '"sampler.step-size" = 0.02',
            "other network": '"network.hidden" = [3]',
            "other rows": '"reference.fraction" = 0.4',
            "validation": '"evaluate" = "validation"',
        }
        for label, setting in variants.items():
            with config.open("a") as file:
                file.write(f"[methods.'{label}']\nmethod = 'mixture'\nset = {{ {setting} }}\n")
        together = all_records(load_experiment(str(config)))
        assert len({together[label].scores["nll"] for label in (*variants, "mixture")}) == 5
        for label in variants:
            alone = all_records(load_experiment(str(config), methods=[label]))
            assert alone[label].scores == together[label].scores

    def test_threads_do_not_matter_and_are_left_as_they_were(self, config):
        experiment = load_experiment(
            str(config), assignments=["network.hidden=[100, 100]"], methods=["fedavg"]
        )
        found = []
        before = torch.get_num_threads()
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(all_records(experiment)["fedavg"].scores)
            assert torch.get_num_threads() == count
        torch.set_num_threads(before)
        assert found[0] == found[1]

    def test_a_student_that_diverges_leaves_its_teacher(self, config):
        assignments = ["distillation.optimizer=sgd", "distillation.lr=1e12"]
        experiment = load_experiment(str(config), assignments=assignments, methods=["beta"])
        records = all_records(experiment)
        assert "diverged" in records["beta student"].error
        assert math.isnan(records["beta student"].scores["nll"])
        alone = all_records(load_experiment(str(config)))["beta"]
        assert records["beta"].error == ""
        assert records["beta"].scores == alone.scores

    def test_an_infinite_nll_is_a_failure(self, config, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "certain.py").write_text(
            "from dataclasses import replace\n"
            "import torch\n"
            "from predbayes import Gaussian\n"
            "from predbayes_lab.baselines.server_only import ServerOnly\n"
            "class Certain:\n"
            "    def __init__(self, learner):\n"
            "        self.inner = ServerOnly(learner)\n"
            "    def __getattr__(self, name):\n"
            "        return getattr(self.inner, name)\n"
            "    def finish(self, state, total, reference, *, rng):\n"
            "        n = len(reference.inputs)\n"
            "        pooled = Gaussian(torch.full((n,), 1e30), torch.full((n,), 1e-30))\n"
            "        return replace(state, pooled=pooled)\n"
        )
        config.write_text("[data]\nname='wine'\n[methods.certain]\nmethod='certain:Certain'\n")
        record = all_records(load_experiment(str(config)))["certain"]
        assert "not finite" in record.error
        assert math.isnan(record.scores["nll"])

    def test_records_say_where_they_come_from(self, config):
        record = all_records(load_experiment(str(config)))["beta student"]
        assert record.experiment == "small"
        assert record.version == predbayes.__version__
        assert record.data == load("wine", rng=generator(0)).fingerprint.as_dict()
        assert record.config["sampler"]["step-size"] == 0.01
        assert record.config["method"]["name"] == "beta"
        assert record.config["results"] == {"method": "1", "learner": "1", "student": "1"}
        assert "optimizer" not in record.config
        assert math.isfinite(record.details["gap"])

    def test_the_released_variant_has_both_scorings(self, config):
        experiment = load_experiment(
            str(config),
            assignments=["data.variant=released", "network.noise=released"],
            methods=["mixture"],
        )
        scores = all_records(experiment)["mixture"].scores
        assert {"nll", "released_nll", "released_nll_slipped"} <= set(scores)
        # One batch of 40 test rows: the sum over batches is their mean, without the constant.
        constant = 0.5 * math.log(2 * math.pi)
        assert scores["released_nll"] == pytest.approx(scores["nll"] - constant, rel=1e-4)


class TestWorld:
    def settings(self, config, *assignments):
        experiment = load_experiment(str(config), assignments=assignments)
        return experiment.settings({}, "beta")

    def test_sites_reference_and_test_share_no_row(self, config):
        world = make_world(self.settings(config), 0)
        rows = [x for x, _ in world.sites.values()] + [world.reference.inputs]
        together = torch.cat(rows)
        assert len(together) == 200
        assert len(together.unique(dim=0)) == 200
        assert len(world.targets) == 40

    def test_validation_leaves_the_test_rows_alone(self, config):
        world = make_world(self.settings(config, "evaluate=validation"), 0)
        test = world.dataset.test_inputs
        rows = torch.cat([x for x, _ in world.sites.values()] + [world.reference.inputs])
        assert len(rows) == 160
        assert len(torch.cat([rows, test]).unique(dim=0)) == 200
        evaluated = world.reference.inputs[world.reference.evaluate]
        assert len(evaluated) == 32
        for row, target in zip(evaluated, world.targets, strict=True):
            (index,) = (world.dataset.train_inputs == row).all(-1).nonzero()
            assert world.dataset.train_targets[index] == target

    def test_labels_may_be_few(self, config):
        reference = make_world(self.settings(config, "reference.num-labels=5"), 0).reference
        assert len(reference.targets) == 5
        assert reference.distillation == slice(0, 32)

    def test_another_draw_labels_other_rows(self, config):
        worlds = [
            make_world(self.settings(config, "reference.num-labels=5", f"reference.draw={d}"), 0)
            for d in range(3)
        ]
        labelled = torch.cat([world.reference.inputs[:5] for world in worlds])
        assert len(labelled.unique(dim=0)) == 15
        known = {tuple(row) for row in worlds[0].reference.inputs[:32].tolist()}
        assert all(known == {tuple(r) for r in w.reference.inputs[:32].tolist()} for w in worlds)

    def test_fewer_reference_rows_leave_the_sites_as_they_are(self, config):
        all_rows = make_world(self.settings(config), 0)
        few = make_world(self.settings(config, "reference.num-rows=7"), 0)
        assert few.reference.distillation == slice(0, 7)
        assert torch.equal(few.reference.inputs[:7], all_rows.reference.inputs[:7])
        for name, (inputs, _) in few.sites.items():
            assert torch.equal(inputs, all_rows.sites[name][0])

    @pytest.mark.parametrize(
        ("assignments", "message"),
        [
            (("reference.classes=half",), "has none"),
            (("reference.population=bike",), "num-labels = 0"),
            (("reference.num-labels=33",), "there are 32 reference rows"),
            (("partition.kind=label-skew",), "wine has none"),
            (("partition.kind=dirichlet",), "wine has none"),
            (("partition.kind=groups",), "no natural groups"),
        ],
    )
    def test_rows_that_cannot_be_had_are_refused(self, config, assignments, message):
        with pytest.raises(ExperimentError, match=message):
            make_world(self.settings(config, *assignments), 0)

    @pytest.mark.data
    def test_reference_rows_of_another_population_have_its_inputs(self, tmp_path):
        path = tmp_path / "other.toml"
        path.write_text(
            '[data]\nname = "mnist"\n[reference]\nnum-labels = 0\nnum-rows = 50\n[methods.beta]\n'
        )
        settings = self.settings(path, "reference.population=fashion-mnist")
        inputs = make_world(settings, 0).reference.inputs[:50]
        fashion = load("fashion-mnist", rng=generator(0)).train_inputs
        assert all((fashion == row).flatten(1).all(1).any() for row in inputs[:3])
        half = self.settings(path, "reference.classes=half", "reference.num-labels=50")
        assert int(make_world(half, 0).reference.targets.max()) == 4
        with pytest.raises(ExperimentError, match="other inputs"):
            make_world(self.settings(path, "reference.population=wine"), 0)

    @pytest.mark.data
    @pytest.mark.parametrize("kind", ["label-skew", "label-skew-released", "dirichlet", "groups"])
    def test_classes_can_be_dealt_in_every_way(self, kind, tmp_path):
        path = tmp_path / "heart.toml"
        path.write_text("[data]\nname = 'heart'\n[methods.fedavg]\n")
        assignments = [f"partition.kind={kind}", "partition.heterogeneity=0.5"]
        experiment = load_experiment(str(path), assignments=assignments)
        world = make_world(experiment.settings({}, "fedavg"), 0)
        if kind == "groups":
            assert list(world.sites) == ["cleveland", "hungarian", "switzerland", "va"]
        else:
            assert len(world.sites) == 5


class TestMethods:
    def test_a_pool_of_ones_own_is_made_a_method(self, config, tmp_path, monkeypatch):
        """Options are those of the pool and of `Pooled`; predictions are sent."""
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "halved.py").write_text(
            "from predbayes.pools import beta\ndef halved(scale=0.5):\n    return beta(scale)\n"
        )
        config.write_text(
            "[data]\nname='wine'\n[methods.half]\nmethod='halved:halved'\n"
            "[methods.half.options]\nscale=0.25\n"
        )
        experiment = load_experiment(str(config))
        entry, settings = experiment.method({}, "half"), experiment.settings({}, "half")
        spec, learner = find_method("halved:halved"), SGDLearner(None)
        assert method_options(spec, entry, settings) == {"send": "predictions", "scale": 0.25}
        expected = Pooled(learner, beta(0.25), send="predictions")
        assert build_method(spec, entry, settings, learner) == expected

    def test_options_of_a_pool_are_split(self, config):
        experiment = load_experiment(
            str(config), assignments=["options.own=none", "options.send=weights"]
        )
        entry, settings = experiment.method({}, "beta"), experiment.settings({}, "beta")
        learner = SGDLearner(None)
        expected = Pooled(learner, AutoPool(gates=False), send="weights", own="none")
        assert build_method(find_method("auto"), entry, settings, learner) == expected
        with pytest.raises(TrainingError, match="beta takes no own model"):
            build_method(find_method("beta"), entry, settings, learner)

    def test_mistakes_are_one_line(self, config):
        with pytest.raises(ExperimentError, match="no method 'fedvag'; did you mean 'fedavg'"):
            find_method("fedvag")
        with pytest.raises(ExperimentError, match="cannot import 'no_such_module'"):
            import_object("no_such_module:X")
        with pytest.raises(ExperimentError, match="no name 'FedAgv'; did you mean 'FedAvg'"):
            import_object("predbayes_lab.baselines.fedavg:FedAgv")
        experiment = load_experiment(str(config), assignments=["options.prior_sdt=1.0"])
        entry, settings = experiment.method({}, "beta"), experiment.settings({}, "beta")
        with pytest.raises(
            ExperimentError, match="no option 'prior_sdt'; did you mean 'prior_std'"
        ):
            build_method(find_method("beta"), entry, settings, None)

    @pytest.mark.parametrize("name", ["sklearn.linear_model:Ridge", "linear-regression"])
    def test_estimators_are_learners(self, config, name):
        with_learner(config, name)
        record = all_records(load_experiment(str(config), methods=["mixture"]))["mixture"]
        assert record.scores["rmse"] < 0.5  # quality is rounded alcohol
