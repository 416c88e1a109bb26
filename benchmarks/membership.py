"""What an upload tells about who was trained on: by learner, leaf size, blind spot and defence.

The attack is that of `predbayes site audit` (an extra of the study): sixteen fits to
complementary random halves, and a likelihood ratio by the other pairs. AUC .5 is guessing.

    --rows N       every learner on N rows of a drawn table of twelve columns (half of them in each
                   fit; learners shortened as in an audit; dp-logistic with epsilon 4): at the
                   target, which is what weights or a crafted reference row allow; by 500 reference
                   rows; by the gate alone; and at the target in the sum of five such sites
    --network      with --rows: the network of two layers of 100 alone, which takes longest
    --audit N      how long `predbayes site audit` takes for every learner, at a site that trains on
                   N rows of that table: seconds of one processor
    --leaves       forests and boosting with larger leaves, on patients of four hospitals: AUC at
                   the target, and NLL of rows left out
    --blind-spot   a forest at each of four hospitals, some of whose patients are among the
                   reference rows, with and without the blind spot; shares of members whose label
                   is guessed, and NLL
    --defences     what rounding and bounds do to predictions and the gate of a logistic regression
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.guarantee import Guarantee
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.named import CALIBRATED, CLASSIFIERS, PRIVATE
from predbayes.posterior.cyclical import PRESETS
from predbayes.seeding import generator
from predbayes_lab.config import Settings
from predbayes_lab.world import World, make_world
from predbayes_study.extras.audit.attack import audit as audit_site
from predbayes_study.extras.audit.attack import fewer_people, in_short
from predbayes_study.extras.audit.membership import Array, Members, attack, shadow_halves
from predbayes_study.extras.audit.shadows import GateOf, fit_shadows, statistic
from predbayes_study.extras.privacy.private import PrivateLogistic
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.site.blindspot import near_groups, with_blind_spot
from predbayes_study.site.holdout import hold_out
from predbayes_study.site.policy import NO_POLICY
from predbayes_study.site.rows import SiteRows
from predbayes_study.tasks.choice import held_out, row_losses

NUM_PATIENTS = 240
NUM_COLUMNS = 12
NUM_REFERENCE = 500
NUM_OTHERS = 8  # other sites, four of which are in a sum with the attacked one
LARGE = "network 100, 100"
SECONDS = 2.0  # of a half
MOST_SECONDS = 120.0  # of an audit
Rows = tuple[Tensor, Tensor]

DEFENCES: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda values: values,
    "rounded to 0.1": lambda values: np.round(values, 1),
    "rounded to 0.5": lambda values: np.round(2 * values) / 2,
    "within 2": lambda values: np.clip(values, -2, 2),
    "within 2, rounded to 0.5": lambda values: np.round(2 * np.clip(values, -2, 2)) / 2,
}


def run(
    rows: int = 0,
    network: bool = False,
    audit: int = 0,
    leaves: bool = False,
    blind_spot: bool = False,
    defences: bool = False,
) -> dict[str, Any]:
    """Run the parts that are asked for; without any, the table at 100 and 1,000 rows."""
    figures: dict[str, Any] = {}
    if audit:
        figures[f"audit {audit}"] = _audits(audit)
    if leaves:
        figures["leaves"] = _leaves()
    if blind_spot:
        figures["blind_spot"] = _blind_spot()
    if defences:
        figures["defences"] = _defences()
    for num in [rows] if rows else [] if figures else [100, 1000]:
        figures[f"rows {num}"] = _table(num, network)
    return figures


# Every learner


def _learners() -> Iterator[tuple[str, Any]]:
    for name in CLASSIFIERS:
        yield name, SklearnClassifier(CLASSIFIERS[name](), 2, calibrated=name in CALIBRATED)
    for name, hidden in (("small-network", (16,)), (LARGE, (100, 100))):
        network = Network.mlp(NUM_COLUMNS, Softmax(2), hidden)
        yield name, SGHMCLearner(network, replace(PRESETS["tuned"], min_steps=1000))  # as in plans
    yield PRIVATE, PrivateLogistic(2, Guarantee(4.0, 1e-5, "replace-one", "row"))


def drawn(num: int, seed: int) -> Rows:
    """Return rows of a population with a linear part and an interaction."""
    rng = generator(seed, "membership")
    inputs = torch.randn(num, NUM_COLUMNS, generator=rng)
    slopes = torch.randn(NUM_COLUMNS, generator=generator(1, "slopes")) / NUM_COLUMNS**0.5
    chance = (1.5 * (inputs @ slopes) + inputs[:, 0] * inputs[:, 1]).sigmoid()
    return inputs, (torch.rand(num, generator=rng) < chance).long()


def _table(num: int, network: bool) -> dict[str, Any]:
    everybody, reference = drawn(num, 0), drawn(NUM_REFERENCE, 5)[0]
    found = {}
    for name, whole in _learners():
        if network and name != LARGE:
            continue
        began = time.process_time()
        rng = generator(0, name)
        some, fewer = fewer_people(whole, torch.arange(num), SECONDS, rng=rng)
        rows = everybody[0][some], everybody[1][some]
        learner, shortened = in_short(whole, rows, SECONDS, rng=rng)
        shortened = ", ".join(filter(None, (shortened, fewer)))
        private = isinstance(learner, PrivateLogistic)  # whose plans have no gate
        gate = None if private else GateOf(learner.gate_learner(), GateBounds())
        people = torch.arange(len(some))
        shadows = fit_shadows(
            learner, rows, people, reference, gate=gate, rng=generator(0, name, num)
        )
        seen = {"target": shadows.target, "reference": shadows.reference}
        if shadows.gate_reference is not None:
            seen["gate"] = shadows.gate_reference
        seen["five sites"] = shadows.target + _others(learner, rows, len(shadows.members))
        told: dict[str, Any] = {}
        for place, values in seen.items():
            leak, _ = attack(values, shadows.members, generator(0, place))
            told[place] = {"auc": leak.auc, "low": leak.low, "high": leak.high, "null": leak.null}
        seconds = time.process_time() - began
        found[name] = {**told, "shortened": shortened, "cpu_seconds": seconds}
        line = "  ".join(f"{place} {one['auc']:.3f}" for place, one in told.items())
        print(f"{num:5} {name:20} {line}  ({shortened or 'whole'}, {seconds:.0f} s)", flush=True)
    return found


def _others(learner: Any, rows: Rows, num_runs: int) -> Array:
    """What four of eight other sites say of each row together, by run, (runs, rows, 1)."""
    inputs, targets = rows
    said = torch.stack(
        [
            statistic(
                learner.fit(drawn(len(targets) // 2, 100 + k), rng=generator(k, "other")).predict(
                    inputs
                ),
                targets,
            )
            for k in range(NUM_OTHERS)
        ]
    )
    rng = generator(0, "sums")
    chosen = [torch.randperm(NUM_OTHERS, generator=rng)[:4] for _ in range(num_runs)]
    summed: Array = torch.stack([said[few].sum(0) for few in chosen]).numpy()
    return summed[..., None]


# Audits

_PLAN = """
format = 1
name = "audit"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[reference]
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
labelled = 100
evaluate = 0
unlabelled = {unlabelled}
[model]
hidden = [100, 100]
[pool]
own = "none"
[learner]
name = "{learner}"
holdout = 0.0
holdout_reason = "all rows are attacked"
[columns]
"""
_PROMISE = """
[privacy]
epsilon = 4
delta = 1e-5
adjacency = "replace-one"
unit = "row"
"""


def _audits(num: int) -> dict[str, Any]:
    """CPU seconds of an audit, by learner."""
    found: dict[str, dict[str, Any]] = {}
    for name in (*CLASSIFIERS, "small-network", "network", PRIVATE):
        with TemporaryDirectory() as folder:
            kit = _kit(Path(folder), name)
            rows = SiteRows.of(kit.plan, _frame(num, 0), secret=bytes(32))
            began = time.process_time()
            told = audit_site(kit, "Site", rows, name, policy=NO_POLICY)
            seconds = time.process_time() - began
        found[name] = {"cpu_seconds": seconds, "people": told.people, "shortened": told.shortened}
        print(f"{num:5} {name:20} {seconds:4.0f} s  ({told.shortened or 'whole'})", flush=True)
    longest = max(one["cpu_seconds"] for one in found.values())
    return {"longest": longest, "reached": longest <= MOST_SECONDS, "learners": found}


def _kit(folder: Path, learner: str) -> Kit:
    """A frozen plan whose reference rows are of the drawn table."""
    rows = _frame(NUM_REFERENCE, 5)
    rows["ill"] = rows["ill"].where(rows.index < rows.index[0] + 100, "")
    rows.to_csv(folder / "reference.csv", index=False)
    text = _PLAN.format(
        unlabelled=NUM_REFERENCE - 100,
        learner=learner if learner == PRIVATE else "any",
    )
    text += "".join(f'x{k} = {{ type = "number", unit = "1" }}\n' for k in range(NUM_COLUMNS))
    text += _PROMISE if learner == PRIVATE else ""
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    freeze(folder / "plan.toml", folder / "kit")
    return Kit.load(folder / "kit")


def _frame(num: int, seed: int) -> pd.DataFrame:
    """Drawn rows as a site's table, numbered by its lines."""
    inputs, targets = drawn(num, seed)
    table = pd.DataFrame({f"x{k}": inputs[:, k].numpy() for k in range(NUM_COLUMNS)})
    table["ill"] = [("no", "yes")[one] for one in targets.tolist()]
    table.index = pd.RangeIndex(2, num + 2)
    return table


