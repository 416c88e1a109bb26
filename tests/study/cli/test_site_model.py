"""`predbayes site evaluate` and `adopt`: what they print, write and refuse."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from predbayes.errors import DataError, PredbayesError, StudyError
from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Gaussian
from predbayes_study.payloads.details import evaluation_of, verifies
from predbayes_study.result.evaluation import check_evaluation
from predbayes_study.result.model import CalibratedModel
from predbayes_study.site.adopt import COMPARISON_FILE
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows, split_rows
from predbayes_study.site.training import HOLDOUT_FILE, HOME
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import invoke
from tests.study.world import TARGETS, home_plan, untrained

NUM_ROWS = 200
CANARY = "71.830625"


class Home:
    """A site's folder: its file, key, table, what training kept, and the study's model."""

    def __init__(self, root, kind, release="automatic"):
        self.root = root
        self.plan = home_plan(TARGETS[kind], f'upload = {{ release = "{release}" }}')
        self.model = untrained(self.plan, number=4)
        self.model.save(root / "result" / "model")
        self.key = SigningKey.generate()
        self.key.save(root / "Basel.key")
        (root / "site.toml").write_text(
            'format = 1\nname = "Basel"\n[columns]\nage = { column = "Alter" }\n'
        )
        (root / "rows.csv").write_text(self.table(kind))
        self.keep_holdout()

    def table(self, kind):
        ages = [40 + (37 * row) % 45 for row in range(NUM_ROWS)]
        labels = [("no", "yes")[row % 3 > 0] for row in range(NUM_ROWS)]
        if kind == "number":
            labels = [f"{8 + (13 * row) % 11}" for row in range(NUM_ROWS)]
        rows = [f"{age},{1 + age % 2},{label}" for age, label in zip(ages, labels, strict=True)]
        rows[17] = f"{CANARY},1,{labels[17]}"
        return "Alter,ward,outcome\n" + "\n".join(rows) + "\n"

    def keep_holdout(self):
        """As `predbayes site train` does, of a model that says what the study's says."""
        own = SiteFile.load(self.root / "site.toml")
        rows = SiteRows.of(self.plan, read_site_table(self.plan, own, self.root / "rows.csv"))
        held_out = split_rows(self.plan, "Basel", NUM_ROWS)[1]
        said = Upload.of_predictions(self.model.predictive(rows.inputs[held_out]), num_rows=40)
        told = {"data": rows.digest(), "plan": self.plan.digest()}
        folder = self.root / "trained" / HOME
        folder.mkdir(parents=True)
        save_file({**said.arrays, "rows": held_out}, folder / HOLDOUT_FILE, metadata=told)

    def run(self, command, *options, home=True):
        arguments = ["site", command, self.root / "result", self.root / "rows.csv"]
        arguments += ["--site", self.root / "site.toml", *options]
        if home:
            arguments += ["--home", self.root / "trained"]
        return invoke(*arguments)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, "classes")


@pytest.fixture(params=TARGETS)
def each(request, tmp_path):
    """A home of a study of classes, and one of a number."""
    return Home(tmp_path, request.param)


def leaves(fields):
    """Everything that a header says, one value at a time."""
    for value in fields.values():
        several = value if isinstance(value, list) and value else [value]
        if isinstance(several[0], dict):
            for one in several:
                yield from leaves(one)
        else:
            yield value


