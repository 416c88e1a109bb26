"""A study's folder as far as it is text: where its files are, and what its ledger says.

Nothing here needs arrays, so a command that only looks starts at once; `coordinator.folder` reads
kit, labels and uploads.

study/
kit/                    plan and reference inputs, as every site has them
labels.json             the coordinator's labels and which rows they are of
ledger.jsonl            every step (`predbayes_study.store.ledger`)
audit.jsonl             who asked for what (`predbayes_study.store.audit`)
uploads/                DIGEST.safetensors, DIGEST.KIND of attachments
results/N/              result.json, report.html, report-public.html, model-card.html and .json,
                        model/
.key-path               where the coordinator's key lies, if the plan names one

Where there is such a key, kit, results and models have a file that signs the others
(`predbayes_study.trust.statement`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from predbayes.errors import StudyError
from predbayes_study.coordinator.state import State
from predbayes_study.plan.schema import PLAN_FILE, Plan
from predbayes_study.result.accepted import RESULT_FILE, Accepted, AcceptedAttachment
from predbayes_study.result.schema import Result
from predbayes_study.store.audit import AuditLog
from predbayes_study.store.ledger import Ledger

KIT, LABELS, LEDGER = "kit", "labels.json", "ledger.jsonl"
UPLOADS, RESULTS = "uploads", "results"
PLAIN = ".safetensors"


@dataclass(frozen=True, slots=True, init=False)
class StudyRecord:
    """What is agreed, done and found in a study."""

    folder: Path

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not (self.folder / LEDGER).is_file():
            raise StudyError(
                f"there is no study in {self.folder}; begin one with `predbayes study init`"
            )

    @property
    def plan_path(self) -> Path:
        """The path of the plan."""
        return self.folder / KIT / PLAN_FILE

    @property
    def plan(self) -> Plan:
        """The plan of the study; quicker to read than the kit."""
        return Plan.load(self.plan_path)

    @property
    def ledger(self) -> Ledger:
        """The record of every step."""
        return Ledger(self.folder / LEDGER)

    @property
    def audit(self) -> AuditLog:
        """The record of who asked for what, refusals included."""
        return AuditLog.at(self.folder)

    def state(self) -> State:
        """Return what the ledger says."""
        return State.of(self.ledger.read())

    def result(self, number: int, *, sites: bool = True) -> Result:
        """Read a numbered result; without its sites, of which there may be many, if not asked."""
        path = self.result_folder(number) / RESULT_FILE
        try:
            if sites:
                return Result.model_validate_json(path.read_bytes(), strict=False)
            found = from_json(path.read_bytes()) | {"sites": []}
            return Result.model_validate(found, strict=False)
        except (OSError, ValueError, TypeError) as error:  # not JSON, or not a result
            raise StudyError(
                f"result {number} cannot be read; run `predbayes study verify`"
            ) from error

    def result_folder(self, number: int) -> Path:
        """Return where a result is."""
        return self.folder / RESULTS / str(number)

    def upload_path(self, accepted: Accepted) -> Path:
        """Return where an accepted upload, evaluation or attachment is."""
        suffix = f".{accepted.kind}" if isinstance(accepted, AcceptedAttachment) else PLAIN
        return self.folder / UPLOADS / f"{accepted.digest}{suffix}"
