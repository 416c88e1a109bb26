"""A plan that asks for gates: sites learn and send them, intake checks them, `finish` uses them."""

import dataclasses
import re

import pandas as pd
import pytest
import torch

from predbayes.errors import PlanError, TrainingError, UploadError
from predbayes.exchange.upload import GATE, Upload
from predbayes.progress import listening
from predbayes.seeding import generator
from predbayes_study.coordinator.intake import Intake
from predbayes_study.payload import payload_of, upload_bytes
from predbayes_study.payloads import predictions
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.schema import Gate, Plan
from predbayes_study.plan.text import dump
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.policy import Asked, SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import Training
from predbayes_study.tables.sitefile import Policy
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


ANY = (
    "[learner]\nmin_steps = 200\nnum_epochs = 1\nholdout = 0.0\nholdout_reason = 'drawn'\n"
    "name = 'any'\n"
)
KINDS = {
    "classes": {"learner": ANY},
    "numbers": {"learner": ANY, "regression": True},
    "network": {},
    "network of numbers": {"regression": True},
}


def table(plan, num_rows=120, shift=12.0, seed=0):
    """Rows of a site that lie right of the reference rows."""
    rng = generator(seed, "table")
    x = shift + 5 * torch.randn(num_rows, generator=rng)
    labels = ["red", "green", "blue"] if plan.target.classes else ["165", "170", "180"]
    target = [labels[i % 3] for i in range(num_rows)]
    return pd.DataFrame({"x": x.numpy().round(2), "y": [1.5] * num_rows, plan.target.name: target})


def rows_of(plan, **how):
    rows = SiteRows.of(plan, table(plan, **how))
    return rows.inputs, rows.targets


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    root = tmp_path_factory.mktemp("gates")
    return {
        f"{kind}{' gated' if gate else ''}": make_world(root / f"{kind}{gate}", gate=gate, **how)
        for kind, how in KINDS.items()
        for gate in ("", "[gate]\n")
    }


class TestPlan:
    def test_the_section_is_agreed_on(self, worlds):
        plain, gated = (worlds[name].kit.plan for name in ("classes", "classes gated"))
        assert gated.gate == Gate(floor=-6.0, ceiling=3.0)
        assert Plan.loads(dump(gated)) == gated
        assert plain.digest() != gated.digest()
        assert upload_bytes(gated) - upload_bytes(plain) == 4 * gated.reference.num_rows

    def test_bounds_have_zero_between_them(self, worlds):
        text = dump(worlds["classes gated"].kit.plan)
        with pytest.raises(PlanError, match=r"gate\.floor: .*less than 0"):
            Plan.loads(text.replace("floor = -6 ", "floor = 1 "))

    def test_a_policy_may_forbid_it(self, worlds):
        strict = SitePolicy((("policy.toml", Policy(kinds=("predictions",))),))
        assert strict.problems(Asked.of(worlds["classes"].kit.plan)) == []
        with pytest.raises(PlanError, match=r"gate would leave, .* of policy\.toml"):
            strict.require(Asked.of(worlds["classes gated"].kit.plan))


@pytest.mark.parametrize("kind", KINDS)
class TestSite:
    def made(self, worlds, kind, **how):
        world = worlds[kind]
        estimator = "linear-regression" if "numbers" in kind else "logistic-regression"
        learner = "network" if "network" in kind else estimator
        return make_upload(world.kit, "Alpha", rows_of(world.kit.plan, **how), learner=learner)

    def test_the_gate_is_one_column_more_and_nothing_else_changes(self, worlds, kind, monkeypatch):
        """Under the same plan, as another plan draws otherwise."""
        gated = self.made(worlds, f"{kind} gated")
        monkeypatch.setattr(predictions, "_gate", lambda job: None)
        plain = self.made(worlds, f"{kind} gated")
        assert set(gated.arrays) - set(plain.arrays) == {GATE}
        for name, array in plain.arrays.items():
            assert torch.equal(gated.arrays[name], array)

    def test_it_tells_where_the_rows_lie(self, worlds, kind):
        world = worlds[f"{kind} gated"]
        gate = self.made(worlds, f"{kind} gated").gate
        right = world.kit.inputs[:, 0] > 0.5
        assert gate[right].mean() > gate[~right].mean() + 1
        payload_of(world.kit.plan).check(world.kit.plan, self.made(worlds, f"{kind} gated"), "")

    def test_the_same_rows_give_the_same_bits_and_one_less_other_halves(self, worlds, kind):
        first, again = (self.made(worlds, f"{kind} gated") for _ in range(2))
        assert first.digest() == again.digest()
        fewer = self.made(worlds, f"{kind} gated", num_rows=119)
        assert not torch.equal(first.gate, fewer.gate)


