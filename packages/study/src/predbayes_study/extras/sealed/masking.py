"""Sealed sums: words under masks, and the seeds of the masks sealed to key holders.

A site adds to its words x (`secure_sum`) one mask for each key holder h,

    y = x + sum_h AES-256-CTR(s_h)   mod 2^64,      s_h 32 bytes of the system's randomness

and sends y to the coordinator together with each seed s_h, encrypted to its holder
(`predbayes_study.trust.encryption`). The coordinator adds up y over sites. A holder, who never sees
any y, adds up the masks of the same sites and returns that sum alone:

    sum_k x_k = sum_k y_k - sum_h sum_k AES-256-CTR(s_hk)   mod 2^64

So the coordinator learns the sum of the sites and no more. A holder learns seeds, which are noise.
Coordinator and all holders together could open a single site; any one holder who refuses is enough.

What passes between them is in two kinds of files. A *request* names, for one holder, the sites of a
sum, each with its seal. An *opening* is the sum of their masks, signed by the holder:

    line 1    JSON: plan, sites with the digests of their words, number of words, digest of the mask
    line 2    the holder's signature of line 1
    the rest  the summed mask, words of 64 bits, lowest byte first

A seal is signed by its site, with plan, site, holder and the digest of the masked words: it cannot
be used under another name, in another study, or for other words.

This is not the encryption of a file on its way (`predbayes_study.trust.sealed`), which may be
around such an upload as around any.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.header import UploadInfo, distinct
from predbayes.exchange.strict import SiteName, Strict
from predbayes.exchange.upload import Upload
from predbayes.files import open_regular
from predbayes.optional import require
from predbayes_study.payloads.details import Details, Seal
from predbayes_study.trust.coordinator import CoordinatorKey, CoordinatorPublicKey
from predbayes_study.trust.encryption import encrypt, key_id
from predbayes_study.trust.signing import PublicKey, SigningKey
from predbayes_study.trust.statement import Digest, Signed, Statement

WORDS = "words"
"""Name of the array of an upload of kind `masked`."""

REQUEST = ".request"
_SEED_BYTES, _WORD_BYTES = 32, 8
_MAX_REQUEST = 100_000_000  # bytes: a hundred thousand sites
_MAX_STATEMENT = 50_000_000
_WITHDRAW = (
    "If no key holder has opened this sum yet, the coordinator can take the site out with "
    "`predbayes study withdraw` and ask again"
)


class SealedSite(Strict):
    """One site of a request: its key, which words it masked, and its seal for the holder."""

    key: Digest
    words: Digest
    seal: Seal


class Request(Strict):
    """What the coordinator asks one holder for: the summed masks of these sites."""

    format: Literal[1] = 1
    plan: Digest
    sites: dict[SiteName, SealedSite]


class Opening(Statement):
    """What a holder says of a summed mask."""

    kind: Literal["opening"] = "opening"
    plan: Digest
    holder: Digest  # its Ed25519 key
    sites: dict[SiteName, Digest]  # digests of their masked words
    size: Annotated[int, Field(gt=0)]  # words
    mask: Digest  # of the bytes

    @property
    def signer(self) -> str:
        """The holder's key."""
        return self.holder


def masked(upload: Upload, words: Tensor, holders: Sequence[str], key: SigningKey) -> Upload:
    """Return an upload of words under masks in place of one of predictions.

    Args:
        upload: Names site and plan; of its counts the rows alone are told.
        words: (W,) int64.
        holders: Their encryption keys.
        key: The site's own, which signs the seals.
    """
    seeds = [os.urandom(_SEED_BYTES) for _ in holders]
    hidden = words + sum_of_masks(seeds, len(words))
    info, digest = upload.info, words_digest(hidden)
    seals = []
    for holder, seed in zip(holders, seeds, strict=True):
        about = _about(info.plan, info.site, key_id(holder), digest)
        sealed = encrypt(holder, seed, about).hex()
        signature = key.sign("seal", about + sealed.encode())
        seals.append(Seal(holder=key_id(holder), sealed=sealed, signature=signature))
    told = info.model_dump() | {"kind": "masked", "class_rows": None}
    upload = Upload(UploadInfo.model_validate(told), {WORDS: hidden})
    return upload.with_details(seals=[seal.model_dump() for seal in seals])


def check_seals(upload: Upload, holders: Sequence[str], key: str) -> None:
    """Refuse an upload without one seal of its site for each holder of the plan."""
    info = upload.info
    seals = Details.of(info).seals
    if [seal.holder for seal in seals] != [key_id(holder) for holder in holders]:
        raise UploadError("it does not have one seal for each key holder of the plan")
    digest = words_digest(upload.arrays[WORDS])
    for seal in seals:
        if not _is_signed(seal, info.plan, info.site, key, digest):
            raise UploadError("a seal is not signed by the site for these words and this plan")


def requests_of(
    plan: str, uploads: Iterable[tuple[Upload, str]], holders: Sequence[str]
) -> list[Request]:
    """Return a request to each holder for uploads, each with the key of its site."""
    sites: list[dict[str, SealedSite]] = [{} for _ in holders]
    for upload, key in uploads:
        words = words_digest(upload.arrays[WORDS])
        for asked, seal in zip(sites, Details.of(upload.info).seals, strict=True):
            asked[upload.info.site] = SealedSite(key=key, words=words, seal=seal)
    return [Request(plan=plan, sites=asked) for asked in sites]


def read_request(path: Path) -> Request:
    """Read a request; a site that comes twice is refused."""
    try:
        text = _read(path, _MAX_REQUEST).decode()
        json.loads(text, object_pairs_hook=distinct)
        return Request.model_validate_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        raise StudyError(f"{path.name} is no request of predbayes study request") from error