# Patients of four hospitals


def _world() -> World:
    settings = Settings.decode({"data": {"name": "heart"}, "partition": {"kind": "groups"}})
    return make_world(settings, 0)


def _patients(world: World) -> Rows:
    inputs = torch.cat([rows[0] for rows in world.sites.values()])
    targets = torch.cat([rows[1] for rows in world.sites.values()])
    chosen = torch.randperm(len(inputs), generator=generator(0, "patients"))[:NUM_PATIENTS]
    return inputs[chosen], targets[chosen]


def _leaves() -> dict[str, Any]:
    """AUC at the target and NLL of rows left out, by least rows of a leaf."""
    world = _world()
    rows, found = _patients(world), {}
    for name, sizes in (("random-forest", (3, 5, 10)), ("gradient-boosting", (20, 30, 40))):
        for least in sizes:
            estimator = CLASSIFIERS[name]().set_params(min_samples_leaf=least)
            learner = SklearnClassifier(estimator, 2, size=3, calibrated=name in CALIBRATED)
            shadows = fit_shadows(
                learner,
                rows,
                torch.arange(NUM_PATIENTS),
                world.reference.inputs,
                rng=generator(0, name),
            )
            target, _ = attack(shadows.target, shadows.members, generator(0, "target"))
            sent, _ = attack(shadows.reference, shadows.members, generator(0, "reference"))
            said = held_out(learner, rows, rng=generator(0, "folds"))
            nll = float(row_losses(said, rows[1]).mean())
            found[f"{name} {least}"] = {"target": target.auc, "reference": sent.auc, "nll": nll}
            print(
                f"{name:18} leaves of {least:3}: at target {target.auc:.3f}, by reference rows "
                f"{sent.auc:.3f}, NLL {nll:.3f}",
                flush=True,
            )
    return found


