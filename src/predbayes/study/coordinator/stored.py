"""Taking in what sites wrote to a storage, as a folder of files is taken in.

The files at an address are fetched a pack at a time into a temporary folder, and `Study.add_all`
takes each pack in: the same checks, and one entry for a batch. The study's lock is not held while
the storage is waited for. Whatever ends it, packs that were taken in stay, and the same command
goes on: a file whose name is the digest of one that is in, as `site send` names files, is not
fetched again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.storage import Found, Storage, packs, require_fetchable
from predbayes.study.coordinator.intake import Intake
from predbayes.study.coordinator.record import SURVEY
from predbayes.study.coordinator.study import Study
from predbayes.study.result.accepted import Accepted
from predbayes.study.result.surveyed import MAX_SURVEY_BYTES

Answer = tuple[str, Accepted | UploadError | None]
"""The name of a file, and what became of it; None if it is in already."""


def add_stored(study: Study, address: str, endings: tuple[str, ...]) -> Iterator[Answer]:
    """Take in the files at an address; what is given is in the ledger, or refused.

    Args:
        study: The study.
        address: As fsspec writes it, such as ``s3://bucket/folder``.
        endings: Of files that are looked at.
    """
    storage = Storage.at(address)
    found = storage.listed(endings)
    if not found:
        raise StudyError(f"{storage.name} has no file that ends in {' or '.join(endings)}")
    most, known = Intake.of(study.plan).max_bytes, _digests(study)
    wanted = []
    for file in found:
        try:
            if file.name.partition(".")[0] in known:
                yield file.name, None
                continue
            survey = file.name.endswith(SURVEY)
            require_fetchable(file, MAX_SURVEY_BYTES if survey else most)
            wanted.append(file)
        except UploadError as refusal:
            yield file.name, refusal
    for pack in packs(wanted):
        yield from _add(study, storage, pack)


def _add(study: Study, storage: Storage, pack: list[Found]) -> Iterator[Answer]:
    with tempfile.TemporaryDirectory() as scratch:
        fetched = storage.fetch(pack, Path(scratch))
        answers = iter([*study.add_all(path for path in fetched if isinstance(path, Path))])
        for file, path in zip(pack, fetched, strict=True):
            yield file.name, path if isinstance(path, UploadError) else next(answers)


def _digests(study: Study) -> frozenset[str]:
    """Return the digests of all that is in, of contents and of files."""
    kept = study.state().kept
    return frozenset(digest for a in kept for digest in (a.digest, a.file_digest))
