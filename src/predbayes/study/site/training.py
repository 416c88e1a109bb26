"""What a site does: fit a model to its rows, and make the one file that it sends.

    rows      encoded as the plan says; a share of them is held out and never trained on, rows that
              a reference row is near to first (`study.site.blindspot`)
    choose    with the learner `auto`: which of a few serves the rows best, by cross-validation
    fit       the plan's network, or with uploads of predictions any learner
    gate      if the plan asks for it: how dense the site's rows lie at each reference row, learnt
              by the learner's counterpart for two classes (`predbayes.learning.gate`)
    upload    predictions on the reference inputs, or weight samples; gate; row count, and class
              counts where none is below the plan's `min_cell`. Sums of moments of the rows
              (`study.site.sums`) beside predictions, or alone: then the model that was fitted
              stays, for the site to compare
    mask      if the plan's sums are sealed: predictions and class counts as words under masks

Under a plan that promises differential privacy (`privacy.people`) there are predictions of a model
that was learnt with noise, a count with noise, and nothing else: no blind spot, no gate, no class
counts. Noise and held-out rows are by the site's secret (`study.site.secret`), and what is promised
is in the book of budgets (`study.site.budget`) before anything is trained.

Everything random derives from the plan's seed, the site's name and, where a learner is refitted by
the bootstrap, its rows: the same rows give the same upload to the bit, also if training was killed
and went on. With other rows, be it one less, every bootstrap weight is drawn anew, so that the
difference of two uploads is mostly theirs, and not the person's who was taken out.

In a folder of the site's choice:

    NAME.safetensors    the signed upload, the one file that leaves; NAME.sealed if it is encrypted
    held-back.safetensors   in its place until it is approved, where the plan asks for that
    egress.html         the egress page: what leaves, for whoever approves it
    home/               stays: predictions of the site's own model on its held-out rows and on the
                        reference rows, how a learner was chosen, and what an audit found
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import DataError, StudyError, TrainingError, UploadError
from predbayes.exchange.header import SUMS
from predbayes.exchange.masking import masked
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.strict import require_site_name
from predbayes.exchange.upload import Upload, from_arrays, to_arrays
from predbayes.files import remove, write_bytes, write_whole
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.choice import Choice
from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.local import (
    LocalLearner,
    Predictor,
    SGHMCLearner,
    Teller,
    TellsApart,
    kept_together,
    teller_of,
)
from predbayes.learning.named import AUTO
from predbayes.learning.private import Noise
from predbayes.learning.private_network import PrivateLearner
from predbayes.methods.pooled import upload_of
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Predictive, Survival
from predbayes.predictive.words import to_noisy_words, to_words
from predbayes.progress import Callback, Event, listening
from predbayes.seeding import generator
from predbayes.spill import blocks, row_bytes, take
from predbayes.study.kit.kit import Kit
from predbayes.study.plan.models import choose_learner, make_learner, upload_dtype
from predbayes.study.plan.networks import IN_SITE_FILE, require_allowed
from predbayes.study.plan.schema import Plan
from predbayes.study.report.egress import DataSummary, render_egress
from predbayes.study.report.leakage import FILE as AUDIT_FILE
from predbayes.study.report.leakage import Outcome
from predbayes.study.site.blindspot import near_groups, with_blind_spot
from predbayes.study.site.budget import Book, Spent, SpentBatches
from predbayes.study.site.holdout import connected, hold_out
from predbayes.study.site.overlap import near_findings
from predbayes.study.site.policy import NO_POLICY, SitePolicy
from predbayes.study.site.release import Approvals, write_upload
from predbayes.study.site.secret import derived, release_id, secret_for
from predbayes.study.site.sums import require_many, upload_of_sums, with_sums, withheld
from predbayes.study.site.witness import Heads
from predbayes.study.tables.coding import Encoder, Examined, code_targets, examine
from predbayes.study.tables.mapping import PATIENT
from predbayes.study.tables.plausible import require_right_way
from predbayes.study.tables.problem import errors_of, least_cell
from predbayes.study.tables.sitefile import SiteFile
from predbayes.threads import threads

HOME = "home"
HOLDOUT_FILE = "holdout.safetensors"
HELD_BACK = "held-back.safetensors"
EGRESS_FILE = "egress.html"
CHOICE_FILE = "choice.json"
_CHECKPOINT = "checkpoint.safetensors"
_CHECKPOINTS = "checkpoint*.safetensors"  # of the model, and of each fit of the gate
_TAUGHT = "reference."  # before names of arrays of predictions on reference rows
_INPUTS = "inputs"
_LEAST_ROWS = 2
_SIGNATURE_BYTES = 248  # that a signature adds to a file: the page is of what will leave


@dataclass(frozen=True)  # without slots, where what is made once is kept
class SiteRows:
    """A site's rows as the plan encodes them; rows without a target are left out."""

    inputs: Tensor  # (N, plan.num_inputs)
    targets: Tensor  # (N,)
    num_dropped: int = 0
    patients: Tensor | None = None  # (N,) rows of one patient have one number
    lines: Tensor | None = None  # (N,) where they are in the site's file; its header is line 1
    secret: bytes = field(default=b"", repr=False)  # the site's; of a plan with a promise alone

    @classmethod
    def of(
        cls,
        plan: Plan,
        frame: pd.DataFrame,
        examined: Examined | None = None,
        *,
        secret: bytes = b"",
    ) -> SiteRows:
        """Encode a table in the plan's columns and units; or what was examined of it already."""
        least = least_cell(plan)
        targets = code_targets(plan, frame, least=least)
        known = ~targets.isnan()
        if int(known.sum()) < _LEAST_ROWS:
            raise DataError(f"fewer than {_LEAST_ROWS} rows have a {plan.target.name}")
        examined = examined or examine(plan, frame, "clip few")
        examined.require_sound(least)
        inputs = take(Encoder(plan).in_blocks(examined), known.nonzero()[:, 0])
        kept = targets[known].long() if plan.classification else targets[known].float()
        _require_people(plan, frame)
        patients = _numbered(frame[PATIENT])[known] if PATIENT in frame else None
        numbered = pd.api.types.is_integer_dtype(frame.index)
        lines = torch.tensor(frame.index.to_numpy(), dtype=torch.int64)[known] if numbered else None
        return cls(inputs, kept, int((~known).sum()), patients, lines, secret)

    @classmethod
    def to_train(cls, plan: Plan, own: SiteFile, frame: pd.DataFrame) -> SiteRows:
        """Encode the rows that an upload is made of; refuse a target that looks swapped."""
        examined = examine(plan, frame, "clip few")
        rows = cls.of(plan, frame, examined, secret=secret_for(plan, own))
        if plan.promise is None:  # where it is, a refusal would tell of all rows without noise
            targets = code_targets(plan, frame).numpy()
            require_right_way(plan, own, examined.codes.numpy(), targets)
        return rows

    def digest(self) -> str:
        """SHA-256 of the encoded rows."""
        content = hashlib.sha256(str(tuple(self.inputs.shape)).encode())
        parts = (self.inputs, self.targets, self.patients)
        for part in (part for part in parts if part is not None):
            content.update(part.contiguous().numpy().tobytes())
        return content.hexdigest()

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return take(self.inputs, rows), self.targets[rows]

    def line_of(self, row: int) -> int:
        """The line of a row in the site's file, or without one its place among the rows, from 1."""
        return row + 1 if self.lines is None else int(self.lines[row])

    def patients_of(self, rows: Tensor) -> Tensor | None:
        """The patients' numbers of some rows, if they are known."""
        return None if self.patients is None else self.patients[rows]

    def split(
        self, plan: Plan, site: str, reference: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows to train on and rows held out, ascending; the same whenever it is asked.

        Rows of one patient are on one side. If the plan says `stratified`, so are copies of a row,
        and each class has its share on both. With the reference inputs, rows that these are near
        to are held out in the place of others (`study.site.blindspot`).
        """
        if plan.promise is not None:
            held_out = self._tossed(plan, site)
            return (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
        held_out = self._drawn(plan, site)
        if reference is not None and bool(held_out.any()):
            held_out = self._blind(plan, site, reference, held_out)
        return (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]

    def split_for(self, kit: Kit, site: str) -> tuple[Tensor, Tensor]:
        """The rows that a site trains on for a kit, and those held out.

        Where no predictions leave, reference rows are not asked about: there is no blind spot.
        """
        asked = kit.plan.upload.kind == "predictions"
        return self.split(kit.plan, site, kit.inputs if asked else None)

    def rule(self, plan: Plan) -> str:
        """Say by which rule `split_for` holds rows out, in a few words."""
        if plan.promise is not None:
            return f"{plan.learner.holdout:.0%} by a coin of the site's secret for each person"
        if not plan.learner.holdout:
            return "none, as the plan says"
        parts = [f"{plan.learner.holdout:.0%} by lot of the plan's seed"]
        if self.patients is not None:
            parts.append("rows of one patient together")
        if plan.learner.split == "stratified":
            parts.append("of each class its share" if plan.classification else "")
            parts.append("equal rows together")
        if plan.upload.kind == "predictions":
            parts.append("those near a reference row first")
        return ", ".join(filter(None, parts))

    def _tossed(self, plan: Plan, site: str) -> Tensor:
        """Which rows are held out by a coin for each person, (N,).

        A share, or a blind spot, would hold somebody out because of somebody else's rows: two
        people would differ between neighbouring tables.
        """
        self.require_secret()
        whose = torch.arange(len(self.targets))
        if self.patients is not None:
            whose = torch.unique(self.patients, return_inverse=True)[1]
        noise = Noise(derived(self.secret, "coins", plan.digest(), site))
        coins = noise.uniforms(int(whose.max()) + 1, "held out") < plan.learner.holdout
        return torch.from_numpy(coins)[whose]

    def require_secret(self) -> None:
        """Refuse to draw what must be secret from what everybody knows."""
        if not self.secret:
            raise TrainingError(
                "the plan promises differential privacy: `predbayes site train` makes what leaves, "
                "with noise of the site's secret"
            )

    def _drawn(self, plan: Plan, site: str) -> Tensor:
        """Which rows are held out by lot, (N,)."""
        stratified = plan.learner.split == "stratified"
        if stratified:
            groups = self.alike
        elif self.patients is not None:
            groups = connected([self.patients])
        else:
            drawn = torch.zeros(len(self.targets), dtype=torch.bool)
            drawn[split_rows(plan, site, len(self.targets))[1]] = True
            return drawn
        strata = self.targets if stratified and plan.classification else None
        rng = generator(plan.seed, "holdout", site)
        return hold_out(groups, strata, plan.learner.holdout, rng)

    def _blind(self, plan: Plan, site: str, reference: Tensor, held_out: Tensor) -> Tensor:
        known = self._near.get(id(reference))
        if known is None:  # it is asked several times, and takes a while
            known = reference, near_groups(reference, self.inputs, self.alike)
            self._near[id(reference)] = known
        groups, near = self.alike, known[1]
        # Without strata nothing that is held out, not even its class, has a part in what is sent.
        stratified = plan.learner.split == "stratified"
        if not stratified:  # copies are on both sides: each row goes alone
            one_by_one = torch.arange(len(self.targets))
            groups = one_by_one if self.patients is None else connected([self.patients])
            places = {group: place for place, group in enumerate(near)}
            order = sorted(
                (places[number], own)
                for number, own in zip(self.alike.tolist(), groups.tolist(), strict=True)
                if number in places
            )
            near = list(dict.fromkeys(own for _, own in order))
        classes = self.targets if stratified and plan.classification else None
        rng = generator(plan.seed, "blind spot", site)
        return with_blind_spot(held_out, groups, classes, near, rng)

    @cached_property
    def _near(self) -> dict[int, tuple[Tensor, list[int]]]:
        """Groups near reference inputs, by the identity of these, which is kept with them."""
        return {}

    @cached_property
    def alike(self) -> Tensor:
        """Numbers of groups of rows of one patient, and of copies; finding them takes a while."""
        numbers = _equal_rows(self.inputs)
        num_distinct = int(numbers.max()) + 1
        # In a table of few categories rows are equal by chance, and are no copies. The target does
        # not part equal rows: held-out ones would be of another p(y | x).
        copies = numbers if 2 * num_distinct >= len(numbers) else torch.arange(len(numbers))
        return connected([copies] if self.patients is None else [self.patients, copies])


def _require_people(plan: Plan, frame: pd.DataFrame) -> None:
    """Refuse rows of which nobody knows whose they are, where people are promised something."""
    if plan.promise is None or plan.promise.unit != "person":
        return
    if PATIENT not in frame or bool((frame[PATIENT] == "").any()):
        lacking = "some rows have no patient" if PATIENT in frame else "it names no such column"
        raise DataError(
            f"privacy.people of the plan is for each person, and site.toml has to say whose each "
            f"row is (patient = COLUMN): {lacking}, and rows of one person must be clipped as one"
        )


def _equal_rows(inputs: Tensor) -> Tensor:
    """The same number for equal rows, (N,)."""
    seen: dict[bytes, int] = {}
    numbers = torch.empty(len(inputs), dtype=torch.int64)
    for part in blocks(len(inputs), row_bytes(inputs)):
        rows = (inputs[part] + 0.0).contiguous().numpy()  # there are two zeros
        numbers[part] = torch.tensor(
            [seen.setdefault(hashlib.sha256(row).digest(), len(seen)) for row in rows]
        )
    return numbers


def _numbered(patients: pd.Series) -> Tensor:
    """Numbers of patients; a row that names none is of a patient of its own."""
    codes = torch.tensor(pd.factorize(patients)[0], dtype=torch.int64)
    empty = torch.tensor((patients == "").to_numpy(bool))
    return torch.where(empty, len(codes) + torch.arange(len(codes)), codes)


def split_rows(plan: Plan, site: str, num_rows: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out, ascending, whatever they are."""
    order = torch.randperm(num_rows, generator=generator(plan.seed, "holdout", site))
    num_held_out = int(plan.learner.holdout * num_rows)
    return order[num_held_out:].sort().values, order[:num_held_out].sort().values


def make_upload(
    kit: Kit,
    site: str,
    rows: tuple[Tensor, Tensor],
    *,
    learner: str | LocalLearner = "",
    allow_networks: Collection[str] = (),
) -> Upload:
    """Train on a site's inputs and targets, and make what it sends; nothing is written.

    The learner is one, or a name that `predbayes.study.plan.models` knows; without it the plan's.
    A network of the consortium's own is imported only if it is allowed by its name.
    """
    if kit.plan.sealing is not None:
        raise TrainingError(
            "the plan's sums are sealed: `predbayes site train` makes what leaves, with a key"
        )
    if kit.plan.promise is not None:
        SiteRows(*rows).require_secret()
    own, fitted = SiteRows(*rows), learner or kit.plan.learner_or(None)
    if fitted == AUTO:
        fitted = choose_at_site(kit, site, own).name
    return fit_site(kit, site, own, fitted, allow_networks=allow_networks)[0]


@dataclass(frozen=True, slots=True)
class Trained:
    """What training left in the site's folder."""

    upload: Upload
    path: Path  # the signed upload, or what is held back
    egress: Path
    released: bool
    again: bool  # whether it was there already
    choice: Choice | None = None  # of the learner, if it was left to the site's rows
    withheld: str = ""  # why sums that the plan asks for stay here, if they do

    def facts(self) -> dict[str, str | bool]:
        """Return what the site's audit log is told."""
        facts: dict[str, str | bool] = {"upload": self.upload.digest()}
        facts |= {"released": self.released, "again": self.again}
        if SUMS in self.upload.arrays or self.withheld:
            facts["sums"] = self.withheld or "in it"
        return facts


@dataclass(frozen=True, slots=True)
class Training:
    """One site's part in one study."""

    kit: Kit
    site: str
    key: SigningKey
    approvals: Approvals
    out: Path  # the folder that it is written to
    learner: str = "network"  # a name that `predbayes.study.plan.models` knows
    device: str = "cpu"  # where a network is trained
    allow_networks: tuple[str, ...] = ()  # of the consortium's own, by their names
    table: str = ""  # by which the book of budgets knows the rows

    def __post_init__(self) -> None:
        require_site_name(self.site)  # before hours of training: files have its name

    def run(self, rows: SiteRows) -> Trained:
        """Train, or go on, or find that it is done; then release what may be released."""
        self.approvals.require_plan(self.kit)
        require_learner(self.kit.plan, self.learner)
        self._require_policy(rows)
        home = self.out / HOME
        home.mkdir(parents=True, exist_ok=True)
        identity = self._identity(rows)
        upload = self._finished(identity)
        again = upload is not None
        if upload is None:
            self._spend(rows)
            checkpoint = Checkpoint(home / _CHECKPOINT, identity)
            with listening([_within(self.approvals.policy.max_hours)]):
                upload, own = fit_site(
                    self.kit,
                    self.site,
                    rows,
                    self._settled(rows, identity),
                    checkpoint=checkpoint,
                    device=self.device,
                    allow_networks=self.allow_networks,
                    policy=self.approvals.policy,
                )
            upload = self.approvals.policy.limited(upload, self._trained_on(rows)[1])
            upload = _hidden(self.kit.plan, upload, self.key)
            if self.kit.signed is not None and self.kit.plan.coordinator is not None:
                key = self.kit.plan.coordinator.signing
                head = Heads(self.approvals.folder).note(self.kit.signed, key)
                upload = upload.having_seen(head)
            _keep_holdout(home / HOLDOUT_FILE, self.kit, self.site, rows, own)
            write_whole(self.out / HELD_BACK, lambda path: upload.save(path))
            marker = json.dumps({"identity": identity, "upload": upload.digest()})
            write_bytes(home / "trained.json", marker.encode())
            for path in home.glob(_CHECKPOINTS):
                remove(path)
        choice = _read_choice(home / CHOICE_FILE, identity) if self.learner == AUTO else None
        return self._release(upload, rows, choice, again=again)

    def _spend(self, rows: SiteRows) -> None:
        """Write into the book of budgets what the upload promises, before it is made."""
        plan = self.kit.plan
        if plan.promise is None:
            return
        learner = make_learner(plan, self.learner)
        assert isinstance(learner, PrivateLearner)  # as the plan has it
        require_enough(self.kit, self.site, rows)
        spent = Spent(
            table=self.table,
            release=release_id(release_key(self.kit, self.site, rows, learner)),
            plan=self.kit.digest,
            study=plan.name,
            site=self.site,
            batches=SpentBatches.of(learner.sampled),
            **dataclasses.asdict(plan.promise),
        )
        Book(self.approvals.folder).spend(spent, self.approvals.policy)

    def _settled(self, rows: SiteRows, identity: str) -> str:
        """The learner's name; if the rows are to choose it, what they chose is kept."""
        if self.learner != AUTO:
            return self.learner
        path, plan = self.out / HOME / CHOICE_FILE, self.kit.plan
        choice = _read_choice(path, identity)
        if choice is None:
            allowed = self.approvals.policy.learners(plan)
            choice = choose_at_site(self.kit, self.site, rows, allowed, self.device)
            kept = {"identity": identity, **dataclasses.asdict(choice)}
            write_bytes(path, (json.dumps(kept, indent=1) + "\n").encode())
        return choice.name

    def _require_policy(self, rows: SiteRows) -> None:
        """Refuse what the site's policy forbids, its own patients among reference rows as well."""
        plan, policy = self.kit.plan, self.approvals.policy
        num_rows = len(self._trained_on(rows)[1])
        if num_rows < plan.rules.min_rows:
            raise DataError(
                f"{num_rows} rows to train on are fewer than min_rows = {plan.rules.min_rows} of "
                "the plan: too few to take part"
            )
        policy.require(plan, self.learner, num_rows)
        least = policy.least_cell(plan)
        if plan.sums_alone:
            require_many(plan, *self._trained_on(rows), least, self._whose(rows))
        if wrong := errors_of(near_findings(policy, self.kit, rows.inputs, least)[1]):
            raise DataError(wrong[0].text)
        policy.require_audit(self._audited(rows))

    def _audited(self, rows: SiteRows) -> Outcome | None:
        """What `site audit` found of the same plan, rows, learner and policy."""
        policy = self.approvals.policy
        identity = audit_identity(self.kit, self.site, self.learner, rows, policy)
        return Outcome.load(self.out / HOME / AUDIT_FILE, identity)

    def withheld(self, rows: SiteRows) -> str:
        """Say why sums that the plan asks for beside predictions stay here, if they do."""
        policy, trained_on = self.approvals.policy, self._trained_on(rows)
        return withheld(self.kit.plan, policy, *trained_on, self._whose(rows))

    def _whose(self, rows: SiteRows) -> Tensor | None:
        return rows.patients_of(rows.split_for(self.kit, self.site)[0])

    def _trained_on(self, rows: SiteRows) -> tuple[Tensor, Tensor]:
        return rows[rows.split_for(self.kit, self.site)[0]]

    def _identity(self, rows: SiteRows) -> str:
        """Digest of all that determines the upload."""
        parts = (
            self.kit.digest + self.kit.head + self._bounds() + self.withheld(rows),
            self.site,
            self.learner,
            self.device,
            rows.digest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _bounds(self) -> str:
        """How the site's policy bounds what leaves: what was made before a stricter one is not."""
        bounds = self.approvals.policy.bounds
        return "" if bounds == NO_POLICY.bounds else str(bounds)

    def _finished(self, identity: str) -> Upload | None:
        """What an earlier run with the same plan and rows made, if it is there whole."""
        try:
            marker = json.loads((self.out / HOME / "trained.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(marker, dict) or marker.get("identity") != identity:
            return None
        for path in (self._signed, self.out / HELD_BACK):
            try:
                upload = Upload.load(path)
            except UploadError:
                continue
            if upload.digest() == marker.get("upload"):
                return upload
        return None

    @property
    def _signed(self) -> Path:
        return self.out / f"{self.site}.safetensors"

    def _release(
        self, upload: Upload, rows: SiteRows, choice: Choice | None, *, again: bool
    ) -> Trained:
        plan = self.kit.plan
        released = self.approvals.may_leave(plan, upload)
        key = self.key if released else None
        held_back = self.out / HELD_BACK
        path = write_upload(plan, upload, key, self._signed, held_back)
        trained, held_out = rows.split_for(self.kit, self.site)
        summary = DataSummary(
            num_rows=len(rows.targets) + rows.num_dropped,
            num_trained=len(trained),
            num_held_out=len(held_out),
            num_dropped=rows.num_dropped,
            learner=f"{choice.name}, chosen by the site’s rows" if choice else self.learner,
            unit=self.approvals.policy.bounds.rows_unit,
            withheld=self.withheld(rows),
        )
        page = render_egress(
            plan,
            upload,
            num_bytes=(
                path.stat().st_size
                if path == self._signed
                else held_back.stat().st_size + _SIGNATURE_BYTES
            ),
            key_fingerprint=self.key.public.fingerprint,
            data=summary,
            released=released,
            audited=self._audited(rows),
        )
        write_bytes(self.out / EGRESS_FILE, page.encode())
        egress = self.out / EGRESS_FILE
        return Trained(upload, path, egress, released, again, choice, summary.withheld)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The site's own model on the rows that it was not trained on; it stays at the site."""

    rows: Tensor  # positions among the rows with a target
    predictive: Predictive
    data_digest: str
    plan_digest: str
    taught: tuple[Tensor, Predictive] | None = None  # reference inputs, and what it says of them

    @classmethod
    def load(cls, out: Path) -> Holdout:
        """Read what training kept in a site's folder."""
        path = out / HOME / HOLDOUT_FILE
        try:
            with safe_open(path, framework="pt") as file:
                told = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise StudyError(
                f"there are no held-out predictions in {out}; run `predbayes site train` first"
            ) from error
        if "rows" not in arrays:
            raise StudyError(f"{path} does not say which rows were held out: train again")
        rows, inputs = arrays.pop("rows"), arrays.pop(_INPUTS, None)
        elsewhere = {
            name.removeprefix(_TAUGHT): arrays.pop(name)
            for name in [*arrays]
            if name.startswith(_TAUGHT)
        }
        try:
            predictive = from_arrays(arrays)
            taught = None if inputs is None else (inputs, from_arrays(elsewhere))
        except UploadError as error:
            raise StudyError(f"{path} is not what training wrote: train again") from error
        return cls(rows, predictive, told.get("data", ""), told.get("plan", ""), taught)


def audit_identity(kit: Kit, site: str, learner: str, rows: SiteRows, policy: SitePolicy) -> str:
    """Return the digest of all that determines an audit."""
    parts = (kit.digest, site, learner, rows.digest(), str(policy.bounds))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def require_learner(plan: Plan, name: str) -> None:
    """Refuse a choice that the plan does not leave open."""
    if plan.learner.name != "any" and name != plan.learner.name:
        raise TrainingError(
            f"the plan asks every site for the learner {plan.learner.name!r}; leave --learner out"
        )


def choose_at_site(
    kit: Kit, site: str, rows: SiteRows, allowed: Collection[str] = (), device: str = "cpu"
) -> Choice:
    """Choose what `auto` is for a site's rows; those held out have no part in it."""
    plan, trained = kit.plan, rows.split_for(kit, site)[0]
    kept = SiteRows(*rows[trained])
    rng = generator(plan.seed, "choice", site, kept.digest())
    with threads(plan.learner.threads):
        return choose_learner(
            plan,
            (kept.inputs, kept.targets),
            allowed=allowed,
            device=device,
            groups=rows.patients_of(trained),
            rng=rng,
        )


def _read_choice(path: Path, identity: str) -> Choice | None:
    """What an earlier run with the same plan and rows chose, if that is there whole."""
    try:
        kept = json.loads(path.read_bytes())
        if kept.pop("identity") != identity:
            return None
        return Choice(str(kept["name"]), dict(kept["losses"]), int(kept["num_rows"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def fit_site(
    kit: Kit,
    site: str,
    rows: SiteRows,
    learner: str | LocalLearner,
    *,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    allow_networks: Collection[str] = (),
    policy: SitePolicy = NO_POLICY,
) -> tuple[Upload, Predictor]:
    """Train on the rows that are not held out; what is sent, and the site's own model."""
    plan, head = kit.plan, kit.head
    if learner == "network":
        require_allowed(plan, allow_networks, IN_SITE_FILE)
    kept, _held_out = rows.split_for(kit, site)
    if plan.sums_alone:
        require_many(plan, *rows[kept], plan.rules.min_cell, rows.patients_of(kept))
    fitted = make_learner(plan, learner, device) if isinstance(learner, str) else learner
    if isinstance(fitted, PrivateLearner):
        return _private(kit, site, rows, fitted)
    if plan.promise is not None:
        raise TrainingError(f"the plan promises {plan.promise.text}, and this learner has no noise")
    options: Any = {"checkpoint": checkpoint} if isinstance(fitted, SGHMCLearner) else {}
    options |= kept_together(fitted, rows.patients, kept)
    drawn_by = () if isinstance(fitted, SGHMCLearner) else (SiteRows(*rows[kept]).digest(),)
    rng = generator(plan.seed, "site", site, *drawn_by)
    with threads(plan.learner.threads):
        own = fitted.fit(rows[kept], rng=rng, **options)
        if plan.upload.kind == "moments":
            sums = upload_of_sums(plan, *rows[kept])
            return sums.named(site).for_plan(kit.digest).having_seen(head), own
        teller = gate_teller(plan, fitted, device, allow_networks) if plan.gate else None
        upload = upload_of(
            own,
            plan.upload.kind,
            rows[kept],
            kit.inputs,
            count_classes=plan.classification,
            gate=_gate(kit, site, SiteRows(*rows[kept]), teller, checkpoint),
            dtype=upload_dtype(plan),
            rng=rng,
        )
    # Under a mask no count of one site is seen.
    told = upload if plan.sealing is not None else _suppressed(upload, plan.rules.min_cell)
    name = learner if isinstance(learner, str) else type(learner).__name__
    told = told.named(site).for_plan(kit.digest, name.replace(":", ".")[-64:])
    if plan.sums_beside and not withheld(plan, policy, *rows[kept], rows.patients_of(kept)):
        told = with_sums(plan, told, *rows[kept])
    return told.having_seen(head), own


def _private(
    kit: Kit, site: str, rows: SiteRows, learner: PrivateLearner
) -> tuple[Upload, Predictor]:
    """What leaves under a promise of differential privacy: all of it is of one noisy model."""
    assert learner.guarantee is not None  # as `make_learner` makes it
    require_enough(kit, site, rows)
    kept, _held_out = rows.split_for(kit, site)
    keyed = replace(learner, secret=release_key(kit, site, rows, learner))
    with threads(kit.plan.learner.threads):
        own = keyed.fit(
            rows[kept],
            rng=generator(kit.plan.seed, "site", site),  # of which nothing is drawn
            **kept_together(keyed, rows.patients, kept),
        )
        said = own.predict(kit.inputs)
    upload = Upload.of_predictions(said, num_rows=own.people, dtype=upload_dtype(kit.plan))
    told = upload.named(site).for_plan(kit.digest, learner.name).promising(learner.guarantee)
    return told.having_seen(kit.head), own


def require_enough(kit: Kit, site: str, rows: SiteRows) -> None:
    """Refuse to fit a private network to fewer people than the plan has agreed."""
    agreed, promise = kit.plan.learner.batches, kit.plan.promise
    if agreed is None or promise is None:
        return
    kept = rows.split_for(kit, site)[0]
    whose = rows.patients_of(kept) if promise.unit == "person" else None
    if (len(kept) if whose is None else len({*whose.tolist()})) < agreed.least:
        raise DataError(agreed.too_few)


def release_key(kit: Kit, site: str, rows: SiteRows, learner: PrivateLearner) -> bytes:
    """Return the key of the noise of an upload: another one if anything of it is another."""
    rows.require_secret()
    return derived(rows.secret, "release", kit.digest, site, rows.digest(), learner.settings)


def gate_teller(
    plan: Plan, fitted: LocalLearner, device: str, allow_networks: Collection[str]
) -> Teller:
    """Return the learner of the gate: the model's counterpart, or if it has none the network's."""
    if not isinstance(fitted, TellsApart):
        require_allowed(plan, allow_networks, IN_SITE_FILE)
        fitted = make_learner(plan, "network", device)
    return teller_of(fitted)


def _gate(
    kit: Kit, site: str, rows: SiteRows, teller: Teller | None, checkpoint: Checkpoint | None
) -> Tensor | None:
    """The site's gate on the reference rows: all of them are contrast rows, roles are secret."""
    plan = kit.plan
    if plan.gate is None or teller is None:
        return None
    if checkpoint is not None and isinstance(teller.learner, SGHMCLearner):
        teller = replace(teller, learner=_Resumed(teller.learner, checkpoint))
    return log_density_ratio(
        teller,
        (rows.inputs, rows.targets),
        kit.inputs,
        bounds=GateBounds(plan.gate.floor, plan.gate.ceiling),
        # Of its own, so that a plan without a gate has the same model; by the rows, as bootstrap
        # weights are.
        rng=generator(plan.seed, "gate", site, rows.digest()),
    )


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A learner each of whose fits, told by their order, goes on where it was stopped."""

    learner: SGHMCLearner
    checkpoint: Checkpoint  # of the site's model, beside which those of the fits are kept
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def fit(self, rows: Any, *, rng: torch.Generator) -> Any:
        kept, number = self.checkpoint, next(self.numbers)
        path = kept.path.with_stem(f"{kept.path.stem}-gate-{number}")
        own = Checkpoint(path, f"{kept.identity} gate {number}", kept.every_seconds)
        return self.learner.fit(rows, rng=rng, checkpoint=own)


def _within(hours: float) -> Callback:
    """Return what ends a training that takes longer than the site's policy allows."""
    end = time.monotonic() + 3600 * hours

    def look(_event: Event) -> None:
        if time.monotonic() > end:
            raise TrainingError(
                f"training took longer than max_hours = {hours:g} of the site's policy; the same "
                "command goes on"
            )

    return look


def _keep_holdout(path: Path, kit: Kit, site: str, rows: SiteRows, own: Predictor) -> None:
    _, held_out = rows.split_for(kit, site)
    inputs = rows.inputs[held_out] if len(held_out) else rows.inputs[:1]
    arrays = {name: a[: len(held_out)] for name, a in to_arrays(own.predict(inputs)).items()}
    if not kit.plan.sums_alone:
        elsewhere = to_arrays(own.predict(kit.inputs))
        arrays |= {_INPUTS: kit.inputs, **{_TAUGHT + name: a for name, a in elsewhere.items()}}
    kept = {name: array.float().contiguous() for name, array in arrays.items()}
    told = {"data": rows.digest(), "plan": kit.plan.digest()}
    write_whole(path, lambda partial: save_file({**kept, "rows": held_out}, partial, metadata=told))


def _hidden(plan: Plan, upload: Upload, key: SigningKey) -> Upload:
    """The upload under masks, if the plan's sums are sealed; its masks are random, and never kept.

    So training again makes another file of the same terms.
    """
    if plan.sealing is None:
        return upload
    predictive, counts = upload.predictive(), upload.info.class_rows
    assert isinstance(predictive, Categorical | Survival)  # as a sealed plan has it
    form, bounded = plan.sealing.form(plan), predictive.bounded(LOG_PROB_FLOOR)
    if plan.site_privacy is not None:
        assert isinstance(bounded, Categorical)
        # Neither rows nor what the site chose to learn with may leave: they have no noise.
        told = upload.info.model_copy(update={"num_rows": 1, "learner": ""})
        words = to_noisy_words(form, bounded)
        return masked(Upload(told, {}), words, plan.sealing.recipients, key)
    class_rows = None if counts is None else torch.tensor(counts, dtype=torch.float64)
    words = to_words(form, bounded, upload.info.num_rows, class_rows)
    return masked(upload, words, plan.sealing.recipients, key)


def _suppressed(upload: Upload, min_cell: int) -> Upload:
    """Without class counts if any of them is so small that it could point to people."""
    counts = upload.info.class_rows
    if counts is None or min(counts) >= min_cell:
        return upload
    return dataclasses.replace(upload, info=upload.info.model_copy(update={"class_rows": None}))
