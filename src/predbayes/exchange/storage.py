"""Files on a storage that fsspec knows: S3 and what speaks like it, a shared folder, memory.

    Storage.listed      the files at an address, each with its size
    Storage.fetch       a pack of them at once; of none is more read than its listed size
    Storage.send        one file, to an address of fsspec's
    Storage.presigned   an address to which one file may be written without credentials
    put                 one file to such an address: an HTTP PUT, and nothing else

Credentials come from the environment, as fsspec and the storage's own package read them. They are
in no address, no file and no message of ours. What is shown of an address leaves out user, password
and signature.
"""

from __future__ import annotations

import errno
import http.client
import ipaddress
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from predbayes.errors import MissingPackageError, PredbayesError, StudyError, UploadError
from predbayes.optional import install_command, require
from predbayes.text import printable

PACK_FILES = 1000
PACK_BYTES = 1 << 26
"""What is fetched at once: so many files, and so many bytes, in memory."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+(::|://)", re.IGNORECASE)
_PLAIN = re.compile(r"[a-z][a-z0-9+.-]*://[\w.~:/?\[\]!$&'()*+,;=%-]+", re.ASCII | re.IGNORECASE)
_SECRET = re.compile(r"//[^/\s@]*@|\?[^\s\"']*")  # user and password, or a query
_UNFIT = frozenset('/\\:*?"<>|')  # for the name of a file, on one system or another
_LONGEST_NAME = 200  # bytes
_BUSY = (errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT)
_PAUSES = (1.0, 4.0)  # seconds, after which a PUT that got no answer is tried again
_PUT_SECONDS = 60.0  # without a word from the other side


class Found(NamedTuple):
    """A file on a storage."""

    path: str  # as the storage calls it
    num_bytes: int | None  # None where the storage does not say

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


def is_address(text: str) -> bool:
    """Return whether a text is an address and no path.

    Examples:
        >>> is_address("s3://bucket/uploads"), is_address("C:/uploads"), is_address("uploads")
        (True, False, False)
    """
    return _ADDRESS.match(text) is not None


def is_http(address: str) -> bool:
    """Return whether an address is written to by HTTP."""
    return address.lower().startswith(("https://", "http://"))


def shown(text: str) -> str:
    """Return an address, or what an error says of one, without user, password and signature.

    Examples:
        >>> shown("https://anna:word@store.example.org/a?X-Amz-Signature=0a1b")
        'https://store.example.org/a'
    """
    return printable(_SECRET.sub(lambda match: "//" if match[0][0] == "/" else "", text), 300)


def require_private(address: str) -> str:
    """Return an address that nobody on the way can read along; refuse any other.

    Of HTTP that is HTTPS, or this very machine. An address that programs read in several ways is
    refused, too.
    """
    parts = None
    with suppress(ValueError):  # half a bracket
        parts = urlsplit(address) if _PLAIN.fullmatch(address) else None
    if parts is None or (is_http(address) and not parts.hostname):
        raise StudyError(f"{shown(address)} is no address that a file can be sent to")
    if parts.scheme.lower() == "http" and not _is_loopback(parts.hostname or ""):
        raise StudyError(f"{shown(address)}: only https, or a server on this machine")
    return address


def is_within(address: str, folder: str) -> bool:
    """Return whether an address is below another one, of the same server.

    Examples:
        >>> is_within("https://a.example.org/study/7?X=1", "https://a.example.org/study")
        True
        >>> is_within("https://a.example.org.evil.net/study/7", "https://a.example.org/study")
        False
        >>> is_within("https://a.example.org/study/%2e%2e/7", "https://a.example.org/study")
        False
    """
    if not _PLAIN.fullmatch(address):
        return False
    try:
        one, two = urlsplit(address), urlsplit(folder)
        same = (one.scheme, one.hostname, one.port) == (two.scheme, two.hostname, two.port)
    except ValueError:  # a port that is none
        return False
    stays = not {".", ".."} & set(unquote(one.path).replace("\\", "/").split("/"))
    return same and stays and one.path.startswith(f"{two.path.rstrip('/')}/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Storage:
    """A place on a storage.

    Args:
        files: fsspec's file system.
        path: The place, as that calls it.
        name: The place, as it is shown.
    """

    files: Any
    path: str
    name: str

    @classmethod
    def at(cls, address: str) -> Storage:
        """Return the place that an address names; nothing is asked of the storage yet."""
        name = shown(address)
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if address.lower().startswith("s3://"):
            # Pre-signed addresses of the older version would bind headers that proxies change.
            options["config_kwargs"] = {"signature_version": "s3v4"}
        try:
            fsspec = require("fsspec", "storage")
            files, path = fsspec.url_to_fs(address, **options)
        except ImportError as error:
            reason = printable(str(error), 200)
            raise MissingPackageError(
                f"{name}: {reason}; what S3 needs: {install_command('storage')}"
            ) from error
        except PredbayesError:
            raise
        except Exception as error:
            raise StudyError(f"{name} is no address of a storage: {_reason(error)}") from error
        return cls(files, str(path).rstrip("/"), name.rstrip("/"))

    def listed(self, endings: tuple[str, ...]) -> list[Found]:
        """Return the files here that have one of these endings, by name; or the one file."""
        with self._asking("listed"):
            told = self.files.ls(self.path, detail=True)
        found = [Found(str(one["name"]), one.get("size")) for one in told if _is_file(one)]
        alone = [one for one in found if one.path == self.path]
        return alone or sorted(one for one in found if one.name.endswith(endings))

    def fetch(self, pack: Sequence[Found], folder: Path) -> list[Path | UploadError]:
        """Write files into a folder, under their own names; in place of one, why it cannot be read.

        Whatever ends the connection is an error of its own.

        Args:
            pack: Files of known size, as `packs` makes them.
            folder: Where nothing else has their names.
        """
        refused: dict[str, UploadError] = {}
        for file in pack:
            (folder / file.name).write_bytes(b"")
        for start in range(0, max(file.num_bytes or 0 for file in pack), PACK_BYTES):
            due = [f for f in pack if (f.num_bytes or 0) > start and f.path not in refused]
            for file, part in zip(due, self._parts(due, start), strict=True):
                if isinstance(part, UploadError):
                    refused[file.path] = part
                else:
                    with (folder / file.name).open("ab") as writer:
                        writer.write(part)
        return [refused.get(file.path, folder / file.name) for file in pack]

    def _parts(self, due: Sequence[Found], start: int) -> Iterator[bytes | UploadError]:
        """Yield a part of each file; no more is asked for than its listed size."""
        ends = [min(file.num_bytes or 0, start + PACK_BYTES) for file in due]
        paths = [file.path for file in due]
        with self._asking("read"):
            parts = self.files.cat_ranges(paths, [start] * len(due), ends, on_error="return")
        for file, end, part in zip(due, ends, parts, strict=True):
            if isinstance(part, OSError) and not _is_of_all(part):
                yield UploadError(f"it cannot be read: {_reason(part)}", printable(file.name))
            elif isinstance(part, BaseException):
                raise StudyError(f"{self.name} cannot be read: {_reason(part)}") from part
            elif len(part) != end - start:
                yield UploadError("it has not as many bytes as were listed", printable(file.name))
            else:
                yield part

    def send(self, source: Path, name: str = "") -> None:
        """Write a file here, or under a name below this place."""
        with self._asking("written"):
            self.files.put_file(str(source), f"{self.path}/{name}" if name else self.path)

    def presigned(self, name: str, seconds: float) -> str:
        """Return an HTTP address to which one file below this place may be written, for a time."""
        if "s3" not in _protocols(self.files):
            raise StudyError(f"{self.name}: only addresses s3:// can be signed for others to write")
        with self._asking("signed for"):
            path, expires = f"{self.path}/{name}", int(seconds)
            return str(self.files.url(path, expires=expires, client_method="put_object"))

    def remove(self, name: str) -> None:
        """Remove whatever is below a name of this place, as far as that can be done."""
        with suppress(Exception):
            self.files.rm(f"{self.path}/{name}", recursive=True)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Let whatever a storage's package raises be one line."""
        try:
            yield
        except Exception as error:
            raise StudyError(f"{self.name} cannot be {what}: {_reason(error)}") from error


