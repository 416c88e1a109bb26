"""A small study that is quick to set up: two columns, three classes or a number, five sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch

from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes.learning.distill import DISTILLATION
from predbayes.learning.gate import GateBounds
from predbayes.learning.local import NetworkPredictor
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.seeding import generator
from predbayes_study.coordinator.study import Study
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.payloads.details import having_seen, save_signed
from predbayes_study.plan.models import student_network
from predbayes_study.plan.schema import Plan
from predbayes_study.report import figures
from predbayes_study.result import conclude
from predbayes_study.result.model import CalibratedModel
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.sealed import seal
from predbayes_study.trust.signing import SigningKey

SITES = ("Alpha", "Beta", "Gamma", "Delta", "Epsilon")
NUM_CLASSES = 3
SALT = bytes(32)

_COMMON = """
format = 1
name = "small"
[columns]
x = { type = "number", unit = "mm", range = [-50, 50] }
y = { type = "number", range = [-50, 50], missing = "flag" }
[reference]
file = "reference.csv"
source = "drawn"
licence = "CC0"
legal_basis = "nobody's data"
labelled = %(labelled)d
evaluate = %(evaluate)d
unlabelled = %(unlabelled)d
[model]
%(model)s
%(learner)s
[pool]
method = "%(method)s"
own = "%(own)s"
[rules]
min_labels_to_judge = 30
screening = "%(screening)s"
%(rules)s
[upload]
%(upload)s
%(gate)s
"""
_LEARNER = "[learner]\nmin_steps = 200\nnum_epochs = 1\nholdout = 0.0\nholdout_reason = 'drawn'\n"
_CLASSES = """
[target]
name = "kind"
task = "classification"
classes = ["red", "green", "blue"]
"""
_NUMBER = """
[target]
name = "height"
task = "regression"
unit = "cm"
%s
"""

TARGETS = {
    "classes": 'task = "classification", classes = ["no", "yes"]',
    "number": 'task = "regression", unit = "days", centre = 12.0, scale = 4.0',
}
"""Targets for `home_plan`."""
_HOME = """
format = 1
name = "home"
target = {{ name = "outcome", {target} }}
reference = {{}}
model = {{ hidden = [4] }}
{more}
[columns]
age = {{ type = "number", range = [18, 100], centre = 60.0, scale = 10.0 }}
ward = {{ type = "category", categories = ["1", "2"], missing = "flag" }}
"""


@dataclass
class World:
    """A frozen plan, keys of five sites, and a folder for a study."""

    root: Path
    kit: Kit
    keys: dict[str, SigningKey] = field(default_factory=dict)
    coordinator: CoordinatorKey | None = None
    seen: str = ""  # the head in the signed kit of the study that was begun last

    @property
    def labels_path(self) -> Path:
        return self.root / "kit-labels.json"

    def begin(
        self, name: str = "study", sites: Sequence[str] = SITES, added: Sequence[str] = ()
    ) -> Study:
        """A new study of the plan, with sites admitted and the uploads of some added."""
        study = Study.init(self.root / name, self.kit.folder, self.labels_path, self.key_path)
        self.seen = study.kit.head
        for site in sites:
            study.admit(site, self.key(site).public)
        for site in added:
            study.add(self.file(site))
        return study

    @property
    def key_path(self) -> Path | None:
        return None if self.coordinator is None else self.root / "coordinator.key"

    def key(self, site: str) -> SigningKey:
        if site not in self.keys:
            self.keys[site] = SigningKey.generate()
        return self.keys[site]

    def predictions(self, site: str, noise: float = 1.0) -> Predictive:
        """What an honest site would send, made without training."""
        rng = generator(0, "predictions", site)
        inputs = self.kit.inputs
        if self.kit.plan.target.classes:
            logits = 2 * torch.cat([inputs[:, :2], -inputs[:, :1]], dim=1)
            logits = logits + noise * torch.randn(logits.shape, generator=rng)
            return Categorical(logits.log_softmax(-1))
        mean = inputs[:, 0] + 0.2 * noise * torch.randn(len(inputs), generator=rng)
        return Gaussian(mean, torch.full_like(mean, 0.3), torch.full_like(mean, 0.1))

    def gate(self, site: str) -> torch.Tensor | None:
        """What an honest site would say of where its rows lie, if the plan asks for it."""
        if self.kit.plan.gate is None:
            return None
        slope = 1.5 * torch.rand(2, generator=generator(0, "gate", site)) - 0.75
        return GateBounds().apply(self.kit.inputs[:, :2] @ slope)

    def upload(
        self,
        site: str,
        predictive: Predictive | None = None,
        gate: torch.Tensor | None = None,
    ) -> Upload:
        made = Upload.of_predictions(
            self.predictions(site) if predictive is None else predictive,
            num_rows=100 + len(site),
            class_rows=(40.0, 30.0, 30.0) if self.kit.plan.target.classes else None,
            gate=self.gate(site) if gate is None else gate,
        )
        return having_seen(made.named(site).for_plan(self.kit.digest, "drawn"), self.seen)

    def file(self, site: str, predictive: Predictive | None = None) -> Path:
        """What leaves a site: a signed upload, sealed if the plan says so."""
        return self.sealed(self.signed(site, predictive))

    def signed(self, site: str, predictive: Predictive | None = None) -> Path:
        """A signed upload as a file."""
        path = self.root / f"{site}.safetensors"
        save_signed(self.upload(site, predictive), path, self.key(site))
        return path

    def sealed(self, path: Path, site: str = "") -> Path:
        """A signed file as it leaves: sealed, if the plan says so; of a site that is known."""
        plan = self.kit.plan
        if not plan.recipient:
            return path
        target, site = path.with_suffix(".sealed"), site or Header.read(path).info.site
        said = {"plan": self.kit.digest, "site": site, "to": plan.recipient}
        target.write_bytes(seal(path.read_bytes(), **said))
        return target


def make_world(
    root: Path,
    *,
    regression: bool = False,
    labelled: int = 60,
    evaluate: int = 40,
    unlabelled: int = 50,
    method: str = "auto",
    own: str = "none",
    screening: str = "report",
    rules: str = "",
    learner: str = _LEARNER,
    upload: str = "",
    model: str = "hidden = [8]",
    gate: str = "",
    coordinator: CoordinatorKey | None = None,
) -> World:
    """A frozen plan in a folder."""
    values = {
        "labelled": labelled,
        "evaluate": evaluate,
        "unlabelled": unlabelled,
        "method": method,
        "own": own,
        "screening": screening,
        "rules": rules,
        "learner": learner,
        "upload": upload,
        "model": model,
        "gate": gate,
    }
    root.mkdir(parents=True, exist_ok=True)
    units = "" if labelled else "centre = 170.0\nscale = 10.0"  # which labels would tell
    text = _COMMON % values + (_NUMBER % units if regression else _CLASSES)
    (root / "plan.toml").write_text(text)
    num_labels = labelled + evaluate
    frame = _frame(num_labels + unlabelled, num_labels, regression=regression)
    frame.to_csv(root / "reference.csv", index=False)
    public = None if coordinator is None else coordinator.public
    kit = freeze(root / "plan.toml", root / "kit", root / "kit-labels.json", key=public, salt=SALT)
    if coordinator is not None:
        coordinator.save(root / "coordinator.key")
    return World(root, kit, coordinator=coordinator)


def _frame(num_rows: int, num_labels: int, *, regression: bool) -> pd.DataFrame:
    rng = generator(0, "reference")
    x, y = (10 * torch.randn(num_rows, generator=rng) for _ in range(2))
    scores = torch.stack([x, y, -x], dim=1) / 5
    gumbel = -torch.empty_like(scores).exponential_(generator=rng).log()
    classes = [("red", "green", "blue")[int(k)] for k in (scores + gumbel).argmax(1)]
    heights = (170 + x + 3 * torch.randn(num_rows, generator=rng)).tolist()
    labels = [f"{height:.1f}" for height in heights] if regression else classes
    frame = pd.DataFrame({"x": x.numpy().round(3), "y": y.numpy().round(3)})
    frame["y"] = [f"{value}" if index % 7 else "" for index, value in enumerate(frame["y"])]
    frame["height" if regression else "kind"] = labels[:num_labels] + [""] * (num_rows - num_labels)
    return frame


def frozen(plan: str) -> Plan:
    """A plan in TOML as if it had been frozen: its columns have centres and scales."""
    digests = "".join(f'{name} = "{"0" * 64}"\n' for name in ("inputs_digest", "labels_digest"))
    return Plan.loads(f'{plan}\n[frozen]\n{digests}version = "0.1.0"\n')


def home_plan(target: str, more: str = "") -> Plan:
    """A frozen plan of two columns, for a site that takes its model home."""
    return frozen(_HOME.format(target=target, more=more))


def untrained(plan: Plan, seed: int = 0, temperature: float = 1.0, **about: Any) -> CalibratedModel:
    """A model whose weights are as they were drawn."""
    network = student_network(plan)
    samples = WeightSamples.of(network.create(generator(seed, "home")))
    predictor = NetworkPredictor(network, samples, inverse_temperature=temperature)
    return CalibratedModel(plan, predictor, **about)


def own_table(reference: str, num_rows: int = 80) -> str:
    """A site's table like the reference rows, and none of them: `site check` would find it."""
    head, *rows = reference.splitlines()[: num_rows + 1]
    cells = (row.split(",", 1) for row in rows)
    moved = (f"{float(x) + 3:.3f},{rest}" for x, rest in cells)
    return "\n".join([head, *moved]) + "\n"


@contextmanager
def quick_results() -> Iterator[None]:
    """Make results whose student learnt next to nothing and whose figures are empty."""
    short = replace(DISTILLATION, num_epochs=1, min_steps=2)

    with (
        mock.patch.object(conclude, "DISTILLATION", short),
        mock.patch.object(figures, "_svg", return_value="<svg></svg>"),
        mock.patch.dict(figures.DRAWN, clear=True),
    ):
        yield
