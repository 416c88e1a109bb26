"""What a site does: fit a model to its rows, and make the one file that it sends.

    rows      encoded and split as the plan says (`study.site.rows`)
    make      a model, and from it the upload: the plan's payload does it, of a `Job`
    release   signed, or held back until it is approved

Training that was killed goes on, and gives the same upload to the bit. What an upload will promise
is in the site's books before anything is trained.

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
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import DataError, StudyError, TrainingError, UploadError
from predbayes.exchange.strict import require_site_name
from predbayes.exchange.upload import Upload, from_arrays, to_arrays
from predbayes.files import PRIVATE, own_folder, remove, write_bytes, write_whole
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.local import (
    Predictor,
)
from predbayes.learning.named import AUTO
from predbayes.predictive.families import Predictive
from predbayes.progress import Callback, Event, listening
from predbayes_study.kit.kit import Kit
from predbayes_study.payload import payload_of
from predbayes_study.payloads.details import having_seen
from predbayes_study.report.egress import DataSummary, render_egress
from predbayes_study.report.measurement import Measurement, measured
from predbayes_study.rules import errors_of
from predbayes_study.site.book import Book, Release
from predbayes_study.site.fitting import Job, choose_at_site, require_learner
from predbayes_study.site.overlap import near_findings
from predbayes_study.site.policy import Asked
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.witness import Heads
from predbayes_study.tasks.choice import Choice
from predbayes_study.trust.signing import SigningKey

HOME = "home"
HOLDOUT_FILE = "holdout.safetensors"
HELD_BACK = "held-back.safetensors"
EGRESS_FILE = "egress.html"
CHOICE_FILE = "choice.json"
_CHECKPOINT = "checkpoint.safetensors"
_CHECKPOINTS = "checkpoint*.safetensors"  # of the model, and of each fit of the gate
_TAUGHT = "reference."  # before names of arrays of predictions on reference rows
_INPUTS = "inputs"
_SIGNATURE_BYTES = 248  # that a signature adds to a file: the page is of what will leave


@dataclass(frozen=True, slots=True)
class Trained:
    """What training left in the site's folder."""

    upload: Upload
    path: Path  # the signed upload, or what is held back
    egress: Path
    released: bool
    again: bool  # whether it was there already
    choice: Choice | None = None  # of the learner, if it was left to the site's rows

    def facts(self) -> dict[str, str | bool]:
        """Return what the site's audit log is told."""
        return {"upload": self.upload.digest(), "released": self.released, "again": self.again}


