"""One result for every method, and what `run` takes."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pandas as pd
import pytest
import torch

import predbayes as pb
from predbayes import progress
from predbayes.api.scaling import Scaling
from predbayes.errors import DataError, TrainingError, UploadError
from predbayes.learning.local import SGDLearner
from tests.core.contracts.averaged import Averaged
from tests.core.contracts.test_methods import METHODS, SHORT, STUDENTS, world


class TestOfAStudent:
    @pytest.fixture(scope="class")
    @classmethod
    def result(cls):
        sites, reference = world(pb.Categorical)
        method = METHODS["distilled beta"](pb.Categorical)
        return pb.run(method, sites, reference)

    def test_it_says_what_the_state_says(self, result):
        assert result.beta == result.state.teacher.beta
        assert result.gap == result.state.gap
        assert result.choice is None
        assert f"{result.gap:.4f} nats from the pool" in result.summary()
        assert f"beta {result.beta:.3f}, 95 % interval" in result.summary()

    def test_it_predicts_arrays_and_tables_as_tensors(self, result):
        _sites, reference = world(pb.Categorical)
        inputs = reference.inputs
        expected = result.state.student.predict(inputs).log_probs
        for given in (inputs, inputs.numpy(), pd.DataFrame(inputs.numpy())):
            assert torch.equal(result.predict(given).log_probs, expected)


def test_names_of_sites_cannot_break_out_of_the_table():
    sites, reference = world(pb.Categorical, num_sites=1)
    result = pb.run(METHODS["mixture"](pb.Categorical), sites, reference)
    account = result.account.model_copy(update={"sites": {"<b>": 3}})
    assert "<b>" not in pb.Result(None, account)._repr_html_()


def test_a_dict_of_arrays_is_a_federation_and_the_seed_is_one():
    sites, reference = world(pb.Categorical)
    arrays = {name: (x.numpy(), pd.Series(y.numpy())) for name, (x, y) in sites.items()}
    method = METHODS["mixture"](pb.Categorical)
    plain = pb.run(method, pb.InProcess(sites), reference, seed=3).predictive
    other = pb.run(method, arrays, reference, seed=3).predictive
    assert torch.equal(plain.log_probs, other.log_probs)
    assert not torch.equal(plain.log_probs, pb.run(method, sites, reference).predictive.log_probs)


class TestSitesLeftOut:
    @pytest.fixture(scope="class")
    @classmethod
    def heard(cls):
        sites, reference = world(pb.Categorical)
        sites["site1"] = (sites["site1"][0] / 0, sites["site1"][1])
        events = []
        method = METHODS["averaged"](pb.Categorical)
        federation = pb.InProcess(sites, on_error="skip")
        result = pb.run(method, federation, reference, num_rounds=2, callbacks=[events.append])
        return result, events

    def test_the_result_names_them_and_says_why(self, heard):
        result, _events = heard
        assert set(result.account.sites) == {"site0", "site2"}
        assert "inputs contain NaN" in result.account.left_out["site1"]
        assert "without site1: inputs contain NaN" in result.summary()

    def test_every_round_tells_of_it(self, heard):
        _result, events = heard
        told = [event for event in events if event.kind == "left out"]
        assert [(event.who, event.round) for event in told] == [("site1", 0), ("site1", 1)]

    def test_a_saved_result_names_them_too(self, heard, tmp_path):
        result, _events = heard
        result.save(tmp_path)
        network = METHODS["averaged"](pb.Categorical).learner.network
        assert pb.load(tmp_path, network).summary() == result.summary()

    def test_the_others_have_the_result_that_they_have_alone(self, heard):
        result, _events = heard
        sites, reference = world(pb.Categorical)
        del sites["site1"]
        alone = pb.run(METHODS["averaged"](pb.Categorical), sites, reference, num_rounds=2)
        assert torch.equal(alone.predictive.log_probs, result.predictive.log_probs)
        assert not alone.account.left_out
        assert "left_out" not in alone.account.model_dump_json()

    def test_a_warning_says_so(self, caplog):
        sites, reference = world(pb.Categorical)
        sites["site1"] = (sites["site1"][0][:, :1], sites["site1"][1])
        pb.run(METHODS["mixture"](pb.Categorical), pb.InProcess(sites, on_error="skip"), reference)
        assert caplog.messages == [
            "site1 is left out of round 1: site 'site1' has 1 inputs per row, the reference rows 2"
        ]


@pytest.fixture
def trees():
    tree = pytest.importorskip("sklearn.tree").DecisionTreeClassifier()
    return pb.SklearnClassifier(tree, 3, size=2)


class TestLearnersOfSites:
    @pytest.mark.parametrize("distilled", [False, True])
    def test_one_site_has_trees(self, distilled, trees):
        sites, reference = world(pb.Categorical)
        learner = SGDLearner(STUDENTS[pb.Categorical], SHORT)
        method = pb.Pooled(learner, pb.pools.mixture(), send="predictions")
        if distilled:
            method = pb.Distilled(method, STUDENTS[pb.Categorical], SHORT)
        only = {"site1": sites["site1"]}
        grown = pb.run(
            pb.Pooled(trees, pb.pools.mixture(), send="predictions"), only, reference
        ).predictive
        mixed = pb.InProcess(sites, learners={"site1": trees})
        together = pb.run(method, mixed, reference).predictive.probs
        network = pb.run(method, sites, reference).predictive.probs
        own = pb.run(method, only, reference).predictive.probs
        # A mixture of three sites with equally many rows: one summand is another one.
        torch.testing.assert_close(together - network, (grown.probs - own) / 3)

    def test_trees_have_no_weights_to_send(self, trees):
        sites, reference = world(pb.Categorical)
        method = pb.Pooled(SGDLearner(STUDENTS[pb.Categorical], SHORT), pb.pools.mixture())
        mixed = pb.InProcess(sites, learners={"site1": trees})
        with pytest.raises(TrainingError, match=r"^site 'site1': .*use send='predictions'$"):
            pb.run(method, mixed, reference)

    def test_weights_of_another_network_are_refused_with_the_sites_name(self):
        sites, reference = world(pb.Categorical)
        method = pb.Pooled(SGDLearner(STUDENTS[pb.Categorical], SHORT), pb.pools.mixture())
        other = SGDLearner(pb.Network.mlp(2, pb.Softmax(3), hidden=(3,)), SHORT)
        mixed = pb.InProcess(sites, learners={"site1": other})
        with pytest.raises(UploadError, match=r"^site 'site1': these weights are not of this"):
            pb.run(method, mixed, reference)

    def test_an_averaging_method_has_one_learner(self, trees):
        sites, reference = world(pb.Categorical)
        method = METHODS["averaged"](pb.Categorical)
        with pytest.raises(TrainingError, match=r"^Averaged has one learner for all sites"):
            pb.run(method, pb.InProcess(sites, learners={"site1": trees}), reference)


def test_in_the_log_a_training_has_a_line_every_ten_seconds(caplog, monkeypatch):
    """Here every epoch takes four."""
    clock = itertools.count(0, 4)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    sites, reference = world(pb.Categorical)
    settings = pb.OptimizerSettings(num_epochs=8)
    with caplog.at_level(logging.INFO, "predbayes"):
        pb.run(Averaged(SGDLearner(STUDENTS[pb.Categorical], settings)), sites, reference)
    epochs = [line for line in caplog.messages if line.startswith("site0: epoch")]
    assert [line.split()[2] for line in epochs] == ["3", "6"]


def test_targets_far_from_unit_scale_are_warned_of(caplog):
    sites, reference = world(pb.Gaussian)
    method = METHODS["averaged"](pb.Gaussian)
    with caplog.at_level(logging.WARNING, "predbayes"):
        pb.run(method, sites, reference)
        assert not caplog.messages
        raw = pb.ReferenceRows(reference.inputs, 1000 * reference.targets)
        pb.run(method, sites, raw)
    assert "FederatedRegressor" in caplog.messages[0]


def test_raw_targets_of_sites_are_warned_of_without_a_labelled_row(caplog):
    sites, reference = world(pb.Gaussian)
    raw = {name: (x, 5000 + 2000 * y) for name, (x, y) in sites.items()}
    unlabelled = pb.ReferenceRows(reference.inputs, torch.zeros(0))
    learner = SGDLearner(STUDENTS[pb.Gaussian], pb.OptimizerSettings(lr=0.0, num_epochs=1))
    pb.run(Averaged(learner), raw, unlabelled, num_rounds=2)
    (said,) = caplog.messages
    assert said.startswith("targets of site 'site0' have mean 4.74e+03 and spread 3.11e+03 ")
    assert "standardise them" in said


class TestEvents:
    def run(self, **options):
        events = []
        sites, reference = world(pb.Categorical)
        method = METHODS["distilled beta"](pb.Categorical)
        result = pb.run(method, sites, reference, callbacks=[events.append], **options)
        return events, result

    def test_a_callback_hears_epochs_sites_pool_and_student(self):
        events, result = self.run()
        kinds = [event.kind for event in events if event.kind != "epoch"]
        assert kinds == ["site", "site", "site", "pool", "student"]
        assert [e.who for e in events if e.kind == "site"] == ["site0", "site1", "site2"]
        epochs = [e for e in events if e.kind == "epoch" and e.who == "site0"]
        assert [(e.epoch, e.num_epochs) for e in epochs] == 2 * [(1, 2), (2, 2)]  # two members
        assert {e.who for e in events if e.kind == "epoch"} == {
            "site0", "site1", "site2", "student",
        }  # fmt: skip
        assert events[-1].gap == result.gap
        assert str(round(result.beta, 3)) in next(e.detail for e in events if e.kind == "pool")

    def test_the_loss_is_the_mean_of_the_epoch(self):
        """With steps of size zero it is the mean NLL of the untrained network."""
        sites, reference = world(pb.Categorical, num_sites=1)
        still = pb.OptimizerSettings(lr=0.0, num_epochs=1, batch_size=15)
        events = []
        learner = SGDLearner(STUDENTS[pb.Categorical], still)
        result = pb.run(Averaged(learner), sites, reference, callbacks=[events.append])
        x, y = sites["site0"]
        expected = pb.metrics.nll(result.predict(x), y)
        assert events[0].loss == pytest.approx(expected, abs=1e-5)

    def test_a_bar_is_drawn_where_it_is_asked_for(self, capsys):
        self.run(progress=True)
        drawn = capsys.readouterr()
        assert "site0: 30 rows are in" in drawn.err
        assert "nats from the pool" in drawn.err
        assert not drawn.out
        self.run()
        assert not capsys.readouterr().err  # no terminal


def test_text_is_refused_in_one_line():
    with pytest.raises(DataError, match="FederatedClassifier"):
        pb.ReferenceRows.of((np.zeros((2, 1)), np.array(["a", "b"])))
    _sites, reference = world(pb.Categorical)
    method = METHODS["mixture"](pb.Categorical)
    with pytest.raises(DataError, match=r"^site 'site0': a site's rows are a pair"):
        pb.run(method, {"site0": {"x": 1}}, reference)


class TestNewRows:
    @pytest.fixture(scope="class")
    @classmethod
    def result(cls):
        sites, reference = world(pb.Categorical, num_sites=1)
        return pb.run(METHODS["averaged"](pb.Categorical), sites, reference)

    @pytest.mark.parametrize("scaling", [Scaling(), Scaling((0.0, 0.0), (1.0, 1.0))])
    def test_of_another_width_are_refused(self, result, scaling):
        with pytest.raises(DataError, match=r"^rows have 4 inputs, the model was trained on 2$"):
            result.scaled_by(scaling).predict(np.zeros((3, 4)))

    def test_that_are_not_finite_are_refused(self, result):
        rows = torch.zeros(3, 2)
        rows[1, 0] = torch.inf
        with pytest.raises(DataError, match=r"^row 1, counted from 0, is not finite"):
            result.predict(rows)

    def test_may_be_none(self, result):
        assert len(result.predict(torch.zeros(0, 2))) == 0


class TestWhatRunTakes:
    def run(self, method="mixture", sites=None, reference=None, **options):
        theirs, rows = world(pb.Categorical, num_sites=1)
        made = METHODS[method](pb.Categorical) if isinstance(method, str) else method
        return pb.run(made, sites or theirs, reference or rows, **options)

    def test_a_pair_is_reference_rows(self):
        _sites, rows = world(pb.Categorical)
        pair = (rows.inputs[rows.labelled], rows.targets)
        plain = self.run(reference=pb.ReferenceRows.of(pair)).predictive
        assert torch.equal(self.run(reference=pair).predictive.log_probs, plain.log_probs)

    def test_a_pool_alone_is_no_method(self):
        with pytest.raises(TrainingError, match=r"^TermPool is a pool; wrap it: pb\.Pooled\(lea"):
            self.run(pb.pools.beta())

    @pytest.mark.parametrize("method", ["mixture", "distilled beta"])
    def test_a_pool_needs_one_round(self, method):
        with pytest.raises(TrainingError, match=r"^a pool needs one round; .*num_rounds=3$"):
            self.run(method, num_rounds=3)
