"""One step of a study, while its lock is held.

A step first puts its files in place and then writes its entry; a step that only removes files
writes its entry first. So a process that is killed leaves a study that is as before the step, or as
after it but for files that no entry names or files that an entry has removed, which the next step
clears away. Running the command again completes it.

Steps may wait for each other: their files are put in place and brought to the disk together, and
then all entries are written at once (`Step.flush`). Until then nobody is told that they are done.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from predbayes.errors import PredbayesError, StudyError, UploadError, checking, no_such
from predbayes.exchange.strict import MAX_ROWS, require_site_name
from predbayes.files import PRIVATE, TEMPORARY, file_digest, open_new, remove, scratch_name
from predbayes.system import sync_folder
from predbayes.text import printable
from predbayes_study import attachments
from predbayes_study.coordinator.signer import Signer, private_key
from predbayes_study.coordinator.state import RESULTS, UPLOADS, State
from predbayes_study.payload import EVALUATION
from predbayes_study.plan.schema import PLAN_FILE, Plan, read_text
from predbayes_study.result.accepted import Accepted
from predbayes_study.store.files import (
    copy_bounded,
    locked,
    read_small,
    require_size,
    sync_files,
)
from predbayes_study.store.ledger import Entry, now
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.sealed import SUFFIX, is_sealed, unseal
from predbayes_study.trust.signing import PublicKey

if TYPE_CHECKING:
    from predbayes.exchange.upload import Upload
    from predbayes_study.coordinator.intake import Intake
    from predbayes_study.coordinator.study import Study

_UPLOAD_NAME = re.compile(rf"[0-9a-f]{{64}}\.[a-z]+|{re.escape(TEMPORARY)}.*")


@dataclass(slots=True)
class _Waiting:
    """Entries that are not written yet."""

    entries: list[Entry] = field(default_factory=list)
    placed: list[Path] = field(default_factory=list)  # files that they name
    dropped: list[Accepted] = field(default_factory=list)  # files that they take out


@dataclass(frozen=True)  # without slots, where what is read once is kept
class Step:
    """A study while its lock is held."""

    study: Study
    state: State
    key: CoordinatorKey | None

    @property
    def signer(self) -> Signer | None:
        """Signs statements about the study as it is now; None if nothing of it is signed."""
        return None if self.key is None else Signer(self.key.signing, self.state)

    @cached_property
    def intake(self) -> Intake:
        """The checks of the study's plan, which is read once."""
        return _intake(read_text(self.study.plan_path))

    def record(self, step: str, data: dict[str, object], at: str | None = None) -> None:
        """Write an entry of one step, and take it into the state."""
        self.note(step, data, at)
        self.flush()

    def note(self, step: str, data: dict[str, object], at: str | None = None) -> None:
        """Take a step into the state; it is in the ledger after `flush`, with those before it."""
        entry = Entry(self.state.num_entries + 1, at or now(), step, data, self.state.last)
        entry = entry.signed(None if self.key is None else self.key.signing)
        self.state.take(entry)
        self._waiting.entries.append(entry)

    def flush(self) -> None:
        """Write the entries that wait, after the files that they name."""
        waiting = self._waiting
        if not waiting.entries:
            return
        sync_files(waiting.placed)
        self.study.ledger.write(waiting.entries)
        for accepted in waiting.dropped:
            remove(self.study.upload_path(accepted))
        if waiting.dropped:
            sync_folder(self._uploads)
        vars(self).pop("_waiting")

    @cached_property
    def _waiting(self) -> _Waiting:
        return _Waiting()

    def clear(self) -> None:
        """Remove what a killed process left, and the bytes of uploads that were withdrawn."""
        # Whatever else is there is somebody's: `verify` names it, and nothing deletes it.
        wanted = {self.study.upload_path(accepted).name for accepted in self.state.kept}
        _remove_from(
            self._uploads,
            lambda name: name not in wanted and bool(_UPLOAD_NAME.fullmatch(name)),
        )
        unfinished = str(self.state.next_number)
        _remove_from(
            self.study.folder / RESULTS,
            lambda name: name == unfinished or name.startswith(TEMPORARY),
        )

    @cached_property
    def _uploads(self) -> Path:
        return self.study.folder / UPLOADS

    def admit(self, site: str, key: PublicKey, rows: int | None = None) -> bool:
        """Record a site's key and the rows agreed with it; False if that is all known already."""
        require_site_name(site)
        owner = self.state.owners.get(key.hex, site)
        if like := self.state.too_like(site, owner):
            raise StudyError(f"{site} is too like {like}, which is in the study: one name each")
        if rows is not None and not 0 < rows <= MAX_ROWS:
            raise StudyError(f"{site}: agree on 1 to {MAX_ROWS:,} rows, not on {rows:,}")
        same_rows = rows is None or rows == self.state.agreed.get(site)
        if self.state.keys.get(site) == key.hex and same_rows:
            return False
        if not same_rows and site in self.state.uploads:
            raise StudyError(
                f"{site} is in, with {self.state.uploads[site].num_rows:,} rows; rows are agreed "
                "before a site sends: withdraw its upload first"
            )
        if self.state.retired.get(key.hex) == site or (
            key.hex in self.state.retired and key.hex in self.state.spent
        ):
            raise StudyError(f"{site} needs a new key: this one was in use before")
        if owner != site and key.hex in self.state.spent:
            raise StudyError(f"this is the key of {owner}; each site has a key of its own")
        agreed = {} if rows is None else {"rows": rows}
        self.note("admit", {"site": site, "key": key.hex, **agreed})
        return True

    def add(self, path: Path, *, uploads_only: bool = False) -> Accepted | None:
        """Check a file and take it in; None if it is in already."""
        shown = printable(path.name)
        # A copy of our own: nobody changes it between the check and the rename.
        scratch, content = scratch_name(self._uploads / "upload"), None
        try:
            content = None if self.intake.recipient else read_small(path)
            with checking(UploadError):
                if kind := attachments.kind_of(path, content):
                    content = None
                    return self._attach(kind, path, scratch, uploads_only=uploads_only)
                source, upload = self._checked(path, scratch, content)
                if uploads_only and upload.info.kind == EVALUATION:
                    raise UploadError("it is an evaluation, and an upload was asked for")
                return self._accept(source, upload)
        except UploadError as error:
            raise UploadError(error.reason, shown) from error
        except PredbayesError as error:
            raise UploadError(str(error), shown) from error
        finally:
            if content is None:  # or nothing was copied
                remove(scratch)
                remove(_sealed(scratch))

    def _checked(
        self, path: Path, scratch: Path, content: bytes | None
    ) -> tuple[Path | bytes, Upload]:
        """Return an upload, and what is to be kept of it: a small file is looked at in memory."""
        state, most = self.state, self.intake.max_bytes
        if content is not None:
            require_size(len(content), most)
            return content, self.intake.check(content, state.keys, state.heads)
        copy_bounded(path, scratch, most)
        if not self.intake.recipient:
            return scratch, self.intake.check(scratch, state.keys, state.heads)
        if not is_sealed(scratch):
            raise UploadError("it is not encrypted, as the plan asks: hand over the file .sealed")
        assert self.key is not None  # as the plan names one
        scratch.replace(_sealed(scratch))
        key, plan = self.key.encryption, self.intake.plan_digest
        site = unseal(_sealed(scratch), scratch, key, plan).site
        upload = self.intake.check(scratch, state.keys, state.heads)
        if site != upload.info.site:
            raise UploadError("its envelope names another site than the one that signed it")
        return scratch, upload

    def _attach(
        self, kind: str, path: Path, scratch: Path, *, uploads_only: bool
    ) -> Accepted | None:
        """Take in an attachment; it is not encrypted, as the site may have had no key for that."""
        if uploads_only:
            raise UploadError(f"it is a {kind}, and an upload was asked for")
        copy_bounded(path, scratch, attachments.kind_named(kind).max_bytes)
        sent = attachments.read_attachment(kind, scratch, self.intake.plan, self.state.keys)
        self.intake.check_attachment(sent, self.state.heads)
        before = self.state.attachments.get((sent.site, kind))
        if before is not None and before.digest == sent.digest:
            return None
        if sent.digest in self.state.replaced:
            raise UploadError(f"the site has sent a newer {kind}")
        name = f"{sent.digest}.{kind}"
        self._take(kind, scratch, name, before, sent.site, sent.digest, sent.num_rows)
        return self.state.attachments[sent.site, kind]

    def _accept(self, source: Path | bytes, upload: Upload) -> Accepted | None:
        from predbayes_study.coordinator.intake import require_agreed, require_held_out
        from predbayes_study.payloads.details import evaluation_of, promise_of

        info, digest, state = upload.info, upload.digest(), self.state
        site, rows, name = info.site, info.num_rows, f"{digest}.safetensors"
        before: Accepted | None
        if info.kind == EVALUATION:
            model = evaluation_of(info).model
            before = state.evaluations.get((site, model))
            if before is not None and before.digest == digest:
                return None
            if digest in state.replaced:
                raise UploadError("the site has sent a newer evaluation of this model")
            if all(result.model != model for result in state.results):
                raise UploadError("it evaluates a model that this study did not produce")
            trained_on = state.rows_of(site)
            if trained_on is not None:
                require_held_out(self.intake.plan, rows, trained_on)
            self._take("evaluate", source, name, before, site, digest, rows, model=model)
            return state.evaluations[site, model]
        before = state.uploads.get(site)
        if before is not None and before.digest == digest:
            return None
        if before is not None:
            raise UploadError(
                f"{site} has an upload in the study already; withdraw it first, and admit "
                "the site again with a new key"
            )
        agreed, promise = state.agreed.get(site), promise_of(info)
        if agreed is not None and promise is None:  # a count with noise is near it or not
            require_agreed(site, rows, agreed)
        known: dict[str, object] = {} if agreed is None else {"agreed_rows": agreed}
        if promise is not None:
            known["privacy"] = promise.text
        self._take("add", source, name, None, site, digest, rows, kind=info.kind, **known)
        return state.uploads[site]

    def _take(
        self,
        step: str,
        source: Path | bytes,
        name: str,
        before: Accepted | None,
        site: str,
        digest: str,
        num_rows: int,
        **more: object,
    ) -> None:
        """Give a file its name and take the step that names it.

        The file that it replaces goes when the entry is written.
        """
        target = self._uploads / name
        if isinstance(source, bytes):
            sha256, num_bytes = hashlib.sha256(source).hexdigest(), len(source)
            remove(target)
            with open_new(target, PRIVATE) as file:
                file.write(source)
        else:
            sha256, num_bytes = file_digest(source), source.stat().st_size
            source.replace(target)
        self._waiting.placed.append(target)
        self._waiting.dropped += [] if before is None else [before]
        sent = {"site": site, "digest": digest, "file_digest": sha256, "num_bytes": num_bytes}
        self.note(step, {**sent, "num_rows": num_rows, **more})

    def receipt(self, site: str) -> bytes:
        """Return a signed receipt for a site: its key, what it sent, the ledger's head."""
        if self.signer is None:
            raise StudyError("the plan names no coordinator's key, so nothing can be signed")
        if site not in self.state.keys:
            raise StudyError(no_such("admitted site", site, self.state.keys))
        upload = self.state.uploads.get(site)
        entry = "" if upload is None else self.study.ledger.entry(upload.number).content()
        return self.signer.receipt(site, entry)

    def delete(self, site: str) -> dict[str, str]:
        """Delete the bytes of a site's files; return when each was deleted, by digest."""
        going = [a for a in self.state.sent_by(site) if a.digest not in self.state.deleted]
        if not going and not self.state.removed(site):
            raise StudyError(no_such("upload of a site", site, self.state.uploads))
        if going:
            self._waiting.dropped += going
            self.record("delete", {"site": site, "digests": [a.digest for a in going]})
        return self.state.removed(site)

    def withdraw(self, site: str) -> str:
        """Take out all that a site sent, delete its bytes, and return its upload's digest."""
        sent = self.state.sent_by(site)
        if not sent:
            if site in self.state.gone:
                return self.state.gone[site]  # again, as after a crash
            raise StudyError(no_such("upload of a site", site, self.state.uploads))
        self._waiting.dropped += sent
        self.record("withdraw", {"site": site, "digest": sent[0].digest})
        return sent[0].digest


@contextmanager
def begin_step(study: Study) -> Iterator[Step]:
    """Hold a study's lock, and clear away what a killed process left.

    A ledger whose last entry is not the coordinator's is not carried on.
    """
    with locked(study.folder):
        study.ledger.mend()
        state = study.state()
        key = private_key(study.folder, state.coordinator) if state.coordinator else None
        if state.unsigned is not None:
            raise StudyError(
                f"entry {state.unsigned} of ledger.jsonl is not signed by the coordinator; run "
                "`predbayes study verify`"
            )
        step = Step(study, state, key)
        step.clear()
        yield step


@lru_cache(maxsize=1)
def _intake(plan: str) -> Intake:
    """The checks of a plan, which is the same from step to step."""
    from predbayes_study.coordinator.intake import Intake

    return Intake.of(Plan.loads(plan, PLAN_FILE))


def _sealed(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}{SUFFIX}")


def _remove_from(folder: Path, unwanted: Callable[[str], bool]) -> None:
    found = [name for name in os.listdir(folder) if unwanted(name)]
    for name in found:
        remove(folder / name)
    if found:
        sync_folder(folder)