def test_a_training_that_was_killed_in_the_gate_goes_on_to_the_same_bytes(worlds, tmp_path):
    world = worlds["network gated"]
    rows = SiteRows.of(world.kit.plan, table(world.kit.plan))

    def run(out, callbacks=()):
        key = world.key("Alpha")
        training = Training(world.kit, "Alpha", key, Approvals(tmp_path), tmp_path / out)
        with listening(callbacks):
            return training.run(rows)

    whole = run("whole")
    seen = []

    def kill(event):
        seen.append(event)
        if len(seen) > num_events * 3 // 4:  # the model is made, the gate is not
            raise TrainingError("killed")

    count = []
    run("counted", [count.append])
    num_events = len(count)
    with pytest.raises(TrainingError, match="killed"):
        run("broken", [kill])
    resumed = run("broken")
    assert resumed.upload.digest() == whole.upload.digest()
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert not list((tmp_path / "broken" / "home").glob("checkpoint*"))


def test_the_egress_page_says_that_a_gate_leaves(worlds, tmp_path):
    world = worlds["classes gated"]
    keys = (world.key("Alpha"), Approvals(tmp_path))
    for num_rows, told in (
        (120, "how typical each of the 150 reference rows"),
        (19, "0 everywhere"),
    ):
        rows = SiteRows.of(world.kit.plan, table(world.kit.plan).head(num_rows))
        out = tmp_path / str(num_rows)
        made = Training(world.kit, "Alpha", *keys, out, "logistic-regression").run(rows)
        assert told in re.sub(r"<[^>]+>", "", made.egress.read_text())


class TestIntake:
    def refused(self, world, upload, tmp_path):
        path = tmp_path / "upload.safetensors"
        save_signed(upload, path, world.key("Alpha"))
        intake = Intake.of(world.kit.plan)
        with pytest.raises(UploadError) as refused:
            intake.check(path, {"Alpha": world.key("Alpha").public.hex})
        assert "\n" not in str(refused.value)
        return str(refused.value)

    @pytest.mark.parametrize("kind", ["classes gated", "numbers gated"])
    def test_an_honest_upload_passes_and_one_without_its_gate_does_not(
        self, worlds, kind, tmp_path
    ):
        world = worlds[kind]
        study = world.begin(f"taken-{kind[:3]}")
        study.add(world.file("Alpha"))
        upload = world.upload("Alpha")
        bare = {name: a for name, a in upload.arrays.items() if name != GATE}
        old = dataclasses.replace(upload, arrays=bare)
        assert "no array 'gate', which the plan asks for" in self.refused(world, old, tmp_path)

    def test_a_gate_that_was_not_asked_for_is_refused(self, worlds, tmp_path):
        world = worlds["classes"]
        upload = world.upload("Alpha", gate=torch.zeros(150))
        assert "which the plan does not ask for" in self.refused(world, upload, tmp_path)

    def test_it_must_be_one_number_for_each_reference_row(self, worlds, tmp_path):
        world = worlds["classes gated"]
        upload = world.upload("Alpha", gate=torch.zeros(149))
        said = self.refused(world, upload, tmp_path)
        assert "is float32 [149], and the plan's is float32 [150]" in said

    def test_bounds_are_the_plans(self, worlds, tmp_path):
        world = worlds["classes gated"]
        gate = torch.full((150,), -6.0)
        gate[0] = 4.5
        upload = world.upload("Alpha", gate=gate)
        assert "ceiling = 3" in self.refused(world, upload, tmp_path)

    def test_nobody_can_claim_more_rows_than_it_has(self, worlds, tmp_path):
        """A large ratio everywhere would be weight for nothing."""
        world = worlds["classes gated"]
        upload = world.upload("Alpha", gate=torch.full((150,), 0.2))
        assert "mean ratio of 1.221" in self.refused(world, upload, tmp_path)

    def test_half_precision_rounds_an_honest_gate_within_what_is_allowed(self, tmp_path):
        world = make_world(
            tmp_path / "half", gate="[gate]\nfloor = -7.3\n", upload='precision = "float16"'
        )
        gate = torch.full((150,), -7.3)
        gate[:8] = torch.tensor(150 / 8).log()
        made = Upload.of_predictions(
            world.predictions("Alpha"), num_rows=100, gate=gate, dtype=torch.float16
        )
        save_signed(
            made.named("Alpha").for_plan(world.kit.digest),
            tmp_path / "half.safetensors",
            world.key("Alpha"),
        )
        world.begin().add(tmp_path / "half.safetensors")


def finished(world, name="study", uploads=None):
    study = world.begin(name)
    for site in SITES:
        upload = (uploads or {}).get(site) or world.upload(site)
        save_signed(upload, world.root / f"{site}.safetensors", world.key(site))
        study.add(world.root / f"{site}.safetensors")
    _recorded, result = study.finish()
    return study, result


class TestFinish:
    @pytest.mark.parametrize("regression", [False, True])
    def test_labels_choose_among_pools_with_gates(self, tmp_path, regression):
        world = make_world(tmp_path, gate="[gate]\n", regression=regression)
        study, result = finished(world)
        names = {candidate.name for candidate in result.pool.candidates}
        assert "gated, tempered" in names
        assert ("gated mixture" in names) is not regression
        assert study.verify(rebuild=True) == []
