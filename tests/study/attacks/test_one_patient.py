"""One patient with many rows: rules about few rows are about few people.

If site.toml says whose each row is, a block of five rows, or six rows of a class, may be one
patient. A model made to ask about this patient would learn the outcome from one evaluation.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes_study.payloads.details import evaluation_of
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import HOLDOUT_FILE, HOME
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from tests.study.cli.test_site_model import Home
from tests.study.commands import invoke
from tests.study.world import TARGETS, home_plan, make_world

VISITS = 6


class Visits(Home):
    """A site where each patient came six times."""

    num_patients = 200

    def table(self, kind):
        (self.root / "site.toml").write_text(
            'format = 1\nname = "Basel"\npatient = "who"\n[columns]\nage = { column = "Alter" }\n'
        )
        rows = [
            f"p{who},{40 + (37 * who) % 45},{1 + who % 2},{('no', 'yes')[who % 3 > 0]}"
            for who in range(self.num_patients)
            for _ in range(VISITS)
        ]
        return "who,Alter,ward,outcome\n" + "\n".join(rows) + "\n"

    def keep_holdout(self):
        """As training does where patients are known."""
        own = SiteFile.load(self.root / "site.toml")
        rows = SiteRows.of(self.plan, read_site_table(self.plan, own, self.root / "rows.csv"))
        held_out = rows.split(self.plan, "Basel")[1]
        said = Upload.of_predictions(self.model.predictive(rows.inputs[held_out]), num_rows=40)
        home = self.root / "trained" / HOME
        home.mkdir(parents=True)
        about = {"data": rows.digest(), "plan": self.plan.digest()}
        save_file({**said.arrays, "rows": held_out}, home / HOLDOUT_FILE, metadata=about)

    def evaluate(self):
        args = "--home", self.root / "trained", "--out", self.root / "Basel.evaluation"
        site = self.root / "site.toml"
        table, result = self.root / "rows.csv", self.root / "result"
        return invoke("site", "evaluate", result, table, "--site", site, *args)


def test_an_evaluation_is_of_one_row_for_each_patient(tmp_path):
    home = Visits(tmp_path, "classes")
    done = home.evaluate()
    assert done.exit_code == 0, done.output
    own = SiteFile.load(tmp_path / "site.toml")
    rows = SiteRows.of(home.plan, read_site_table(home.plan, own, tmp_path / "rows.csv"))
    held_out = rows.split(home.plan, "Basel")[1]
    info = Header.read(tmp_path / "Basel.evaluation").info
    assert info.num_rows == len(rows.patients[held_out].unique()) < len(held_out)
    assert evaluation_of(info).metrics["accuracy"].total <= info.num_rows


def test_rows_of_too_few_patients_are_not_evaluated(tmp_path):
    """More than 30 rows are held out, of fewer than 30 people."""

    class Few(Visits):
        num_patients = 100

    done = Few(tmp_path, "classes").evaluate()
    assert done.exit_code
    assert "held-out rows are fewer than 30" in str(done.exception)
    assert not (tmp_path / "Basel.evaluation").exists()


def test_one_of_each_takes_any_visit_once_and_rows_without_patients_all():
    plan = home_plan(TARGETS["classes"])
    whose = torch.arange(40) % 8
    rows = SiteRows(torch.zeros(40, 1), torch.zeros(40).long(), patients=whose)
    some = torch.arange(3, 40)
    kept = rows.one_each(plan, some)
    assert sorted(whose[kept].tolist()) == list(range(8))
    assert set(kept.tolist()) <= set(some.tolist())
    assert len(set((kept // 8).tolist())) > 1  # not the first visit of each
    assert torch.equal(SiteRows(rows.inputs, rows.targets).one_each(plan, some), some)


@pytest.mark.parametrize("num_people", [1, 4, 5])
def test_a_class_of_few_people_is_not_counted(num_people, tmp_path):
    """Six rows of a class are enough, and so are five people, but not fewer."""
    learner = "[learner]\nname = 'logistic-regression'\nholdout = 0.0\nholdout_reason = 'drawn'\n"
    world = make_world(tmp_path, learner=learner)
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, world.kit.plan.num_inputs, generator=rng)
    targets = torch.arange(60) % 2
    targets[:VISITS] = 2
    people = torch.arange(60)
    people[:VISITS] = torch.arange(VISITS) % num_people
    rows = SiteRows(inputs, targets, patients=people)
    upload, _ = Job(world.kit, "Alpha", rows, "logistic-regression").run()
    assert (upload.info.class_rows is None) == (num_people < 5)