class TestAdopt:
    def test_it_writes_a_model_that_predicts_and_says_which_to_use(self, each):
        result = each.run("adopt", "--out", each.root / "adopted")
        assert result.exit_code == 0
        assert result.stdout.startswith("Basel, model of result 4 of 'home': 200 rows, 40 ")
        lines = [line.split()[0] for line in result.stdout.splitlines()]
        assert lines[2:6] == ["own", "simple", "adopted", "global"]
        told = json.loads((each.root / "adopted" / COMPARISON_FILE).read_text())
        assert told["advice"] in result.stdout
        adopted = CalibratedModel.load(each.root / "adopted")
        assert adopted.adjustment is not None
        frame = read_frame(each.root / "rows.csv").rename(columns={"Alter": "age"})
        assert len(adopted.predict(frame)) == NUM_ROWS

        assert each.run("adopt", "--out", each.root / "again").exit_code == 0
        files = sorted(path.name for path in (each.root / "again").iterdir())
        assert files == [COMPARISON_FILE, "model.json", "model.safetensors"]
        for name in files:
            contents = [(each.root / f / name).read_bytes() for f in ("adopted", "again")]
            assert contents[0] == contents[1]

    def test_without_home_the_own_model_is_not_compared_and_no_model_is_overwritten(self, home):
        came = home.root / "result" / "model"
        assert isinstance(home.run("adopt", "--out", came).exception, StudyError)
        assert CalibratedModel.load(came).adjustment is None
        result = home.run("adopt", "--out", home.root / "adopted", home=False)
        assert result.exit_code == 0
        assert "Your own model was not compared" in result.stdout
        assert "\nown " not in result.stdout


class TestEvaluate:
    def test_it_says_how_good_the_model_is_and_writes_nothing(self, each):
        torch.set_num_threads(2)
        each.run("evaluate")  # the first one begins the audit log
        assert torch.get_num_threads() == each.plan.learner.threads == 1
        before = sorted(each.root.rglob("*"))
        result = each.run("evaluate")
        assert result.exit_code == 0
        assert "200 rows, 40 held out" in result.stdout
        assert "NLL" in result.stdout
        assert ("RMSE (days)" in result.stdout) != bool(each.plan.target.classes)
        for figure in ("AUROC", "outcome 'yes' in ", "Observed / expected "):
            assert (figure in result.stdout) is bool(each.plan.target.classes)
        assert sorted(each.root.rglob("*")) == before
        assert "200 rows, 200 all" in each.run("evaluate", "--all").stdout
        assert "give --home" not in result.stdout
        assert "give --home" in each.run("evaluate", home=False).stdout

    @pytest.mark.parametrize("options", [(), ("--out", "sums.safetensors")])
    def test_a_model_that_is_far_off_is_one_line(self, options, tmp_path, monkeypatch):
        home = Home(tmp_path, "number")

        def far(model, inputs):
            return Gaussian(torch.full((len(inputs),), 1e20), torch.ones(len(inputs)))

        monkeypatch.setattr(CalibratedModel, "predictive", far)
        refused = home.run("evaluate", *options).exception
        assert isinstance(refused, DataError)
        assert str(refused).startswith("the model is so far off at these rows")

    def test_what_it_writes_is_signed_and_shown_in_full(self, each):
        home = each
        out = home.root / "sums.safetensors"
        result = home.run("evaluate", "--out", out)
        assert result.exit_code == 0
        declared = Header.read(out)
        assert declared.signature.key == home.key.public.hex
        assert verifies(declared.signature, Upload.load(out).digest())
        for value in leaves(declared.info.model_dump(mode="json")):
            assert f": {json.dumps(value)}\n" in result.stdout
        assert evaluation_of(declared.info).model == home.model.weights_digest()
        assert declared.info.num_rows == 40
        check_evaluation(home.plan, declared.info)

    def test_only_held_out_rows_of_the_model_as_it_came_are_sent(self, home):
        out = home.root / "sums.safetensors"
        refused = home.run("evaluate", "--all", "--out", out)
        assert "held-out rows alone" in str(refused.exception)
        home.run("adopt", "--out", home.root / "adopted")
        home.root.joinpath("result").rename(home.root / "came")
        home.root.joinpath("adopted").rename(home.root / "result")
        assert home.run("evaluate").exit_code == 0
        refused = home.run("evaluate", "--out", out)
        assert "was adopted before" in str(refused.exception)
        assert not out.exists()

    def test_where_the_plan_asks_for_it_the_officer_is_asked_first(self, tmp_path):
        home = Home(tmp_path, "classes", release="manual")
        Approvals(tmp_path).record("plan", home.plan.digest(), "M. Muster")
        out, held_back = tmp_path / "sums.safetensors", tmp_path / "held-back-sums.safetensors"
        result = home.run("evaluate", "--out", out)
        assert f"predbayes site approve {held_back} --by NAME" in result.stdout
        assert not out.exists()
        assert Header.read(held_back).signature is None
        Approvals(tmp_path).record("upload", Upload.load(held_back).digest(), "M. Muster")
        assert home.run("evaluate", "--out", out).exit_code == 0
        assert Header.read(out).signature is not None
        assert not held_back.exists()


