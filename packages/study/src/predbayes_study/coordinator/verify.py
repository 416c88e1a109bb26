"""Is a study as its ledger says, byte by byte? And do its files give the last result again?

    files       those that the ledger names are there, unaltered, and no others
    sites       each file of a site is signed with the key that the site was admitted with then, and
                the head that it had seen stands in the ledger before it: sites are witnesses
    coordinator   if the plan names his key: each entry, the kit, each result and model are signed

All of this needs public keys alone, so whoever holds a copy of the folder can do it. Of an export
(`predbayes_study.extras.records.export`) it is the same but for what is withheld, whose digests
stand in the ledger; the crate's own list says what else is in it, and must have the files' digests.
Receipts in it are checked with the coordinator's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from predbayes.errors import PredbayesError, StudyError
from predbayes.files import file_digest
from predbayes.text import printable
from predbayes_study.coordinator.attachments import read_attachment
from predbayes_study.coordinator.finish import (
    conclude_study,
    evaluated,
    kept_openings,
    outcome,
)
from predbayes_study.coordinator.folder import StudyFolder
from predbayes_study.coordinator.record import KIT, LABELS, LEDGER, RESULTS, UPLOADS
from predbayes_study.coordinator.run_status import RUN_FILE
from predbayes_study.coordinator.signer import KEY_PATH
from predbayes_study.coordinator.state import MODEL_FOLDER, State
from predbayes_study.extras.records.crate import CRATE_FILE, is_crate, listed_digests
from predbayes_study.payloads.details import seen_by
from predbayes_study.plan.schema import REFERENCE_FILE, VECTORS_FILE
from predbayes_study.result.accepted import AcceptedAttachment
from predbayes_study.result.conclude import Heading
from predbayes_study.result.schema import Result
from predbayes_study.store.audit import AUDIT_FILE, AUDIT_LOCK
from predbayes_study.store.files import LOCK, RUN_LOCK
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey, fingerprint
from predbayes_study.trust.statement import (
    DELETION,
    KIT_SIGNATURE,
    MODEL_SIGNATURE,
    RECEIPT,
    RESULT_SIGNATURE,
    Deletion,
    FilesStatement,
    Receipt,
    Signed,
)

_KIT_SIGNATURE = f"{KIT}/{KIT_SIGNATURE}"
_ROWS = (REFERENCE_FILE, VECTORS_FILE)  # of the kit, which no crate has
_PASSING = {
    LEDGER, LOCK, RUN_LOCK, RUN_FILE, AUDIT_FILE, AUDIT_LOCK, KEY_PATH, _KIT_SIGNATURE,
}  # fmt: skip
"""Files that no entry names."""


def verify(
    study: StudyFolder,
    *,
    rebuild: bool = False,
    key: CoordinatorPublicKey | None = None,
    contains: Iterable[str] = (),
) -> list[str]:
    """Return everything that is not as the ledger says: see `Study.verify`."""
    problems = study.ledger.problems() or study.audit.problems()
    if problems:
        return problems
    try:
        state = study.state()
        exported = is_crate(study.folder)
        problems = _altered(study, _expected(study, state)) or [
            *_unsigned(study, state, key),
            *(_not_of_crate(study, state) if exported else _not_of_sites(study, state)),
            *_not_contained(state, contains),
        ]
    except PredbayesError as error:  # a ledger or a plan that nobody could have written
        return [str(error)]
    if rebuild and exported:
        return ["an export has not what a result is made of; rebuild it from the study itself"]
    return problems if problems or not rebuild else _rebuilt(study, state)


def withheld(study: StudyFolder, state: State) -> frozenset[str]:
    """Return the files that an export is without: rows, labels, and what sites sent."""
    own = {LABELS, *(f"{KIT}/{name}" for name in _ROWS)}
    names = recorded(study, state)
    return frozenset(n for n in names if n in own or n.startswith(f"{UPLOADS}/"))


def _unsigned(study: StudyFolder, state: State, key: CoordinatorPublicKey | None) -> Iterator[str]:
    """Yield what lacks the coordinator's signature."""
    named = study.plan.coordinator
    if key is not None and key != named:
        yield "the plan does not name this coordinator's key"
    if state.coordinator != ("" if named is None else named.signing.hex):
        yield "the ledger does not begin with the key that the plan names"
        return
    for entry in study.ledger.read():
        if not entry.is_signed_by(state.coordinator):
            yield f"entry {entry.number} of ledger.jsonl is not signed by the coordinator"
    if named is not None:
        yield from _unsigned_files(study, state, named.signing)
    elif (study.folder / _KIT_SIGNATURE).exists():
        yield f"{_KIT_SIGNATURE} is not the study's"


def _unsigned_files(study: StudyFolder, state: State, key: PublicKey) -> Iterator[str]:
    places = [(study.folder / KIT, "kit", KIT_SIGNATURE, state.study)]
    for result in state.results:
        folder = study.result_folder(result.number)
        places.append((folder, "result", RESULT_SIGNATURE, result.ledger))
        places.append((folder / MODEL_FOLDER, "model", MODEL_SIGNATURE, result.ledger))
    for folder, kind, name, head in places:
        where = (folder / name).relative_to(study.folder).parent.as_posix()
        says = {"kind": kind, "plan": state.plan_digest, "study": state.study, "head": head}
        try:
            statement = Signed.read(folder / name, FilesStatement).checked(key, **says)
        except StudyError as error:
            yield f"{where}: {error}"
            continue
        without = _ROWS if kind == "kit" and is_crate(study.folder) else ()
        yield from (f"{where}: {problem}" for problem in statement.problems(folder, name, without))


