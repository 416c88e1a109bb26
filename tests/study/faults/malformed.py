"""Malformed uploads: every way that we know to break a file, for the corpus.

A way takes an honest upload apart and puts it together as a file that no study may accept: broken
in transport, forged by a stranger, or made and signed by an admitted site that means ill. Ways are
functions of a target and of a `random.Random`, and a fixed seed gives a file to keep.

    python -m tests.study.faults.malformed DEST

writes the corpus: for each kind of upload an honest file, and one file per way. It is of a fixed
study (keys from seeds, plans with fixed digests), so its signatures verify wherever it is read.
What each file must be refused for stands in `corpus/reasons.json`, which this does not write: a new
file needs a line there, and an honest eye.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import struct
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from predbayes.errors import UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.text import printable
from predbayes_study.coordinator.study import Study
from predbayes_study.payload import payload_of
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.signing import SigningKey
from tests.study.world import World, make_world

KINDS = ("classes", "numbers")
MAX_LINE = 300
MAX_KEPT_BYTES = 4096

Way = Callable[["Target", random.Random], bytes]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Draft:
    """An upload before it is packed: everything in it can be changed."""

    info: dict[str, Any]
    arrays: Arrays

    def told(self, **fields: Any) -> Draft:
        return replace(self, info=self.info | fields)

    def holding(self, arrays: Arrays) -> Draft:
        return replace(self, arrays=arrays)

    @property
    def text(self) -> str:
        return json.dumps(self.info, separators=(",", ":"), ensure_ascii=False)

    @property
    def signed_text(self) -> str:
        """What a signature covers of the text."""
        return self.text

    def digest(self) -> str:
        """What a site signs, written a second time: see `Upload.digest`."""
        content = hashlib.sha256(self.signed_text.encode(errors="replace"))
        for name in sorted(self.arrays):
            array = self.arrays[name]
            line = f"\n{name} torch.{array.dtype.name} {array.shape}\n"
            content.update(line.encode(errors="replace") + array.tobytes())
        return content.hexdigest()

    def signature(self, key: SigningKey) -> dict[str, str]:
        return {"key": key.public.hex, "signature": key.sign("upload", self.digest().encode())}

    def header(self, signature: dict[str, Any] | None) -> dict[str, Any]:
        metadata = {"predbayes": self.text}
        if signature is not None:
            metadata["signature"] = json.dumps(signature, separators=(",", ":"))
        header: dict[str, Any] = {"__metadata__": metadata}
        start = 0
        for name, array in self.arrays.items():
            end = start + array.nbytes
            code = {"f": "F", "i": "I", "u": "U"}[array.dtype.kind] + str(8 * array.itemsize)
            offsets = [start, end]
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
            start = end
        return header

    def body(self) -> bytes:
        return b"".join(array.tobytes() for array in self.arrays.values())

    def file(self, key: SigningKey) -> bytes:
        return pack(self.header(self.signature(key)), self.body())


class Signed(Draft):
    """A file whose signature is good, whatever its reader makes of its text."""

    @property
    def signed_text(self) -> str:
        try:
            return UploadInfo.model_validate_json(self.text).model_dump_json()
        except ValueError:
            return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A study that is attacked.

    Alpha is admitted and has sent nothing yet, Beta's upload is in, Gamma has withdrawn its own,
    and Delta has a new key. Nobody knows Omega.
    """

    kind: str
    world: World
    study: Study
    drafts: dict[str, Draft]

    @property
    def incoming(self) -> Path:
        """Where the file is put that is handed to the study."""
        return self.world.root / "incoming" / "upload.safetensors"

    def draft(self, rng: random.Random, site: str = "Alpha") -> Draft:
        """An honest upload, and another one for other random numbers."""
        return self.drafts[site].told(num_rows=rng.randrange(100, 10_000))

    def signed(self, draft: Draft) -> bytes:
        """A file of an admitted site, whatever it sends."""
        return draft.file(site_key("Alpha"))

    def snapshot(self) -> dict[str, object]:
        """Everything that a refused file must leave alone."""
        found: dict[str, object] = {"ledger": self.study.ledger.path.read_bytes()}
        found["beside"] = sorted(os.listdir(self.world.root))
        for folder, folders, names in os.walk(self.study.folder):
            for name in sorted({*names} - {"audit.jsonl"}):  # which tells of refusals
                state = os.stat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
            found[folder] = sorted(folders)
        return found

    def refusal(self, path: Path | None = None) -> str:
        """The line with which a file is refused; a refused file changes nothing."""
        before = self.snapshot()
        try:
            accepted = self.study.add(self.incoming if path is None else path)
        except UploadError as error:
            line = str(error)
        else:
            raise AssertionError(f"accepted: {accepted}")
        assert self.snapshot() == before
        assert printable(line, None) == line, ascii(line)
        assert 0 < len(line) <= MAX_LINE, line
        return line

    def refusal_of(self, content: bytes) -> str:
        self.incoming.write_bytes(content)
        return self.refusal()