def _blind_spot(num_draws: int = 2) -> dict[str, Any]:
    """Hospitals a twelfth of whose patients is among the reference rows; about half are theirs."""
    world, found = _world(), {}
    estimator = CLASSIFIERS["random-forest"]().set_params(n_estimators=100)
    learner = SklearnClassifier(estimator, 2, size=2)
    for how in ("without", "with"):
        values, members, others = [], [], []
        for draw, (site, rows) in product(range(num_draws), world.sites.items()):
            halves = shadow_halves(len(rows[1]) // 12, 8, generator(draw, "halves", site))
            told = _hospital(world, rows, halves, learner, how == "with", draw)
            values.append(told[0])
            members.append(halves)
            others.append(told[1:])
        who = np.concatenate(members, axis=1)
        leak, _ = attack(np.concatenate(values, axis=1), who, generator(0, how))
        guessed, nll = (float(np.mean(part)) for part in zip(*others, strict=True))
        found[how] = {"auc": leak.auc, "low": leak.low, "high": leak.high, "null": leak.null}
        found[how] |= {"people": who.shape[1], "guessed": guessed, "nll": nll}
        print(
            f"{how:8} the blind spot: AUC {leak.auc:.3f} [{leak.low:.3f}, {leak.high:.3f}] of "
            f"{who.shape[1]} people, members' labels guessed {guessed:.3f}, NLL {nll:.4f}",
            flush=True,
        )
    return found


def _hospital(
    world: World, rows: Rows, members: Members, learner: Any, blind: bool, draw: int
) -> tuple[Array, float, float]:
    """What is said at the crafted rows, members' labels that are guessed, and NLL of other rows."""
    inputs, targets = rows
    num = members.shape[1]
    order = torch.randperm(len(targets), generator=generator(draw, "targets"))
    asked, tried, rest = order[:num], order[num : 5 * num], order[5 * num :]
    reference = torch.cat([world.reference.inputs, inputs[asked]])
    values, right, losses = [], [], []
    for run, half in enumerate(members):
        table = torch.cat([asked[torch.from_numpy(half)], rest])
        people = torch.arange(len(table))
        rng = generator(run, "hospital", draw)
        out = hold_out(people, targets[table], 0.2, rng)
        if blind:
            near = near_groups(reference, inputs[table], people)
            out = with_blind_spot(out, people, targets[table], near, rng)
        kept = table[~out]
        fitted = learner.fit((inputs[kept], targets[kept]), rng=rng)
        said = fitted.predict(inputs[asked])
        values.append(statistic(said, targets[asked]).numpy())
        # Of whoever was trained on; with the blind spot, where nobody was, of whoever is there.
        there = torch.from_numpy(half) if blind else torch.isin(asked, kept)
        right += (said.classes() == targets[asked])[there].tolist()
        losses.append(float(row_losses(fitted.predict(inputs[tried]), targets[tried]).mean()))
    return np.stack(values)[..., None], float(np.mean(right)), float(np.mean(losses))


# Defences


def _defences(num_sites: int = 32) -> dict[str, Any]:
    """What rounding and bounds do to the log odds and the gate at each patient's row.

    A temperature is no defence: whoever knows it divides by it.
    """
    world = _world()
    inputs, targets = _patients(world)
    learner = SklearnClassifier(CLASSIFIERS["logistic-regression"](), 2)
    asked = torch.cat([inputs, world.reference.inputs])  # each patient is a reference row
    members = shadow_halves(NUM_PATIENTS, num_sites // 2, generator(0, "halves"))
    log_odds, gates = np.empty((2, *members.shape))
    for index, half in enumerate(members):
        rng, own = generator(index, "shadow"), torch.from_numpy(half).nonzero()[:, 0]
        rows = inputs[own], targets[own]
        log_odds[index] = statistic(learner.fit(rows, rng=rng).predict(inputs), targets).numpy()
        ratio = log_density_ratio(learner.gate_learner(), rows, asked, bounds=GateBounds(), rng=rng)
        gates[index] = ratio[:NUM_PATIENTS].numpy()
    figures = {}
    for name, defence in DEFENCES.items():
        said, gated = defence(log_odds)[..., None], defence(gates)[..., None]
        both = np.concatenate([said, gated], axis=-1)
        seen = {"predictions": said, "gate": gated, "both": both}
        found = {
            what: attack(values, members, generator(0, name))[0].auc
            for what, values in seen.items()
        }
        figures[name] = found
        print(f"{name:26}", *(f"{what} {area:.3f}" for what, area in found.items()), flush=True)
    return figures
