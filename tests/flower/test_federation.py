"""Any method over Flower: the bits of one process, and what becomes of nodes that are lost."""

from __future__ import annotations

import dataclasses
import sys
import time
from types import SimpleNamespace

import pandas
import pytest
import torch
from flwr.app import Array, Context, Error, Message, RecordDict
from sklearn.ensemble import RandomForestClassifier

from predbayes import (
    Distilled,
    InProcess,
    Network,
    ReferenceRows,
    SGDLearner,
    SklearnClassifier,
    Softmax,
    load,
    pools,
    run,
)
from predbayes.errors import DataError, TrainingError, UploadError
from predbayes.exchange.federation import LeftOut
from predbayes.methods.levelled import Levelled
from predbayes.methods.pooled import Pooled
from predbayes.predictive.families import Categorical
from predbayes_flower import UPLOAD, FlowerFederation, client_app, server_app
from predbayes_flower.method_client import site_name
from predbayes_flower.task import Question
from tests.core.contracts.averaged import Averaged
from tests.core.contracts.test_methods import (
    CASES,
    METHODS,
    SHORT,
    STUDENTS,
    learner,
    point,
    predictives,
    tensors_of,
    world,
)
from tests.flower.double import DoubleGrid
from tests.flower.nodes import QUICK


class Recorded:
    """A federation, and the digests of what came from it."""

    def __init__(self, federation):
        self.federation = federation
        self.digests = []

    def collect(self, task):
        for upload in self.federation.collect(task):
            if isinstance(upload, LeftOut):
                yield upload
                continue
            self.digests.append((task.round, upload.info.site, upload.digest()))
            yield upload


def grid_of(method, sites, out, learners=None):
    """Nodes of these sites, with the ClientApp of a user, and learners of their own."""

    def own(context):
        return (learners or {}).get(context.node_config["site"])

    app = client_app(method, lambda context: sites[context.node_config["site"]], learner=own)
    configs = {n: {"site": site, "out": str(out)} for n, site in enumerate(sites, start=11)}
    return DoubleGrid(app, configs)


def over(grid, **options):
    return FlowerFederation(grid, **{"quorum": 3, "deadline": 60, "pace": QUICK, **options})


def num_rounds_of(method):
    return 1 if isinstance(getattr(method, "method", method), Pooled) else 2


ON_PUSH = {"beta", "gated log, by predictions", "averaged", "distilled beta"}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        case
        if case.values[0] in ON_PUSH
        else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow("trains twice"))
        for case in CASES
    ],
)
def test_every_method_has_the_bits_of_one_process(name, family, tmp_path):
    """Uploads of every round, the state after the last one, and what it predicts."""
    method, (sites, reference) = METHODS[name](family), world(family)
    grid = grid_of(method, sites, tmp_path)
    flower, alone = Recorded(over(grid)), Recorded(InProcess(sites))
    rounds = num_rounds_of(method)
    one, two = (run(method, f, reference, seed=3, num_rounds=rounds).state for f in (flower, alone))
    assert flower.digests == alone.digests
    assert len(flower.digests) == rounds * len(sites)
    for p, q in zip(predictives(one), predictives(two), strict=True):
        assert torch.equal(p.natural(), q.natural())
    for a, b in zip(tensors_of(one), tensors_of(two), strict=True):
        assert torch.equal(a, b)