def site_key(name: str) -> SigningKey:
    """The same key wherever the corpus is read."""
    seed = hashlib.sha256(f"the key of {name}".encode()).digest()
    return SigningKey(Ed25519PrivateKey.from_private_bytes(seed))


def make_target(root: Path, kind: str) -> Target:
    """A study of one kind of upload; only inside `fixed_digests`."""
    world = make_world(root, evaluate=0, unlabelled=0, regression=kind == "numbers")
    sites = ("Alpha", "Beta", "Gamma", "Delta")
    world.keys.update({site: site_key(site) for site in sites})
    study = world.begin(sites=sites)
    drafts = {site: _honest(world.kit.plan, site) for site in sites}
    target = Target(kind, world, study, drafts)
    target.incoming.parent.mkdir()
    for site in ("Beta", "Gamma"):
        target.incoming.write_bytes(drafts[site].file(site_key(site)))
        study.add(target.incoming)
    study.withdraw("Gamma")
    study.admit("Delta", site_key("Delta, later").public)
    return target


@contextmanager
def fixed_digests() -> Iterator[None]:
    """Plans whose digest is that of their task: kept files outlive new fields of a plan."""

    def digest(plan: Plan) -> str:
        return hashlib.sha256(f"{plan.target.task} {plan.sent}".encode()).hexdigest()

    with mock.patch.object(Plan, "digest", digest):
        yield


def _honest(plan: Plan, site: str) -> Draft:
    info = {
        "format_version": 1,
        "kind": plan.sent,
        "num_rows": 100 + len(site),
        "class_rows": [40.0, 30.0, 30.0] if plan.target.classes else None,
        "site": site,
        "plan": plan.digest(),
        "learner": "network",
    }
    arrays: Arrays = {}
    for name, (_, shape) in payload_of(plan).arrays(plan).items():
        counted = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
        arrays[name] = {
            "log_probs": np.log(np.where(counted % 3 == len(site) % 3, 0.5, 0.25)),
            "mean": counted % 7 / 8,
            "epistemic_var": np.full(shape, 0.125),
            "noise_var": np.full(shape, 0.25),
        }[name]
    return Draft(info, {name: array.astype(np.float32) for name, array in arrays.items()})


def pack(header: Any, body: bytes, length: int | None = None) -> bytes:
    """A safetensors file of any header, with any length declared for it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def unpack(content: bytes) -> tuple[bytes, bytes]:
    """The header's text and the arrays' bytes of a whole file."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


# Bytes that were damaged on the way, or by somebody who does not care what they mean.


def flipped_bits(target: Target, rng: random.Random) -> bytes:
    content = bytearray(target.signed(target.draft(rng)))
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def overwritten(target: Target, rng: random.Random) -> bytes:
    content = bytearray(target.signed(target.draft(rng)))
    start = rng.randrange(len(content))
    size = rng.randrange(1, 40)
    content[start : start + size] = bytes([rng.randrange(256)]) * size
    return bytes(content)