def _not_of_sites(study: StudyFolder, state: State) -> Iterator[str]:
    """Yield files that their sites did not sign, or whose sites have seen another ledger."""
    for accepted in state.kept:
        try:
            if isinstance(accepted, AcceptedAttachment):  # it names no head of the ledger
                path, keys = study.upload_path(accepted), {accepted.site: accepted.key}
                read_attachment(accepted.kind, path, study.plan, keys)
                continue
            seen = seen_by(study.read(accepted).info)
        except PredbayesError as error:
            yield str(error)
            continue
        before = state.heads.get(seen, accepted.number) < accepted.number
        if not before and (seen or state.coordinator):
            yield f"{accepted.site} has seen another ledger than this one before it sent its file"


def _not_of_crate(study: StudyFolder, state: State) -> Iterator[str]:
    """Yield what an export says otherwise than the ledger, or in the coordinator's name."""
    files, hidden = recorded(study, state), withheld(study, state)
    own = (name for name in (LEDGER, _KIT_SIGNATURE) if (study.folder / name).is_file())
    seen = {name: digest for name, digest in files.items() if name not in hidden}
    seen |= {name: file_digest(study.folder / name) for name in own}
    listed = listed_digests(study.folder)
    for name in sorted({*seen, *(hidden & listed.keys())}):
        if listed.get(name) != seen.get(name):
            yield f"{CRATE_FILE} does not list {name} as it is"
    if study.plan.coordinator is not None:
        yield from _false_receipts(study, state, study.plan.coordinator.signing)


def _false_receipts(study: StudyFolder, state: State, key: PublicKey) -> Iterator[str]:
    """Yield receipts that the coordinator did not sign, or that are of another ledger."""
    for path in sorted(study.folder.rglob("*")):
        if path.suffix not in (RECEIPT, DELETION):
            continue
        where = path.relative_to(study.folder).as_posix()
        kind = Receipt if path.suffix == RECEIPT else Deletion
        try:
            statement = Signed.read(path, kind).checked(
                key, plan=state.plan_digest, study=state.study, site=path.stem
            )
        except StudyError as error:
            yield f"{where}: {error}"
            continue
        if not state.heads.keys() >= {*statement.heads.values()}:
            yield f"{where}: it is of another ledger than this one"


def _not_contained(state: State, heads: Iterable[str]) -> Iterator[str]:
    known = {*state.heads, *map(fingerprint, state.heads)}
    for head in heads:
        if head.strip().lower() not in known:
            yield f"the ledger does not contain {printable(head)}: it is another, or was cut"


def _expected(study: StudyFolder, state: State) -> dict[str, str]:
    """The digest of every file that should be there: of an export also what its list adds."""
    files = recorded(study, state)
    if not is_crate(study.folder):
        return files
    hidden, listed = withheld(study, state), listed_digests(study.folder)
    added = {name: digest for name, digest in listed.items() if name not in {*files, *_PASSING}}
    return {name: digest for name, digest in files.items() if name not in hidden} | added


def recorded(study: StudyFolder, state: State) -> dict[str, str]:
    """Return the digest of every file that the ledger names, by path."""
    files = dict(state.files)
    for accepted in state.kept:
        name = study.upload_path(accepted).relative_to(study.folder).as_posix()
        files[name] = accepted.file_digest
    for result in state.results:
        files |= {f"{RESULTS}/{result.number}/{p}": d for p, d in result.files.items()}
    return files


def _altered(study: StudyFolder, expected: dict[str, str]) -> list[str]:
    """Files that are missing, altered, or not the study's."""
    paths = (path for path in study.folder.rglob("*") if path.is_file())
    there = {path.relative_to(study.folder).as_posix(): path for path in paths}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - there.keys())]
    strange = sorted(there.keys() - expected.keys() - _PASSING - {CRATE_FILE})
    problems += [f"{name} is not the study's" for name in strange]
    for name in sorted(expected.keys() & there.keys()):
        if file_digest(there[name]) != expected[name]:
            problems.append(f"{name} was altered")
    return problems


def _rebuilt(study: StudyFolder, state: State) -> list[str]:
    """Make the last result again from the files, and compare every file of it."""
    if not state.results:
        return ["there is no result to rebuild; run `predbayes study finish`"]
    last = state.results[-1]
    if state.current is None:
        return [f"result {last.number} is of files that have changed since; finish again"]
    if state.deleted:
        return [f"result {last.number} cannot be made again: files that it is of were deleted"]
    before = study.result(last.number)
    heading = Heading(last.number, last.at, last.ledger, before.withdrawn)
    left_out, openings = frozenset(last.left_out), kept_openings(study, last)
    found = conclude_study(study, state, heading, left_out, openings=openings)
    if outcome(found) != last.outcome:
        why = _other_versions(before, found.result)
        return [f"rebuilding gives another result than number {last.number}{why}"]
    shown = evaluated(study, state, found).result
    if shown.at_sites != before.at_sites:
        return [f"result {last.number} does not show what the sites' evaluations say"]
    if shown.extras != before.extras:
        return [f"result {last.number} does not show what the sites' attachments say"]
    return []


def _other_versions(before: Result, found: Result) -> str:
    made, here = before.versions, found.versions
    differing = [f"{n} {made.get(n)}, here {here[n]}" for n in here if made.get(n) != here[n]]
    return f" (it was made with {'; '.join(differing)})" if differing else ""