@dataclass(frozen=True, slots=True)
class Training:
    """One site's part in one study."""

    kit: Kit
    site: str
    key: SigningKey
    approvals: Approvals
    out: Path  # the folder that it is written to
    learner: str = "network"  # a name that `predbayes_study.plan.models` knows
    device: str = "cpu"  # where a network is trained
    allow_networks: tuple[str, ...] = ()  # of the consortium's own, by their names
    table: str = ""  # by which the site's books know the rows

    def __post_init__(self) -> None:
        require_site_name(self.site)  # before hours of training: files have its name

    def run(self, rows: SiteRows) -> Trained:
        """Train, or go on, or find that it is done; then release what may be released."""
        self.approvals.recall(self.out)
        self.approvals.require_plan(self.kit)
        require_learner(self.kit.plan, self.learner)
        self._require_policy(rows)
        home = self.out / HOME
        own_folder(home, 0o700)
        identity = self._identity(rows)
        upload = self._finished(identity)
        again = upload is not None
        if upload is None:
            job = Job(
                self.kit,
                self.site,
                rows,
                self._settled(rows, identity),
                key=self.key,
                checkpoint=Checkpoint(home / _CHECKPOINT, identity),
                device=self.device,
                allow_networks=self.allow_networks,
            )
            self._reserve(job)
            with listening([_within(self.approvals.policy.max_hours)]):
                upload, own = job.run()
            if self.kit.signed is not None and self.kit.plan.coordinator is not None:
                key = self.kit.plan.coordinator.signing
                head = Heads(self.approvals.books).note(self.kit.signed, key)
                upload = having_seen(upload, head)
            _keep_holdout(home / HOLDOUT_FILE, self.kit, self.site, rows, own)
            write_whole(self.out / HELD_BACK, lambda path: upload.save(path))
            marker = json.dumps({"identity": identity, "upload": upload.digest()})
            write_bytes(home / "trained.json", marker.encode(), PRIVATE)
            for path in home.glob(_CHECKPOINTS):
                remove(path)
        choice = _read_choice(home / CHOICE_FILE, identity) if self.learner == AUTO else None
        return self._release(upload, rows, choice, again=again)

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
            write_bytes(path, (json.dumps(kept, indent=1) + "\n").encode(), PRIVATE)
        return choice.name

    def _require_policy(self, rows: SiteRows) -> None:
        """Refuse what the site's policy forbids, its own patients among reference rows as well.

        Where refusals must not depend on rows, only of the plan.
        """
        plan, policy = self.kit.plan, self.approvals.policy
        payload = payload_of(plan)
        if not payload.refusals_tell:
            policy.require(replace(Asked.of(plan, self.learner), is_audited=True))
            return
        trained = rows.split_for(self.kit, self.site)[0]
        num_rows = len(trained)
        if num_rows < plan.rules.min_rows:
            raise DataError(
                f"fewer rows to train on than min_rows = {plan.rules.min_rows} of the plan, so "
                "they are too few to take part"
            )
        policy.require(
            replace(
                Asked.of(plan, self.learner, num_rows),
                is_audited=True,
                outcome=self._measured(rows),
            )
        )
        least = policy.least_cell(plan)
        people = rows.patients_of(trained)
        if why := payload.why_refused(plan, rows[trained], least, people):
            raise DataError(why)
        if wrong := errors_of(near_findings(policy, self.kit, rows.inputs, least)[1]):
            raise DataError(wrong[0].text)

    def _reserve(self, job: Job) -> None:
        """Write what will leave into the site's book, where that has to be counted or allowed."""
        plan, approvals = self.kit.plan, self.approvals
        payload = payload_of(plan)
        folder, policy = approvals.books, approvals.policy
        payload.reserve(job, table=self.table, policy=policy, folder=folder)
        if plan.promise is not None:
            return  # its noise is independent of every other release's
        made = Release(
            table=self.table,
            release=audit_identity(self.kit, self.site, str(job.learner), job.rows),
            plan=self.kit.digest,
            study=plan.name,
            site=self.site,
            kind=payload.kind,
            masked=payload.masks,
        )
        Book(folder).release(made, payload.again, approvals, self.kit.folder)

    def _measured(self, rows: SiteRows) -> Measurement | None:
        """What was measured of the same plan, rows and learner."""
        identity = audit_identity(self.kit, self.site, self.learner, rows)
        return measured(self.out / HOME, identity)

    def _identity(self, rows: SiteRows) -> str:
        """Digest of all that determines the upload."""
        parts = (
            self.kit.digest + self.kit.head,
            self.site,
            self.learner,
            self.device,
            rows.digest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

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
        held_back = self.out / HELD_BACK
        path, released = self.approvals.release(
            plan, upload, lambda: self.key, self._signed, held_back
        )
        trained, held_out = rows.split_for(self.kit, self.site)
        summary = DataSummary(
            num_rows=len(rows.targets) + rows.num_dropped,
            num_trained=len(trained),
            num_held_out=len(held_out),
            num_dropped=rows.num_dropped,
            learner=f"{choice.name}, chosen by the site’s rows" if choice else self.learner,
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
            measured=self._measured(rows),
        )
        write_bytes(self.out / EGRESS_FILE, page.encode())
        egress = self.out / EGRESS_FILE
        return Trained(upload, path, egress, released, again, choice)


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


def audit_identity(kit: Kit, site: str, learner: str, rows: SiteRows) -> str:
    """Return the digest of all that determines an audit."""
    parts = (kit.digest, site, learner, rows.digest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read_choice(path: Path, identity: str) -> Choice | None:
    """What an earlier run with the same plan and rows chose, if that is there whole."""
    try:
        kept = json.loads(path.read_bytes())
        if kept.pop("identity") != identity:
            return None
        return Choice(str(kept["name"]), dict(kept["losses"]), int(kept["num_rows"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


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
    if payload_of(kit.plan).predicts:
        elsewhere = to_arrays(own.predict(kit.inputs))
        arrays |= {_INPUTS: kit.inputs, **{_TAUGHT + name: a for name, a in elsewhere.items()}}
    kept = {name: array.float().contiguous() for name, array in arrays.items()}
    told = {"data": rows.digest(), "plan": kit.plan.digest()}
    write_whole(path, lambda partial: save_file({**kept, "rows": held_out}, partial, metadata=told))