def inserted(target: Target, rng: random.Random) -> bytes:
    content = target.signed(target.draft(rng))
    place = rng.randrange(len(content))
    return content[:place] + bytes([rng.randrange(256)] * rng.randrange(1, 20)) + content[place:]


def cut_out(target: Target, rng: random.Random) -> bytes:
    content = target.signed(target.draft(rng))
    start = rng.randrange(len(content) - 1)
    return content[:start] + content[start + rng.randrange(1, 40) :]


def truncated(target: Target, rng: random.Random) -> bytes:
    content = target.signed(target.draft(rng))
    return content[: rng.randrange(len(content))]


def trailing(target: Target, rng: random.Random) -> bytes:
    return target.signed(target.draft(rng)) + bytes(rng.randrange(1, 60))


def header_length(target: Target, rng: random.Random) -> bytes:
    header, body = unpack(target.signed(target.draft(rng)))
    sizes = [0, 1, len(header) - 1, len(header) + 1, 10**6, 10**6 + 1, 2**31, 2**63, 2**64 - 1]
    return pack(header, body, rng.choice([*sizes, rng.randrange(2**64)]))


# Files of another format under the name of an upload.


def a_pickle(target: Target, rng: random.Random) -> bytes:
    """Protocol 0: unpickled, it would run a command."""
    return b"cos\nsystem\n(S'touch pwned-%d'\ntR." % rng.randrange(10**6)


def a_zip_bomb(target: Target, rng: random.Random) -> bytes:
    return _zipped({f"{rng.randrange(10**6)}.bin": bytes(10**6)})


def a_gzip_bomb(target: Target, rng: random.Random) -> bytes:
    return gzip.compress(bytes(10**6 + rng.randrange(10**5)), mtime=0)


def an_npy(target: Target, rng: random.Random) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(rng.randrange(1, 90)))
    return stream.getvalue()


def an_npz(target: Target, rng: random.Random) -> bytes:
    return _zipped({"../../x.npy": an_npy(target, rng)})


def a_tar(target: Target, rng: random.Random) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", bufsize=512) as file:
        file.addfile(tarfile.TarInfo(rng.choice(["../../x", "/etc/passwd", "..\\x"])))
    return stream.getvalue()[: 1024 + rng.randrange(512)]


def a_page(target: Target, rng: random.Random) -> bytes:
    return b"<!doctype html><title>%d Not Found</title>" % rng.randrange(10**6)


def _zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


# Headers that declare something else than there is. Content and signature are honest.


def _entry(field: str, values: Sequence[Any], target: Target, rng: random.Random) -> bytes:
    """One field of one array's entry is another."""
    draft = target.draft(rng)
    header = draft.header(draft.signature(site_key("Alpha")))
    name = rng.choice(sorted(draft.arrays))
    header[name] = {**header[name], field: rng.choice(values)}
    return pack(header, draft.body())


def _metadata(
    change: Callable[[dict[str, str], random.Random], Any], target: Target, rng: random.Random
) -> bytes:
    draft = target.draft(rng)
    header = draft.header(draft.signature(site_key("Alpha")))
    header["__metadata__"] = change(header["__metadata__"], rng)
    return pack(header, draft.body())


def _spelled(
    change: Callable[[bytes, random.Random], bytes], target: Target, rng: random.Random
) -> bytes:
    """The header's text is another."""
    draft = target.draft(rng)
    header = json.dumps(draft.header(draft.signature(site_key("Alpha")))).encode()
    return pack(change(header, rng), draft.body())


def offsets(target: Target, rng: random.Random) -> bytes:
    """Negative, reversed, beyond the file, with a gap, or over one another."""
    draft = target.draft(rng)
    header = draft.header(draft.signature(site_key("Alpha")))
    name = rng.choice(sorted(draft.arrays))
    start, end = header[name]["data_offsets"]
    shift = rng.choice([1, 4, -1, 8, 10**6, 2**63])
    header[name]["data_offsets"] = rng.choice(
        [
            [start + shift, end + shift],
            [start, end + shift],
            [end, start],
            [-end, end],
            [float(start), end + 0.5],
            [2**64 - 4, 2**64],
            [start],
            None,
        ]
    )
    return pack(header, draft.body())