def summed_masks(request: Request, key: CoordinatorKey, size: int) -> Tensor:
    """Open the seals of a request, and return the sum of the masks, (W,)."""
    return sum_of_masks(seeds_of(request, key), size)


def seeds_of(request: Request, key: CoordinatorKey) -> list[bytes]:
    """Open the seals of a request; the refusal names every site whose seal cannot be opened."""
    seeds: list[bytes] = []
    refused: dict[str, list[str]] = {}
    for site in request.sites:
        try:
            seeds.append(_seed(request, site, key))
        except StudyError as error:
            refused.setdefault(str(error), []).append(site)
    if refused:
        raise StudyError("; ".join(f"{', '.join(s)}: {why}" for why, s in refused.items()))
    return seeds


def _seed(request: Request, site: str, key: CoordinatorKey) -> bytes:
    told, holder = request.sites[site], key_id(key.public.encryption)
    if told.seal.holder != holder:
        raise StudyError("the seal is for another key holder")
    if not _is_signed(told.seal, request.plan, site, told.key, told.words):
        raise StudyError(
            "the site did not sign this seal for this plan: it was altered, or is of another site "
            "or study"
        )
    about = _about(request.plan, site, holder, told.words)
    try:
        seed = key.encryption.decrypt(bytes.fromhex(told.seal.sealed), about)
    except ValueError as error:
        raise StudyError(f"the seal cannot be opened with this key. {_WITHDRAW}") from error
    if len(seed) != _SEED_BYTES:
        raise StudyError(f"the seal does not hold a seed. {_WITHDRAW}")
    return seed


def opening_of(request: Request, mask: Tensor, key: SigningKey) -> bytes:
    """Return the file that goes to the coordinator."""
    content = _bytes_of(mask)
    told = Opening(
        plan=request.plan,
        holder=key.public.hex,
        sites={site: told.words for site, told in sorted(request.sites.items())},
        size=len(mask),
        mask=hashlib.sha256(content).hexdigest(),
    )
    return Signed.of(told, key).file() + content


def read_opening(path: Path, size: int) -> tuple[Opening, Tensor]:
    """Read an opening of so many words, signed with the key that it names."""
    line, _, rest = _read(path, _MAX_STATEMENT + size * _WORD_BYTES).partition(b"\n")
    signature, end, content = rest.partition(b"\n")
    told = Signed.parse(Opening, line + b"\n" + signature + end, path.name).checked()
    sound = hashlib.sha256(content).hexdigest() == told.mask
    if not sound or told.size != size or len(content) != size * _WORD_BYTES:
        raise StudyError(f"{path.name} does not hold the {size:,} words of this plan, or was cut")
    return told, torch.frombuffer(bytearray(content), dtype=torch.int64)


def unmasked(
    total: Tensor,
    sites: Mapping[str, str],
    openings: Sequence[Path],
    plan: str,
    holders: Sequence[CoordinatorPublicKey],
) -> Tensor:
    """Take the summed masks of every holder away from a sum of masked words.

    Args:
        total: (W,)
        sites: Digests of the words that are in it, by site.
        openings: One file of each holder, in any order.
        plan: The digest of the plan.
        holders: The plan's.
    """
    found, left = total.clone(), {holder.signing.hex: holder for holder in holders}
    for path in openings:
        told, mask = read_opening(path, len(total))
        if told.plan != plan:
            raise StudyError(f"{path.name} belongs to a different plan")
        if left.pop(told.holder, None) is None:
            raise StudyError(f"{path.name} is of no key holder of the plan, or of one given before")
        if told.sites != dict(sites):
            raise StudyError(
                f"{path.name} is of other uploads than are in the study now: run `predbayes study "
                "request` again"
            )
        found -= mask
    if left:
        holder = next(iter(left.values())).fingerprint
        raise StudyError(
            f"the sum is sealed: give --opening with the file of the key holder {holder}, who "
            "makes it of what `predbayes study request` wrote"
        )
    return found


def sum_of_masks(seeds: Iterable[bytes], size: int) -> Tensor:
    """Return the sum of the masks of some seeds, (W,), modulo 2^64."""
    ciphers = require("cryptography.hazmat.primitives.ciphers", "study")
    total, zeros = torch.zeros(size, dtype=torch.int64), bytes(size * _WORD_BYTES)
    found = bytearray(len(zeros) + 15)
    words = torch.frombuffer(found, dtype=torch.int64, count=size)
    for seed in seeds:
        # A seed is used once, so its stream may begin at zero.
        cipher = ciphers.Cipher(ciphers.algorithms.AES(seed), ciphers.modes.CTR(bytes(16)))
        cipher.encryptor().update_into(zeros, found)
        total += words
    return total


def words_digest(words: Tensor) -> str:
    """SHA-256 of words."""
    return hashlib.sha256(_bytes_of(words)).hexdigest()


def _bytes_of(words: Tensor) -> bytes:
    return words.contiguous().numpy().astype("<i8").tobytes()


def _about(plan: str, site: str, holder: str, words: str) -> bytes:
    """What a seal is bound to."""
    return "\n".join(("predbayes sealed sum, format 1", plan, site, holder, words, "")).encode()


def _is_signed(seal: Seal, plan: str, site: str, key: str, words: str) -> bool:
    content = _about(plan, site, seal.holder, words) + seal.sealed.encode()
    return PublicKey(key).verifies("seal", content, seal.signature)


def _read(path: Path, most: int) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > most:
        raise StudyError(f"{path.name} is larger than any such file")
    return content
