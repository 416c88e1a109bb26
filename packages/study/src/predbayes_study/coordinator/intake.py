"""Is this file what the plan asked this site for? Everything that is checked before it counts.

A file may come from anybody, so it is looked at from the outside in, and the first thing that is
wrong ends it: size, header, plan, site and key, then the arrays' types and shapes, and only then
their bytes: digest, signature and finiteness, and last what its payload knows of it. What may be in
memory at once is bounded by the plan and not by what a header claims.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import UploadError, no_such
from predbayes.exchange.header import Header, Spec
from predbayes.exchange.upload import Upload
from predbayes.text import printable
from predbayes_study.attachments import Attachment
from predbayes_study.payload import EVALUATION, payload_named, payload_of, upload_bytes
from predbayes_study.payloads.details import promise_of, read_header, seen_by, verifies
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.sealed import sealed_room

HEADER_ROOM = 1_000_000  # bytes beside the arrays
ROWS_TOLERANCE = 0.1  # of the agreed rows, by which an upload's may differ
LEAST_TOLERANCE = 5  # rows, likewise
LEAST_HELD_OUT = 100  # rows that an evaluation may have in any case


@dataclass(frozen=True, slots=True)
class Intake:
    """The checks of one study."""

    plan: Plan
    plan_digest: str
    sent: str  # kind of upload that the plan asks for
    max_bytes: int  # of the largest file that is looked at
    named: bool  # whether the plan names the coordinator's key
    recipient: str  # to whom files are sealed; empty if they are not

    @classmethod
    def of(cls, plan: Plan) -> Intake:
        """The checks that a plan asks for."""
        most = min(plan.upload.max_bytes, upload_bytes(plan) + HEADER_ROOM)
        return cls(
            plan,
            plan.digest(),
            payload_of(plan).kind,
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
        payload = payload_named(header.info.kind)
        _require_arrays(header.arrays, payload.arrays(self.plan))
        if isinstance(source, bytes):
            upload = Upload.of_bytes(source, header)
        else:
            upload = Upload.load(source, header)
        _require_signed(header, upload)
        payload.check(self.plan, upload, keys[upload.info.site])
        return upload

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
        if info.kind not in (self.sent, EVALUATION):
            raise UploadError(f"it holds {info.kind}; the plan asks for {self.sent}")
        if info.site not in keys:
            raise UploadError(printable(no_such("admitted site", info.site, keys), 200))
        if header.signature is None:
            raise UploadError("it is not signed")
        if header.signature.key != keys[info.site]:
            raise UploadError(f"it is not signed with the key that {info.site} was admitted with")

    def check_attachment(self, sent: Attachment, heads: Container[str]) -> None:
        """Refuse what answers the kit of another study; what answers a draft is of none."""
        if sent.seen is not None and sent.plan == self.plan_digest:
            self._check_study(sent.seen, heads)

    def _check_study(self, seen: str, heads: Container[str]) -> None:
        """Refuse what was made for another study of the same plan."""
        if self.named and not seen:
            raise UploadError(
                "it names no study: the site needs the kit that the coordinator signed"
            )
        if seen and seen not in heads:
            raise UploadError("it was made for another study, or this ledger is not the site's")


def _require_arrays(declared: Mapping[str, Spec], asked: Mapping[str, Spec]) -> None:
    """Refuse other names, types and shapes than the plan asks for."""
    for name in asked:
        if name not in declared:
            raise UploadError(
                f"it has no array {name!r}, which the plan asks for; train again with this plan's "
                "kit"
            )
        if declared[name] != asked[name]:
            shown = _shown(declared[name]), _shown(asked[name])
            raise UploadError(f"array {name!r} is {shown[0]}, and the plan's is {shown[1]}")
    for name in declared:
        if name not in asked:
            raise UploadError(
                f"it has an array {printable(name, 40)!r}, which the plan does not ask for"
            )


def _shown(spec: Spec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


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

    Twice the plan's share is allowed, because rows of one patient are held out together. Where a
    plan holds nothing out, sites try other rows, of which there may be as many.
    """
    share = plan.learner.holdout or 0.5
    most = int(2 * trained_on * share / (1 - share)) + LEAST_HELD_OUT
    if stated > most:
        raise UploadError(
            f"it is of {stated:,} rows; a site that trained on {trained_on:,} rows has no more "
            f"than {most:,} to try a model on"
        )