def twice(text: bytes, rng: random.Random) -> bytes:
    """One name two times: readers differ in which one they take."""
    first = rng.choice([b'"__metadata__":{"predbayes":"{}"}', b'"a":1,"a":1', b'"a":{"x":1,"x":2}'])
    return b"{" + first + b"," + text[1:]


def twice_alike(target: Target, rng: random.Random) -> bytes:
    """One array declared two times, with the honest entry last."""
    draft = target.draft(rng)
    header = draft.header(draft.signature(site_key("Alpha")))
    name = rng.choice(sorted(draft.arrays))
    other = {**header[name], "shape": header[name]["shape"][::-1]}
    text = json.dumps(header).encode()
    return pack(b"{" + json.dumps({name: other}).encode()[1:-1] + b"," + text[1:], draft.body())


def nested(text: bytes, rng: random.Random) -> bytes:
    depth = rng.choice([30, 2000, 100_000])
    left, right = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return b'{"deep":' + left * depth + b"1" + right * depth + b"," + text[1:]


def long_number(text: bytes, rng: random.Random) -> bytes:
    digits = b"9" * rng.choice([30, 4000, 5000, 200_000])
    return b'{"n":' + digits + rng.choice([b"", b".5", b"e99"]) + b"," + text[1:]


def many_things(text: bytes, rng: random.Random) -> bytes:
    return b'{"many":[' + b"{}," * rng.choice([3, 100, 100_000]) + b"0]," + text[1:]


def other_text(text: bytes, rng: random.Random) -> bytes:
    decoded = text.decode()
    encoding = rng.choice(["utf-16", "utf-32", "utf-8-sig"])
    return rng.choice(
        [
            decoded.encode(encoding),
            text.replace(b'"', b"'"),
            text[:-1] + b',"x":NaN}',
            text[:-1] + b',"\xff":1}',
            text[:-1] + b",}",
            text + b"{}",
            b"[" + text + b"]",
            b"null",
            b"7",
            b'""',
            b"{}",
        ]
    )


# What an admitted site signs.


def _told(field: str, values: Sequence[Any], target: Target, rng: random.Random) -> bytes:
    return target.signed(target.draft(rng).told(**{field: rng.choice(values)}))


def _lacking(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    gone = rng.choice(["kind", "num_rows", "site", "plan"])
    return target.signed(replace(draft, info={n: v for n, v in draft.info.items() if n != gone}))


def another_plan(target: Target, rng: random.Random) -> bytes:
    other = hashlib.sha256(rng.randrange(2**32).to_bytes(4, "big")).hexdigest()
    return target.signed(target.draft(rng).told(plan=rng.choice([other, other[::-1], ""])))


def class_counts(target: Target, rng: random.Random) -> bytes:
    counts = {
        "classes": ([], [1.0], [1.0] * 4, [1e300] * 3, [5000.0] * 3, [10_000, 0, 1]),
        "numbers": ([1.0], [1.0] * 3, []),
    }
    return _told("class_rows", counts[target.kind], target, rng)


def long_list(target: Target, rng: random.Random) -> bytes:
    """A list of errors as long as the header may be."""
    length = rng.choice([5, 1000, 20_000, 240_000])
    bad = rng.choice([-1, "x", None])
    return target.signed(target.draft(rng).told(class_rows=[bad] * length))


def one_number(target: Target, rng: random.Random) -> bytes:
    """NaN, infinite, no probability, or no variance."""
    draft = target.draft(rng)
    name = rng.choice(sorted(draft.arrays))
    bad = {"log_probs": [0.02, 1.0, 5.0], "mean": [1e5, -1e5, 1e30]}
    array = draft.arrays[name].copy()
    absurd = bad.get(name, [-1.0, -1e-3, 1e20])
    array.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf, *absurd])
    return target.signed(draft.holding({**draft.arrays, name: array}))