class TestPolicy:
    """An evaluation leaves only where the site would train."""

    def state(self, home, policy):
        with (home.root / "site.toml").open("a") as file:
            file.write(f"[policy]\n{policy}\n")

    def refused(self, home, why, trained=True):
        out = home.root / "sums.safetensors"
        result = home.run("evaluate", "--out", out, home=trained)
        assert isinstance(result.exception, PredbayesError)
        assert why in str(result.exception)
        assert not list(home.root.glob("*sums*"))

    @pytest.mark.parametrize(
        ("policy", "why"),
        [
            ("min_cell = 50", "min_cell = 50 of site.toml"),
            ("kinds = ['predictions']", "evaluation would leave"),
            ("min_evaluated = 41", "against min_evaluated = 41"),
            ("release = 'manual'", "the plan is not approved"),
        ],
    )
    def test_what_the_policy_forbids_is_not_written_and_logged_as_refused(self, home, policy, why):
        self.state(home, policy)
        self.refused(home, why)
        log = (home.root / "audit.jsonl").read_text().splitlines()
        assert [json.loads(line)["outcome"] for line in log] == ["begun", "refused"]
        assert home.run("evaluate").exit_code == 0  # which stays at the site

    def test_an_approved_plan_until_it_is_revoked(self, home):
        self.state(home, "release = 'manual'")
        approvals = Approvals.of(SiteFile.load(home.root / "site.toml"))
        approvals.record("plan", home.plan.digest(), "M. Muster")
        assert home.run("evaluate", "--out", home.root / "sums.safetensors").exit_code == 0
        for path in home.root.glob("*sums*"):
            path.unlink()
        approvals.record("plan", home.plan.digest(), "M. Muster", act="revoke")
        self.refused(home, "the plan is not approved, or no more")
        path = home.root / "site.toml"
        path.write_text(path.read_text().replace("[policy]\nrelease = 'manual'\n", ""))
        self.refused(home, "the plan is not approved, or no more")

    def test_a_plan_that_the_site_never_trained_for(self, home):
        self.refused(home, "give --home", trained=False)
        (home.root / "trained" / HOME / HOLDOUT_FILE).unlink()
        self.refused(home, "no held-out predictions")


class TestErrors:
    def refused(self, home, *arguments):
        result = home.run(*arguments)
        assert isinstance(result.exception, PredbayesError)
        assert "\n" not in str(result.exception)
        return str(result.exception)

    def test_a_place_that_cannot_be_written_and_a_table_without_the_target(self, home):
        out = home.root / "nowhere" / "sums.safetensors"
        assert "there is no folder" in self.refused(home, "evaluate", "--out", out)
        for taken in (home.root / "rows.csv", home.root):
            assert "would overwrite" in self.refused(home, "evaluate", "--out", taken)
        assert isinstance(home.run("evaluate", "--out", home.root).exception, DataError)
        path = home.root / "rows.csv"
        path.write_text(path.read_text().replace("outcome", "result"))
        assert "outcome" in self.refused(home, "adopt")


def test_no_cell_is_ever_said_or_written(each):
    home = each
    results = [
        home.run("adopt", "--out", home.root / "adopted"),
        home.run("evaluate", "--out", home.root / "sums.safetensors"),
        home.run("evaluate", "--all"),
    ]
    path = home.root / "rows.csv"
    path.write_text(path.read_text().replace(CANARY, f"{CANARY}x"))
    results += [home.run("adopt"), home.run("evaluate")]  # which are errors
    assert [result.exit_code for result in results] == [0, 0, 0, 1, 1]
    for result in results:
        assert CANARY not in result.output + str(result.exception)
    for written in [*(home.root / "adopted").iterdir(), home.root / "sums.safetensors"]:
        assert CANARY.encode() not in written.read_bytes()
