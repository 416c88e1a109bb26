"""A site's file on its way to a storage: only what is signed, the site's own, and not revoked.

Below an address of fsspec's a file is named by the digest of its bytes, so that the coordinator
sees in a listing what he has already. A pre-signed address names the file itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from predbayes.errors import StudyError
from predbayes.exchange.header import Header
from predbayes.exchange.sealed import SUFFIX, is_sealed, read_envelope
from predbayes.exchange.storage import Storage, is_http, put
from predbayes.exchange.upload import Upload
from predbayes.files import file_digest
from predbayes.study.site.release import Approvals
from predbayes.study.tables.surveyfile import is_survey, read_survey

_NOT_SIGNED = "it is not signed, so nobody has released it"


class _Leaving(NamedTuple):
    """What a file says of itself, and whether the site may send it."""

    site: str
    kinds: tuple[str, ...]  # of what is in it, as far as that can be seen
    ending: str
    allowed: bool  # nobody took an approval back


def send(path: Path, address: str, approvals: Approvals) -> str:
    """Send a signed file to a storage; return the digest of its bytes.

    Args:
        path: An upload, an evaluation or a survey, as it leaves the site.
        address: A folder of a storage, as fsspec writes it; or a pre-signed HTTP address.
        approvals: Of the site, with its policy.
    """
    leaving = _read(path, approvals)
    if leaving.site != approvals.site:
        raise StudyError(f"{path.name} is of {leaving.site}, and this is {approvals.site}")
    if not leaving.allowed:
        raise StudyError(f"{path.name}: its approval was revoked, so it stays here")
    if leaving.kinds == ("survey",):
        approvals.policy.require_survey()
    else:
        approvals.policy.require_kinds(*leaving.kinds)
    approvals.policy.require_storage(address, by_message=False)
    digest = file_digest(path)
    if is_http(address):
        put(path, address)
    else:
        Storage.at(address).send(path, f"{digest}{leaving.ending}")
    return digest


def _read(path: Path, approvals: Approvals) -> _Leaving:
    if not path.is_file():
        raise StudyError(f"there is no file {path}")
    if is_sealed(path):  # which only the coordinator can read
        envelope = read_envelope(path)
        return _Leaving(envelope.site, (), SUFFIX, not approvals.revoked("plan", envelope.plan))
    if is_survey(path):
        survey, is_signed = read_survey(path)
        if not is_signed:
            raise StudyError(f"{path.name}: {_NOT_SIGNED}")
        no = approvals.revoked("plan", survey.plan) or approvals.revoked("survey", survey.digest())
        return _Leaving(survey.site, ("survey",), ".survey", not no)
    header = Header.read(path)
    if header.signature is None:
        raise StudyError(f"{path.name}: {_NOT_SIGNED}")
    info, digest = header.info, Upload.load(path, header).digest()
    allowed = approvals.may_send(info.plan, digest)
    return _Leaving(info.site, header.kinds, ".safetensors", allowed)