def packs(found: Iterable[Found]) -> Iterator[list[Found]]:
    """Yield files in their order, as many at a time as are fetched at once."""
    pack: list[Found] = []
    for file in found:
        size = sum(one.num_bytes or 0 for one in pack) + (file.num_bytes or 0)
        if pack and (len(pack) == PACK_FILES or size > PACK_BYTES):
            yield pack
            pack = []
        pack.append(file)
    if pack:
        yield pack


def require_fetchable(file: Found, most_bytes: int) -> None:
    """Refuse a file that is too large before any of it is read, or whose name no file may have."""
    name = file.name
    unfit = _UNFIT & set(name) or not name.isprintable() or name.startswith(".")
    if unfit or len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise UploadError("no file has such a name", printable(name))
    if file.num_bytes is None:
        raise UploadError("its storage does not say how large it is", name)
    if file.num_bytes > most_bytes:
        raise UploadError(f"it has more than the {most_bytes:,} bytes that the plan allows", name)


def put(source: Path, address: str) -> None:
    """Send a file to a pre-signed address, by HTTP PUT; redirects are not followed.

    The environment names proxies (`https_proxy`) and certificates (`SSL_CERT_FILE`).
    """
    for pause in (*_PAUSES, None):
        try:
            _put(source, address)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if pause is None or error.code < 500:
                reason = printable(f"{error.code} {error.reason}")
                raise StudyError(f"{shown(address)} did not take the file: {reason}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            if pause is None or isinstance(error, ValueError):
                raise StudyError(f"{shown(address)} cannot be reached: {_reason(error)}") from error
        time.sleep(pause)


def _put(source: Path, address: str) -> None:
    if not is_http(address):
        raise ValueError("it is not an HTTP address")
    opener = urllib.request.OpenerDirector()  # not the usual one, which also opens files
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    with source.open("rb") as content:
        told = {
            "Content-Length": str(source.stat().st_size),
            "Content-Type": "application/octet-stream",
        }
        request = urllib.request.Request(address, content, told, method="PUT")
        with opener.open(request, timeout=_PUT_SECONDS):
            pass


def _is_file(told: dict[str, Any]) -> bool:
    # S3 lists a folder that somebody made by hand as an empty file whose name ends in a slash.
    return told.get("type") == "file" and not str(told["name"]).endswith("/")


def _protocols(files: Any) -> tuple[str, ...]:
    told = files.protocol
    return (told,) if isinstance(told, str) else tuple(told)


def _is_of_all(error: OSError) -> bool:
    """Return whether an error is of the storage, and not of the one file, which is a stranger's."""
    return isinstance(error, ConnectionError | TimeoutError) or error.errno in _BUSY


def _reason(error: BaseException) -> str:
    """Return what an error says in one line, without what an address hides."""
    if isinstance(error, FileNotFoundError):  # whose text is often no more than a path
        return "there is nothing"
    text = str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error)
    return shown(text) or type(error).__name__