def not_normalised(target: Target, rng: random.Random) -> bytes:
    """Probabilities of a row that do not sum to one, or a variance of zero."""
    draft = target.draft(rng)
    arrays = {name: array.copy() for name, array in draft.arrays.items()}
    if target.kind == "classes":
        arrays["log_probs"][rng.randrange(len(arrays["log_probs"]))] -= rng.choice([0.1, 1.0, 1e4])
    else:
        row = rng.randrange(len(arrays["mean"]))
        arrays["epistemic_var"][row] = arrays["noise_var"][row] = 0.0
    return target.signed(draft.holding(arrays))


def other_shape(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    name = rng.choice(sorted(draft.arrays))
    array = draft.arrays[name]
    changed = rng.choice(
        [
            array[:-1],
            array[:0],
            np.concatenate([array, array]),
            array[None],
            array[..., None],
            array.reshape(-1, array.shape[0])[..., :1],
            array.ravel()[:1].reshape(()),
        ]
    )
    return target.signed(draft.holding({**draft.arrays, name: np.ascontiguousarray(changed)}))


def all_other_shapes(target: Target, rng: random.Random) -> bytes:
    """More samples, or more rows, than the plan has, in every array alike."""
    draft = target.draft(rng)
    times = rng.choice([0, 7, 20])
    arrays = {name: np.concatenate([a[:0], *[a] * times]) for name, a in draft.arrays.items()}
    return target.signed(draft.holding(arrays))


def other_type(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    name = rng.choice(sorted(draft.arrays))
    dtype = rng.choice([np.float16, np.float64, np.int64, np.int32, np.uint8])
    return target.signed(draft.holding({**draft.arrays, name: draft.arrays[name].astype(dtype)}))


def other_arrays(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    name = rng.choice(sorted(draft.arrays))
    arrays = dict(draft.arrays)
    array = arrays.pop(name)
    added = rng.choice(
        [
            {},
            {name.upper(): array},
            {name: array, "more": array},
            {name: array, "": array},
            *({trick: array} for trick in _TRICKS),
            {name: array, **{f"layer {n}": array[:1] for n in range(rng.randrange(1, 300))}},
        ]
    )
    return target.signed(draft.holding(arrays | added))


def of_another_kind(target: Target, rng: random.Random) -> bytes:
    """Honest arrays of other studies."""
    rows = np.zeros(60, dtype=np.float32)
    arrays = {
        "classes": {"mean": rows, "epistemic_var": rows, "noise_var": rows + 1},
        "numbers": {"log_probs": np.full((60, 1), 0.0, dtype=np.float32)},
    }
    return target.signed(target.draft(rng).holding(arrays[target.kind]))


# Signatures.


def unsigned(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    return pack(draft.header(None), draft.body())


def other_key(target: Target, rng: random.Random) -> bytes:
    signer = rng.choice(["Beta", "Delta, later", "Omega", f"nobody {rng.randrange(1000)}"])
    return target.draft(rng).file(site_key(signer))


def for_another_site(target: Target, rng: random.Random) -> bytes:
    """Alpha's key under a name that is not its own."""
    name = rng.choice(["Beta", "Delta", "Gamma", "Omega", "alpha", "Alpha ", "Αlpha"])
    return target.signed(target.draft(rng).told(site=name))


def swapped_signature(target: Target, rng: random.Random) -> bytes:
    """The site's signature of another content."""
    draft = target.draft(rng)
    other = draft.told(num_rows=draft.info["num_rows"] + rng.randrange(1, 1000))
    return pack(draft.header(other.signature(site_key("Alpha"))), draft.body())


def borrowed_key(target: Target, rng: random.Random) -> bytes:
    """A stranger's signature under the name of the site's key."""
    draft = target.draft(rng)
    forged = {**draft.signature(site_key("Omega")), "key": site_key("Alpha").public.hex}
    return pack(draft.header(forged), draft.body())


def odd_signature(target: Target, rng: random.Random) -> bytes:
    draft = target.draft(rng)
    honest = draft.signature(site_key("Alpha"))
    text = honest["signature"]
    changed: dict[str, Any] = rng.choice(
        [
            {"signature": text[:-2]},
            {"signature": text + "00"},
            {"signature": text.upper().replace("0", "A")},
            {"signature": "00" * 64},
            {"signature": "\n" + text[1:]},
            {"signature": None},
            {"key": honest["key"].upper() + "A"},
            {"key": ""},
            {"key": [1]},
            {"algorithm": "none"},
            {"x\n\x1b[2J": 1},
        ]
    )
    return pack(draft.header({**honest, **changed}), draft.body())


# Files that were good once.


def withdrawn(target: Target, rng: random.Random) -> bytes:
    return _replayed("Gamma", target, rng)


def under_an_old_key(target: Target, rng: random.Random) -> bytes:
    return _replayed("Delta", target, rng)


def second(target: Target, rng: random.Random) -> bytes:
    """Beta's upload is in, and it sends another."""
    return target.draft(rng, "Beta").file(site_key("Beta"))


def _replayed(site: str, target: Target, rng: random.Random) -> bytes:
    draft = rng.choice([target.drafts[site], target.draft(rng, site)])
    return draft.file(site_key(site))


def noise_below_zero(target: Target, rng: random.Random) -> bytes:
    """Two parts of a variance of which one is negative, though their sum is not."""
    if target.kind != "numbers":
        return one_number(target, rng)
    draft = target.draft(rng)
    noise_var = draft.arrays["noise_var"].copy()
    noise_var[rng.randrange(len(noise_var))] = -rng.choice([0.01, 0.1])
    return target.signed(draft.holding({**draft.arrays, "noise_var": noise_var}))


_TRICKS = (
    "../../x",
    "/etc/passwd",
    "C:\\x",
    "a\x00b",
    "a\nb",
    "\x1b[31mred",
    "a\u202eb",
    "a\u200db",
    "\u2028",
    "..",
    "%s%n",
    "x" * 5000,
)
_NUMBERS = (0, -1, 1.5, "5", True, None, 10**9 + 1, 10**18, int("9" * 4000), [5], float("inf"))
_SHAPES = (
    [],
    [0],
    [-1, 3],
    [2**31, 2**31, 2**31],
    [2**63, 2],
    [2**64, 0],
    [10**30],
    [1] * 40,
    [60.0, 3],
    [True, 3],
    ["60", 3],
    [None],
    [[60], 3],
    {},
    None,
    "60",
    60,
)
_TYPES = ("F16", "F64", "I64", "BF16", "BOOL", "U8", "f32", "", None, 4, [], {}, ["F32"])

WAYS: dict[str, Way] = {
    "flipped-bits": flipped_bits,
    "overwritten": overwritten,
    "inserted": inserted,
    "cut-out": cut_out,
    "truncated": truncated,
    "trailing": trailing,
    "header-length": header_length,
    "pickle": a_pickle,
    "zip-bomb": a_zip_bomb,
    "gzip-bomb": a_gzip_bomb,
    "npy": an_npy,
    "npz": an_npz,
    "tar": a_tar,
    "page": a_page,
    "entry-type": partial(_entry, "dtype", _TYPES),
    "entry-shape": partial(_entry, "shape", _SHAPES),
    "entry-more": partial(_entry, "more", (1, "junk" * 100, None)),
    "offsets": offsets,
    "metadata-more": partial(_metadata, lambda m, rng: {**m, rng.choice(_TRICKS): "x"}),
    "metadata-types": partial(
        _metadata, lambda m, rng: {**m, "signature": rng.choice([1, None, [], {}, True])}
    ),
    "metadata-none": partial(_metadata, lambda m, rng: rng.choice([None, {}, [], "x", 1])),
    "metadata-odd": partial(
        _metadata,
        lambda m, rng: {**m, "predbayes": rng.choice(["", "{", "[]", "1", "\ud800", "{" * 5000])},
    ),
    "twice": partial(_spelled, twice),
    "twice-alike": twice_alike,
    "nested": partial(_spelled, nested),
    "long-number": partial(_spelled, long_number),
    "many-things": partial(_spelled, many_things),
    "other-text": partial(_spelled, other_text),
    "format": partial(_told, "format_version", (0, 2, -1, "1", 1.0, True, None)),
    "kind": partial(_told, "kind", ("delta", "counts", "gradients", "", None, 1, "x\n" * 90)),
    "rows": partial(_told, "num_rows", _NUMBERS),
    "site": partial(_told, "site", (*_TRICKS, "", None, 7)),
    "learner": partial(_told, "learner", (*_TRICKS[:9], "Ünïcode", "x" * 65, None, 7)),
    "plan": another_plan,
    "plan-odd": partial(_told, "plan", ("x", "A" * 64, "0" * 63, "0" * 64 + "\n", None, 0)),
    "more-fields": lambda target, rng: _told(rng.choice(_TRICKS), (1, None, {}), target, rng),
    "fewer-fields": _lacking,
    "class-counts": class_counts,
    "class-counts-odd": partial(
        _told, "class_rows", ([-1.0] * 3, ["1"] * 3, [None] * 3, [float("inf")] * 3, "123", {}, 3)
    ),
    "long-list": long_list,
    "one-number": one_number,
    "not-normalised": not_normalised,
    "other-shape": other_shape,
    "all-other-shapes": all_other_shapes,
    "other-type": other_type,
    "other-arrays": other_arrays,
    "another-kind": of_another_kind,
    "unsigned": unsigned,
    "other-key": other_key,
    "for-another-site": for_another_site,
    "swapped-signature": swapped_signature,
    "borrowed-key": borrowed_key,
    "odd-signature": odd_signature,
    "withdrawn": withdrawn,
    "under-an-old-key": under_an_old_key,
    "second": second,
    # Each of these was once accepted, or ended otherwise than in one short line.
    "found-type-is-a-list": partial(_entry, "dtype", ([], {}, ["F32"])),
    "found-many-dimensions": partial(_entry, "shape", ([1] * 70, [1] * 1000)),
    "found-endless-rows": partial(_told, "num_rows", (int("9" * 1000), int("9" * 4000))),
    "found-cursor-moves": lambda t, rng: _told("a\n\x1b[2J\u202e" * 40, (1, 2, 3), t, rng),
    "found-invisible-name": partial(_told, "site", ("Al\u200dpha", "Alpha\u3164", "Alpha\ufe0f")),
    "found-noise-below-zero": noise_below_zero,
    "found-list-of-errors": lambda t, rng: t.signed(t.draft(rng).told(class_rows=[-1] * 240_000)),
}
OF_ARRAYS = (
    "one-number",
    "not-normalised",
    "other-shape",
    "all-other-shapes",
    "other-type",
    "other-arrays",
    "another-kind",
    "entry-shape",
    "offsets",
    "twice-alike",
    "class-counts",
    "found-noise-below-zero",
    "second",
)
"""Ways that are not the same for every kind of upload."""


def corpus(root: Path) -> dict[str, bytes]:
    """All files to keep, by name; ``root`` is a folder for the studies."""
    files = {}
    with fixed_digests():
        for kind in KINDS:
            target = make_target(root / kind, kind)
            files[f"{kind}-honest"] = target.signed(target.drafts["Alpha"])
            for way in WAYS if kind == "classes" else OF_ARRAYS:
                name = f"{kind}-{way}"
                tries = (WAYS[way](target, random.Random(f"{name} {n}")) for n in range(20))
                small = next((content for content in tries if len(content) < MAX_KEPT_BYTES), None)
                if small is not None:
                    files[name] = small
    return files


def main(destination: Path) -> None:
    """Write the corpus."""
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        for name, content in corpus(Path(root)).items():
            (destination / f"{name}.safetensors").write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