def test_an_echo_over_flower_has_the_bits_of_one_process(tmp_path):
    """The student goes out as arrays, and sums over held-out rows come back."""
    method = Levelled(METHODS["distilled beta"](Categorical))
    sites, reference = world(Categorical)
    flower = Recorded(over(grid_of(method, sites, tmp_path)))
    alone = Recorded(InProcess(sites))
    one, two = (run(method, f, reference, seed=3, calibrate="sites") for f in (flower, alone))
    assert flower.digests == alone.digests
    assert len(flower.digests) == 2 * len(sites)
    assert one.model.inverse_temperature == two.model.inverse_temperature != 1
    for a, b in zip(tensors_of(one.state), tensors_of(two.state), strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def method():
    return Averaged(point(Categorical))


@pytest.fixture
def rows():
    return world(Categorical)


@pytest.fixture
def grid(method, rows, tmp_path):
    return grid_of(method, rows[0], tmp_path / "out")


def digests(method, federation, reference, **options):
    recorded = Recorded(federation)
    run(method, recorded, reference, **options)
    return recorded.digests


def count(grid, node, kind=UPLOAD):
    return grid.asked.count((node, kind))


def counted_fits(monkeypatch):
    """Count how often a site learns."""
    fits, learn = [], Averaged.learn
    monkeypatch.setattr(
        Averaged, "learn", lambda *given, **named: fits.append(1) or learn(*given, **named)
    )
    return fits


class TestRounds:
    def test_what_was_lost_is_asked_anew_and_sent_from_the_disk(
        self, method, rows, grid, monkeypatch
    ):
        fits, expected = counted_fits(monkeypatch), digests(method, InProcess(rows[0]), rows[1])
        pull, lost = grid.pull_messages, []

        def losing(message_ids):
            """The first upload of node 12 is lost on its way, after the node has learnt."""
            replies = pull(message_ids)
            if not lost and any(r.content.get("arrays") is not None for r in replies):
                lost.extend(replies)
                return [Message(Error(3, "lost"), reply_to=r) for r in replies]
            return replies

        grid.pull_messages = losing
        assert digests(method, over(grid), rows[1]) == expected
        assert lost
        assert len([kind for _, kind in grid.asked if kind == UPLOAD]) == 4
        assert len(fits) == 2 * len(rows[0])

    def test_a_new_run_goes_on_with_what_nodes_have_learnt(self, method, rows, grid, monkeypatch):
        first = digests(method, over(grid), rows[1], num_rounds=2)
        fits = counted_fits(monkeypatch)
        assert digests(method, over(grid), rows[1], num_rounds=2) == first
        assert not fits
        digests(method, over(grid), rows[1], num_rounds=3)
        assert len(fits) == len(rows[0])  # the third round alone

    def test_other_rows_another_seed_or_another_method_are_learnt_anew(
        self, method, rows, grid, monkeypatch
    ):
        sites, reference = rows
        digests(method, over(grid), reference)
        fits = counted_fits(monkeypatch)
        sites["site1"] = (sites["site1"][0] + 1, sites["site1"][1])
        assert digests(method, over(grid), reference) == digests(
            method, InProcess(sites), reference
        )
        assert len(fits) == 1 + len(sites)
        digests(method, over(grid), reference, seed=1)
        assert len(fits) == 1 + 2 * len(sites)

    def test_what_was_learnt_for_another_run_is_removed(self, method, rows, grid, tmp_path):
        for seed in (0, 1):
            digests(method, over(grid), rows[1], seed=seed, num_rounds=2)
            kept = sorted(path.parent.parent.name for path in tmp_path.rglob("*.safetensors"))
            assert kept == sorted(2 * list(rows[0]))


class TestReferenceInputs:
    """They are sent once, and again to whoever has lost them."""

    @pytest.fixture
    def sent(self, grid, monkeypatch):
        """Bytes of the arrays in each question to node 12, in order."""
        sent, push = [], grid.push_messages

        def counting(messages):
            for message in (messages := list(messages)):
                if (message.metadata.dst_node_id, message.metadata.message_type) == (12, UPLOAD):
                    records = message.content.array_records
                    sent.append(
                        {n: sum(len(a.data) for a in r.values()) for n, r in records.items()}
                    )
            return push(messages)

        monkeypatch.setattr(grid, "push_messages", counting)
        return sent

    def test_whoever_has_lost_them_is_sent_them_again(self, method, rows, grid, sent, tmp_path):
        expected = digests(method, InProcess(rows[0]), rows[1], num_rounds=3)

        def lose(node, kind):
            """Before the second round node 12 gets a new disk, and before the third a bad one."""
            if (node, kind) == (12, UPLOAD) and len(sent) in (2, 4):
                for path in (tmp_path / "out" / "site1").rglob("inputs"):
                    path.unlink() if len(sent) == 2 else path.write_bytes(path.read_bytes()[:-1])

        grid.on_push = lose
        assert digests(method, over(grid), rows[1], num_rounds=3) == expected
        assert [sorted(question) for question in sent] == [
            ["inputs", "state"], ["state"], ["inputs", "state"], ["state"], ["inputs", "state"],
        ]  # fmt: skip

    def test_other_reference_rows_are_sent_as_well(self, method, rows, grid, sent):
        federation, (sites, reference) = over(grid), rows
        other = ReferenceRows.of((reference.inputs[:10], torch.zeros(10, dtype=torch.long)))
        for asked in (reference, other):
            assert digests(method, federation, asked) == digests(method, InProcess(sites), asked)
        assert ["inputs" in question for question in sent] == [True, True]


class TestLearners:
    """Sites with learners of their own."""

    @pytest.fixture
    def pooled(self):
        return Pooled(point(Categorical), pools.beta(), send="predictions")

    def test_they_have_the_bits_of_one_process(self, pooled, rows, tmp_path):
        sites, reference = rows
        forest = SklearnClassifier(RandomForestClassifier(5), num_classes=3)
        learners = {"site1": forest, "site2": learner(Categorical)}
        for method in (pooled, Distilled(pooled, STUDENTS[Categorical], SHORT)):
            grid = grid_of(method, sites, tmp_path / type(method).__name__, learners)
            expected = digests(method, InProcess(sites, learners=learners), reference)
            assert digests(method, over(grid), reference) == expected
            assert expected != digests(method, InProcess(sites), reference)


class TestLostNodes:
    def test_with_the_quorum_in_the_round_ends_after_the_grace_period(self, method, rows, grid):
        sites, reference = rows
        grid.faults[12, UPLOAD] = [None] * 9  # it never answers
        begun = time.monotonic()
        found = digests(method, over(grid, quorum=2, grace=0.5), reference, num_rounds=2)
        assert time.monotonic() - begun < 20  # of a deadline of 60
        others = {site: rows for site, rows in sites.items() if site != "site1"}
        assert found == digests(method, InProcess(others), reference, num_rounds=2)

    def test_without_the_quorum_the_round_fails_in_one_line(self, method, rows, grid):
        grid.faults[12, UPLOAD] = [2]  # the client raised
        line = r"^round 0 ended with 2 of 3 sites of the quorum; not in: site1 \(failed\)$"
        with pytest.raises(TrainingError, match=line):
            run(method, over(grid), rows[1])

    def test_only_named_sites_take_part(self, method, rows, grid):
        found = digests(method, over(grid, sites=("site0", "site2"), quorum=2), rows[1])
        assert [site for _, site, _ in found] == ["site0", "site2"]
        assert not count(grid, 12)

    @pytest.mark.parametrize(
        "options", [{"quorum": 0}, {"quorum": 3, "sites": ("a", "b")}, {"deadline": 0}]
    )
    def test_what_can_never_end_well_is_refused(self, options):
        with pytest.raises(TrainingError, match=r"quorum must be|deadline and grace"):
            FlowerFederation(None, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class Whole(Averaged):
    """A method of somebody's own, with an error that is none of predbayes."""

    def lift(self, state, upload, inputs):
        for array in upload.arrays.values():
            assert array.shape[1] in (2, 3, 8), "not a network of mine"
        return Averaged.lift(self, state, upload, inputs)


class TestAnswers:
    @pytest.mark.parametrize("word", ["run", "task"])
    def test_an_answer_to_another_question_is_refused(self, method, rows, grid, word, caplog):
        grid.altered[12, UPLOAD] = lambda content: content["words"].update({word: "0" * 64})
        found = digests(method, over(grid, quorum=2), rows[1])
        assert [site for _, site, _ in found] == ["site0", "site2"]
        assert "refused: site1: it answers another question" in caplog.text

    def test_an_upload_in_anothers_name_is_refused(self, method, rows, grid, caplog):
        grid.altered[12, UPLOAD] = lambda content: content["metadata"].update(
            predbayes=content["metadata"]["predbayes"].replace("site1", "site2")
        )
        digests(method, over(grid, quorum=2), rows[1])
        assert "refused: site1: its upload is in the name of another site" in caplog.text

    @pytest.mark.parametrize("own", [Averaged, Whole])
    def test_one_that_the_method_cannot_take_stops_nobody(self, own, rows, tmp_path, caplog):
        def narrow(content):
            arrays = content["arrays"]
            name = sorted(arrays)[0]
            arrays[name] = Array(arrays[name].numpy()[:, :2])

        method = own(point(Categorical))
        grid = grid_of(method, rows[0], tmp_path)
        grid.altered[12, UPLOAD] = narrow
        found = digests(method, over(grid, quorum=2), rows[1])
        assert [site for _, site, _ in found] == ["site0", "site2"]
        assert "refused: site1: " in caplog.text

    def test_a_node_with_another_method_is_told_apart(self, method, rows, grid, caplog):
        caplog.set_level("INFO")
        other = Averaged(dataclasses.replace(point(Categorical), device="meta"))
        with pytest.raises(TrainingError, match=r"ended with 0 of 3 sites .* site0 \(failed\)"):
            run(other, over(grid), rows[1])
        assert "site0: another method than the coordinator's" in caplog.text

    def test_what_goes_wrong_at_a_site_stays_there(self, method, rows, caplog, tmp_path):
        caplog.set_level("INFO")
        sites = dict(rows[0], site1=("Qanary", "Qanary"))
        found = digests(method, over(grid_of(method, sites, tmp_path), quorum=2), rows[1])
        assert [site for _, site, _ in found] == ["site0", "site2"]
        told = [r.getMessage() for r in caplog.records if r.name == "predbayes_flower.driver"]
        assert "site1: failed" in told
        assert not any("Qanary" in line for line in told)

    @pytest.mark.parametrize(
        ("read", "line"),
        [
            (
                lambda context: context.node_config["dat"],
                "flower-supernode's --node-config: no key 'dat'; did you mean 'data'?",
            ),
            (
                lambda context: context.run_config["data"],
                "[tool.flwr.app.config] of the app's pyproject.toml: no key 'data'; there are none",
            ),
            (
                lambda context: pandas.read_csv(context.node_config["data"]),
                "[Errno 2] No such file or directory: '/no/table.csv'",
            ),
        ],
    )
    def test_a_missing_key_or_file_is_one_line_of_the_nodes_log(
        self, method, rows, caplog, read, line
    ):
        caplog.set_level("INFO")
        grid = DoubleGrid(
            client_app(method, read),
            {n: {"site": f"site{n}", "data": "/no/table.csv"} for n in (1, 2)},
        )
        with pytest.raises(TrainingError, match="ended with 0 of 2"):
            run(method, over(grid, quorum=2), rows[1])
        assert "site1: failed" in caplog.text
        told = [r for r in caplog.records if r.name == "predbayes_flower.wire"]
        assert [(r.getMessage(), bool(r.exc_info)) for r in told] == [(line, False)] * 2


class TestMethods:
    def test_one_whose_state_cannot_be_sent_is_refused_in_one_line(self, rows, grid):
        class Unsendable:
            families, streams = frozenset({Categorical}), True

            def init(self, reference, *, rng):
                return object()

            learn = lift = finish = init

        line = r"^Unsendable cannot be sent to sites: it lacks state_arrays\(state\)[^\n]*$"
        for method in (Unsendable(), Distilled(Unsendable(), STUDENTS[Categorical])):
            with pytest.raises(TrainingError, match=line):
                run(method, over(grid), rows[1])
        assert not grid.asked

    def test_a_type_that_cannot_travel_is_refused_in_one_line(self):
        eighth = torch.zeros(2, dtype=torch.float8_e4m3fn)
        question = Question("run", 0, 0, "method", {"weights": eighth}, "", torch.zeros(1))
        with pytest.raises(TrainingError, match=r"^the method's state cannot be sent: [^\n]*$"):
            question.record()


class TestNames:
    def named(self, **config):
        return site_name(SimpleNamespace(node_config=config))

    def test_a_node_has_the_name_of_its_configuration_or_its_number(self):
        assert self.named(site="Basel") == "Basel"
        assert self.named(**{"partition-id": 3, "num-partitions": 12}) == "site 03"

    def test_one_without_a_name_is_told_how(self):
        with pytest.raises(DataError, match="--node-config 'site="):
            self.named()
        with pytest.raises(UploadError, match="a site's name"):
            self.named(site="../Basel")


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        (lambda context: context.run_config["table"], "pyproject.toml: no key 'table'"),
        (lambda context: pandas.read_csv("/no/table.csv"), "No such file or directory"),
    ],
)
def test_a_server_app_fails_in_one_line(reference, line, own_log):
    app = server_app(Averaged(point(Categorical)), reference=reference)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises((DataError, OSError), match=line):
        app(DoubleGrid(None, {}), context)
    assert sys.tracebacklimit == 0


def test_a_server_app_runs_a_method_and_saves_its_result(rows, tmp_path, capfd, own_log):
    network = Network.mlp(2, Softmax(3), hidden=(8,))
    made = Averaged(SGDLearner(network, SHORT))
    grid = grid_of(lambda context: made, rows[0], tmp_path / "out")
    config = {"num-rounds": 2, "poll-seconds": 0.02, "out": str(tmp_path / "result")}
    app = server_app(
        lambda context: made, reference=lambda context: rows[1], quorum=3, deadline=60, seed=7
    )
    app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    assert "method  Averaged" in capfd.readouterr().err
    alone = run(made, InProcess(rows[0]), rows[1], seed=7, num_rounds=2)
    saved = load(tmp_path / "result")
    assert torch.equal(saved.predictive.natural(), alone.predictive.natural())
