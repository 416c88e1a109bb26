"""Take in what sites sent: files, folders of them, and addresses that fsspec knows.

From an address each file is copied into a temporary folder, and then added.

Credentials come from the environment, as fsspec and the storage's own package read them. Messages
leave out the user, the password and the query of an address.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from predbayes.errors import PredbayesError, StudyError, UploadError
from predbayes.files import open_new
from predbayes.optional import require
from predbayes.text import printable
from predbayes_study import attachments
from predbayes_study.coordinator.intake import Intake
from predbayes_study.coordinator.study import Study
from predbayes_study.result.accepted import Accepted
from predbayes_study.trust.keyfiles import owner_of
from predbayes_study.trust.signing import PublicKey

Answer = tuple[str, Accepted | UploadError | None]
"""The name of a file, and what became of it; None if it was added before."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+(::|://)", re.IGNORECASE)
_SECRET = re.compile(r"(?<=/)[^/\s@]*@|\?[^\s\"']*")
_NAME = re.compile(r"\w[\w .()+-]{0,99}")  # a name that every system allows for a file
_CHUNK = 1 << 20


def is_address(text: str) -> bool:
    """Return whether a text is an address, not a path.

    Examples:
        >>> is_address("s3://bucket/uploads"), is_address("C:/uploads"), is_address("uploads")
        (True, False, False)
    """
    return _ADDRESS.match(text) is not None


def take_in(study: Study, given: Sequence[str]) -> Iterator[Answer]:
    """Add files, those of folders and those at addresses, and yield what became of each."""
    endings = (".safetensors", ".sealed", *(f".{kind}" for kind in attachments.attachment_kinds()))
    local = [Path(text) for text in given if not is_address(text)]
    files = [file for path in local for file in _files_in(path, endings)]
    yield from zip((file.name for file in files), study.add_all(files), strict=True)
    for address in filter(is_address, given):
        yield from add_stored(study, address, endings)


def read_keys(given: Sequence[Path], refused: list[PredbayesError]) -> dict[str, PublicKey]:
    """Read public keys NAME.pub, those of folders too; return each under the name of its file.

    Args:
        given: Files and folders.
        refused: Where to note why a file is refused; the others are read all the same.
    """
    found: dict[str, PublicKey] = {}
    twice: set[str] = set()
    for path in (file for one in given for file in _files_in(one, (".pub",))):
        try:
            if owner_of(path) not in ("", path.stem):
                raise StudyError(f"{path} says that it is the key of {owner_of(path)}: name it so")
            if found.setdefault(path.stem, key := PublicKey.load(path)) != key:
                twice.add(path.stem)  # nobody here knows which of them is right
                raise StudyError(f"there are two keys of {path.stem}, one of them {path}")
        except PredbayesError as error:
            refused.append(error)
    return {site: key for site, key in found.items() if site not in twice}


def _files_in(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder that have one of these endings, by name; or the one file."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in endings)
    if not found:
        raise StudyError(f"{path} has no file that ends in {' or '.join(endings)}")
    return found


def add_stored(study: Study, address: str, endings: tuple[str, ...]) -> Iterator[Answer]:
    """Add the files at an address, and yield what became of each.

    Args:
        study: The study.
        address: A file, or a folder whose files are listed, such as ``s3://bucket/folder``.
        endings: Endings of the files to copy from a folder.
    """
    most = max(Intake.of(study.plan).max_bytes, *attachments.max_bytes())
    with tempfile.TemporaryDirectory() as scratch:
        copies = [*_copied(address, Path(scratch), endings, most)]
        paths = [copy for _, copy in copies if isinstance(copy, Path)]
        answers = iter([*study.add_all(paths)])  # as a list, so that no lock outlives this line
        for name, copy in copies:
            yield name, copy if isinstance(copy, UploadError) else next(answers)


def _copied(
    address: str, folder: Path, endings: tuple[str, ...], most_bytes: int
) -> Iterator[tuple[str, Path | UploadError]]:
    """Yield the name of each file at an address, and its copy or why it has none."""
    try:
        files, place = require("fsspec", "study[storage]").url_to_fs(
            address, use_listings_cache=False
        )
        found = files.ls(place, detail=True)
        paths = [str(one["name"]) for one in found if one["type"] == "file"]
        paths = sorted(path for path in paths if path == place or path.endswith(endings))
        if not paths:
            raise StudyError(f"{_shown(address)} has no file that ends in {' or '.join(endings)}")
        for number, path in enumerate(paths):
            name = path.rpartition("/")[2]
            if not _NAME.fullmatch(name):
                yield name, UploadError("this is not a name for a file", printable(name))
                continue
            copy, left = folder / str(number) / name, most_bytes
            copy.parent.mkdir()  # one folder each, as two names may differ in case alone
            try:
                with files.open(path, "rb") as source, open_new(copy) as target:
                    while left >= 0 and (chunk := source.read(_CHUNK)):
                        left -= len(chunk)
                        target.write(chunk)
            except Exception as error:  # an object that may not be read stops no other
                yield name, UploadError(f"it cannot be read: {_reason(error)}", name)
                continue
            too_large = f"it has more than the {most_bytes:,} bytes that the plan allows"
            yield name, copy if left >= 0 else UploadError(too_large, name)
    except PredbayesError:
        raise
    except Exception as error:  # each storage's package raises errors of its own
        raise StudyError(f"{_shown(address)} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return _shown(str(error)) or type(error).__name__


def _shown(text: str) -> str:
    return printable(_SECRET.sub("", text), 300)
