"""Is this file what the plan asked this site for? Everything that is checked before it counts.

A file may come from anybody, so it is looked at from the outside in, and the first thing that is
wrong ends it: size, header, plan, site and key, then the arrays' types and shapes, and only then
their bytes: digest and signature, finiteness, range, the gate's mean. What may be in memory at once
is bounded by the plan and not by what a header claims.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import UploadError, no_such
from predbayes.exchange.header import SUMS, Header, Spec
from predbayes.exchange.upload import GATE, Upload
from predbayes.learning.gate import GateBounds
from predbayes.text import printable
from predbayes_study.coordinator.state import MAX_ROWS
from predbayes_study.extras.sealed.masking import WORDS, check_seals
from predbayes_study.payloads.details import promise_of, read_header, seen_by, verifies
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.sizes import sums_shape
from predbayes_study.result.conclude import rehearse
from predbayes_study.result.evaluation import at_sites, check_evaluation
from predbayes_study.result.summed import fitted, summed
from predbayes_study.tasks import task_of
from predbayes_study.trust.sealed import sealed_room

HEADER_ROOM = 1_000_000  # bytes beside the arrays
ROWS_TOLERANCE = 0.1  # of the agreed rows, by which an upload's may differ
LEAST_TOLERANCE = 5  # rows, likewise
LEAST_HELD_OUT = 100  # rows that an evaluation may have in any case


@dataclass(frozen=True, slots=True)
class Expected:
    """The arrays that a plan asks for."""

    arrays: Mapping[str, Spec]
    gate: Spec | None = None  # beside them; None where the plan asks for none

    @classmethod
    def of(cls, plan: Plan) -> Expected:
        """Return the form of what every site of a study sends."""
        if plan.sums_alone:
            return cls({SUMS: Spec("int64", sums_shape(plan))})
        if plan.sealing is not None:
            return cls({WORDS: Spec("int64", (plan.sealing.form(plan).size,))})
        rows, dtype = plan.reference.num_rows, plan.upload.precision
        gate = None if plan.gate is None else Spec(dtype, (rows,))
        shapes = task_of(plan).shapes(plan)
        return cls({name: Spec(dtype, shape) for name, shape in shapes.items()}, gate)

    @property
    def max_bytes(self) -> int:
        """More than this no honest file has."""
        num_bytes = sum(spec.num_bytes for spec in self.arrays.values())
        of_gate = 0 if self.gate is None else self.gate.num_bytes
        return num_bytes + of_gate + HEADER_ROOM

    def check(self, declared: Mapping[str, Spec]) -> None:
        """Refuse other names, types and shapes."""
        self._check_gate(declared.get(GATE))
        self._check_rest({name: spec for name, spec in declared.items() if name != GATE})

    def _check_gate(self, declared: Spec | None) -> None:
        if declared is None and self.gate is not None:
            raise UploadError(
                "it has no gate, which the plan asks for; train again with this plan's kit"
            )
        if declared is not None and self.gate is None:
            raise UploadError("it has a gate, which the plan does not ask for")
        if declared != self.gate:
            raise UploadError(
                f"array {GATE!r} is {_shown(declared)}, and the plan's is {_shown(self.gate)}"
            )

    def _check_rest(self, declared: Mapping[str, Spec]) -> None:
        if set(declared) != set(self.arrays):
            names = printable(", ".join(self.arrays))
            raise UploadError(f"the arrays are not those of the plan: {names}")
        for name, spec in self.arrays.items():
            if declared[name] != spec:
                raise UploadError(f"array {name!r} does not have the type and shape of the plan")


@dataclass(frozen=True, slots=True)
class Intake:
    """The checks of one study."""

    plan: Plan
    plan_digest: str
    expected: Expected
    max_bytes: int  # of the largest file that is looked at
    named: bool  # whether the plan names the coordinator's key
    recipient: str  # to whom files are sealed; empty if they are not

    @classmethod
    def of(cls, plan: Plan) -> Intake:
        """The checks that a plan asks for."""
        expected = Expected.of(plan)
        most = min(plan.upload.max_bytes, expected.max_bytes)
        return cls(
            plan,
            plan.digest(),
            expected,
            max_bytes=sealed_room(most) if plan.recipient else most,
            named=plan.coordinator is not None,
            recipient=plan.recipient,
        )

    def check(
        self, source: Path | bytes, keys: Mapping[str, str], heads: Container[str] = ()
    ) -> Upload:
        """The upload in a file, if it is what an admitted site may send.

        Args:
            source: A file that nobody else can change meanwhile, or its content.
            keys: The public key of each admitted site.
            heads: The digest of every entry of the study's ledger.
        """
        header = read_header(source)
        self._check_sender(header, keys)
        self._check_study(seen_by(header.info), heads)
        self._check_arrays(header)
        if isinstance(source, bytes):
            upload = Upload.of_bytes(source, header)
        else:
            upload = Upload.load(source, header)
        _require_signed(header, upload)
        self._check_range(upload)
        if self.plan.sealing is not None and upload.info.kind == "masked":
            check_seals(upload, self.plan.sealing.recipients, keys[upload.info.site])
        return upload

    def rehearse(self, upload: Upload) -> None:
        """Do with an upload what `finish` will do with it."""
        if upload.info.kind == "evaluation":
            at_sites(self.plan, [upload.info])
            return
        if upload.info.kind == "masked":
            return  # nothing can be seen of it
        if upload.info.kind == "moments":
            fitted(summed(self.plan, upload))
            return
        predictive = upload.predictive()
        task = task_of(self.plan)
        if task.is_bounded and upload.gate is None:
            return  # rows are within bounds, too: nothing can overflow
        task.require_plausible(upload.arrays)
        rehearse(self.plan, upload, predictive)

    def _check_sender(self, header: Header, keys: Mapping[str, str]) -> None:
        info = header.info
        if info.plan != self.plan_digest:
            raise UploadError("it was made for another plan, or another version of this one")
        promised = promise_of(info)
        if promised != self.plan.promise:
            asked = self.plan.promise.text if self.plan.promise else "no differential privacy"
            raise UploadError(
                f"it promises {promised.text if promised else 'no differential privacy'}, and the "
                f"plan {asked}"
            )
        if info.kind not in (self.plan.sent, "evaluation"):
            raise UploadError(f"it holds {info.kind}; the plan asks for {self.plan.sent}")
        if info.site not in keys:
            raise UploadError(printable(no_such("admitted site", info.site, keys), 200))
        if header.signature is None:
            raise UploadError("it is not signed")
        if header.signature.key != keys[info.site]:
            raise UploadError(f"it is not signed with the key that {info.site} was admitted with")

    def _check_study(self, seen: str, heads: Container[str]) -> None:
        """Refuse what was made for another study of the same plan."""
        if self.named and not seen:
            raise UploadError(
                "it names no study: the site needs the kit that the coordinator signed"
            )
        if seen and seen not in heads:
            raise UploadError("it was made for another study, or this ledger is not the site's")

    def _check_arrays(self, header: Header) -> None:
        if header.info.kind != "evaluation":
            self.expected.check(header.arrays)
        elif header.arrays:
            raise UploadError("an evaluation is sums alone; this one has arrays")

    def _check_range(self, upload: Upload) -> None:
        """Refuse what no honest site can have found."""
        info = upload.info
        if info.num_rows > MAX_ROWS:
            raise UploadError(f"it claims more rows than any site has, which is {MAX_ROWS:,}")
        if info.kind == "evaluation":
            check_evaluation(self.plan, info)
            return
        if info.class_rows is not None and info.kind == "masked":
            raise UploadError("it counts classes in the open, which a sealed plan does not ask for")
        if info.class_rows is not None:
            if not task_of(self.plan).by_class or len(info.class_rows) != self.plan.num_outputs:
                raise UploadError("it does not count the plan's classes")
            if sum(info.class_rows) > info.num_rows * 1.001:
                raise UploadError("it counts more rows by class than in all")
        if upload.gate is not None and self.plan.gate is not None:
            # Over all rows: sites do not know which are kept for evaluation.
            bounds = GateBounds(self.plan.gate.floor, self.plan.gate.ceiling)
            # A policy that rounds row counts down halves them at the most.
            bounds.check(upload.gate, most_rows=2 * info.num_rows - 1)


def _shown(spec: Spec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def _require_signed(header: Header, upload: Upload) -> None:
    assert header.signature is not None  # as `_check_sender` has seen
    if not verifies(header.signature, upload.digest()):
        raise UploadError("the signature is not of this content: it was altered on the way")


def require_agreed(site: str, stated: int, agreed: int) -> None:
    """Refuse an upload of other rows than were agreed when the site was admitted."""
    allowed = max(ROWS_TOLERANCE * agreed, LEAST_TOLERANCE)
    if abs(stated - agreed) > allowed:
        raise UploadError(
            f"it states {stated:,} rows; {agreed:,} were agreed with {site} (give or take "
            f"{int(allowed):,}). Ask the site; if it is right, admit it again with --rows {stated}"
        )


def require_held_out(plan: Plan, stated: int, trained_on: int) -> None:
    """Refuse an evaluation of far more rows than a site can hold out that trained on so many.

    Numbers of rows may be rounded down, which halves them at the most. Where a plan holds nothing
    out sites try other rows, of which there may be as many.
    """
    share = plan.learner.holdout or 0.5
    most = int(2 * trained_on * share / (1 - share)) + LEAST_HELD_OUT
    if stated > most:
        raise UploadError(
            f"it is of {stated:,} rows; a site that trained on {trained_on:,} rows has no more "
            f"than {most:,} to try a model on"
        )
