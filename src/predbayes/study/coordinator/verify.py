"""Is a study as its ledger says, byte by byte? And do its files give the last result again?"""

from __future__ import annotations

from predbayes.files import file_digest
from predbayes.study.coordinator.finish import conclude_study, evaluated, outcome, start_of
from predbayes.study.coordinator.folder import LEDGER, RESULTS, UPLOADS, StudyFolder
from predbayes.study.coordinator.run_status import RUN_FILE
from predbayes.study.coordinator.state import State
from predbayes.study.result.conclude import Heading
from predbayes.study.result.schema import Result
from predbayes.study.store.audit import AUDIT_FILE, AUDIT_LOCK
from predbayes.study.store.files import LOCK, RUN_LOCK

_PASSING = {LEDGER, LOCK, RUN_LOCK, RUN_FILE, AUDIT_FILE, AUDIT_LOCK}
"""Files that no entry names."""


def verify(study: StudyFolder, *, rebuild: bool = False) -> list[str]:
    """Return everything that is not as the ledger says: see `Study.verify`."""
    problems = study.ledger.problems() or study.audit.problems()
    if problems:
        return problems
    state = study.state()
    problems = _altered(study, _recorded(state))
    return problems if problems or not rebuild else _rebuilt(study, state)


def _recorded(state: State) -> dict[str, str]:
    """The digest of every file that should be there, by path."""
    files = dict(state.files)
    for accepted in state.accepted:
        files[f"{UPLOADS}/{accepted.digest}.safetensors"] = accepted.file_digest
    for result in state.results:
        files |= {f"{RESULTS}/{result.number}/{p}": d for p, d in result.files.items()}
    return files


def _altered(study: StudyFolder, recorded: dict[str, str]) -> list[str]:
    """Files that are missing, altered, or not the study's."""
    paths = (path for path in study.folder.rglob("*") if path.is_file())
    there = {path.relative_to(study.folder).as_posix(): path for path in paths}
    problems = [f"{name} is missing" for name in sorted(recorded.keys() - there.keys())]
    strange = sorted(there.keys() - recorded.keys() - _PASSING)
    problems += [f"{name} is not the study's" for name in strange]
    for name in sorted(recorded.keys() & there.keys()):
        if file_digest(there[name]) != recorded[name]:
            problems.append(f"{name} was altered")
    return problems


def _rebuilt(study: StudyFolder, state: State) -> list[str]:
    """Make the last result again from the files, and compare every file of it."""
    if not state.results:
        return ["there is no result to rebuild; run `predbayes study finish`"]
    last = state.results[-1]
    if state.current is None:
        return [f"result {last.number} is of files that have changed since; finish again"]
    before = study.result(last.number)
    start = None if last.start is None else start_of(study, last.start)
    heading = Heading(last.number, last.at, last.ledger, before.withdrawn)
    found = conclude_study(study, state.in_order, heading, frozenset(last.left_out), start)
    if outcome(found) != last.outcome:
        why = _other_versions(before, found.result)
        return [f"rebuilding gives another result than number {last.number}{why}"]
    if evaluated(study, state, found).result.at_sites != before.at_sites:
        return [f"result {last.number} does not show what the sites' evaluations say"]
    return []


def _other_versions(before: Result, found: Result) -> str:
    made, here = before.versions, found.versions
    differing = [f"{n} {made.get(n)}, here {here[n]}" for n in here if made.get(n) != here[n]]
    return f" (it was made with {'; '.join(differing)})" if differing else ""
