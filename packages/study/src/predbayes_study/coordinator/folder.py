"""A study's folder with its arrays: the kit, the labels, and what sites sent.

`predbayes_study.coordinator.record` says where each file is, and reads those that are text. What
reads arrays is imported when it is needed, because most steps need none. Where the coordinator has
a key, kit, results and models have a file that signs the others
(`predbayes_study.trust.statement`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predbayes.errors import StudyError
from predbayes.files import file_digest
from predbayes_study.coordinator.record import KIT, LABELS, StudyRecord
from predbayes_study.result.accepted import Accepted

if TYPE_CHECKING:
    from predbayes.exchange.upload import Upload
    from predbayes_study.kit.kit import Kit, Labels


@dataclass(frozen=True, slots=True, init=False)
class StudyFolder(StudyRecord):
    """A study, as far as it is read."""

    @property
    def kit(self) -> Kit:
        """Plan and reference inputs."""
        from predbayes_study.kit.kit import Kit

        return Kit.load(self.folder / KIT)

    @property
    def labels(self) -> Labels:
        """The coordinator's labels, and which reference rows they are of."""
        from predbayes_study.kit.kit import Labels

        return Labels.load(self.folder / LABELS, self.kit)

    def read(self, accepted: Accepted) -> Upload:
        """Read an accepted upload; one that changed since, or is not the site's, is refused."""
        from predbayes.exchange.header import Header
        from predbayes.exchange.upload import Upload, small_content
        from predbayes_study.payloads.details import is_signed_by

        path = self.upload_path(accepted)
        # A small one is read once, and what is checked is what is used.
        content = small_content(path)
        if _digest(path, content) != accepted.file_digest:
            raise StudyError(
                f"the upload of {accepted.site} was altered; run `predbayes study verify`"
            )
        if content is not None:
            header = Header.of(content, path.name)
            upload = Upload.of_bytes(content, header)
        else:
            header = Header.read(path)
            upload = Upload.load(path, header)
        named = (upload.info.site, upload.digest()) == (accepted.site, accepted.digest)
        if not named or not is_signed_by(header, accepted.key, accepted.digest):
            raise StudyError(
                f"{accepted.site} did not sign the upload that stands in its name; run "
                "`predbayes study verify`"
            )
        return upload


def _digest(path: Path, content: bytes | None) -> str | None:
    """The SHA-256 of a file, of which the content may be known; None if there is no file."""
    if content is not None:
        return hashlib.sha256(content).hexdigest()
    return file_digest(path) if path.is_file() else None
