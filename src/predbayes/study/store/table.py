"""Mappings in one SQLite database: opened as bytes, read where they are asked.

A `Table` is a mapping that behaves as a dict does, its order included, and costs nothing until
something of it is looked up. A database is read from bytes that the caller has checked, into
memory, so nobody changes it afterwards. Digests, 64 hexadecimal digits, take 32 bytes of it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeVar

from predbayes.errors import StudyError

K = TypeVar("K")
V = TypeVar("V")
Row = tuple[Any, ...]

_HEX = re.compile("[0-9a-f]{64}")
_CREATE = "CREATE TABLE {} (key PRIMARY KEY, {})"


class Form(NamedTuple):
    """How values of a table are rows of texts, numbers and None."""

    pack: Callable[[Any], Row]
    unpack: Callable[[Row], Any]
    width: int = 1


PLAIN = Form(lambda value: (value,), lambda row: row[0])
"""Of values that are texts or numbers."""


class Table(MutableMapping[K, V]):
    """A mapping in a database."""

    def __init__(self, database: sqlite3.Connection, name: str, form: Form) -> None:
        self.database, self.name, self._form = database, name, form

    def __getitem__(self, key: K) -> V:
        for row in self._run("SELECT * FROM {} WHERE key = ?", _key(key)):
            return self._value(row)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return bool(self._run("SELECT 1 FROM {} WHERE key = ?", _key(key)))

    def __setitem__(self, key: K, value: V) -> None:
        row = _key(key), *map(_packed, self._form.pack(value))
        new = ", ".join(f"{name} = excluded.{name}" for name in _columns(self._form))
        marks = ",".join("?" * len(row))
        # A key that is there keeps its place.
        self._run(f"INSERT INTO {{}} VALUES ({marks}) ON CONFLICT DO UPDATE SET {new}", *row)

    def __delitem__(self, key: K) -> None:
        if not self._run("DELETE FROM {} WHERE key = ? RETURNING 1", _key(key)):
            raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        for (key,) in self._run("SELECT key FROM {} ORDER BY rowid"):
            yield _told(key)

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM {}")[0][0])

    def items(self) -> Any:
        """Return keys and values, read in one pass."""
        rows = self._run("SELECT * FROM {} ORDER BY rowid")
        return {_told(row[0]): self._value(row) for row in rows}.items()

    def values(self) -> Any:
        """Return the values, read in one pass."""
        return dict(self.items()).values()

    def _value(self, row: Row) -> V:
        found: V = self._form.unpack(tuple(map(_told, row[1:])))
        return found

    def _run(self, query: str, *values: Any) -> list[Row]:
        try:
            return self.database.execute(query.format(self.name), values).fetchall()
        except sqlite3.Error as error:
            raise StudyError(f"a checkpoint cannot be read ({error}); delete it") from error


def image_of(tables: Mapping[str, tuple[Form, Mapping[Any, Any]]]) -> bytes:
    """Return a database of mappings, by name, as bytes."""
    held = [content.database for _, content in tables.values() if isinstance(content, Table)]
    database = held[0] if held else sqlite3.connect(":memory:", isolation_level=None)
    database.execute("ATTACH ':memory:' AS image")
    try:
        database.execute("BEGIN")
        for name, (form, content) in tables.items():
            database.execute(_CREATE.format(f"image.{name}", ", ".join(_columns(form))))
            _fill(database, name, form, content)
        database.execute("COMMIT")
        return database.serialize(name="image")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute("DETACH image")


def _fill(database: sqlite3.Connection, name: str, form: Form, content: Mapping[Any, Any]) -> None:
    """Write a mapping into the image; rows of this very database as they are."""
    if isinstance(content, Table) and content.database is database:
        rows = f"SELECT * FROM main.{content.name} ORDER BY rowid"
        database.execute(f"INSERT INTO image.{name} {rows}")
        return
    packed = ((_key(k), *map(_packed, form.pack(v))) for k, v in content.items())
    marks = ",".join("?" * (1 + form.width))
    database.executemany(f"INSERT INTO image.{name} VALUES ({marks})", packed)


def tables_of(image: bytes, forms: Mapping[str, Form]) -> dict[str, Table[Any, Any]]:
    """Return the mappings in such bytes; a database that has anything else is refused."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    expected = {_CREATE.format(name, ", ".join(_columns(form))) for name, form in forms.items()}
    try:
        database.deserialize(image)
        database.execute("PRAGMA trusted_schema = OFF")
        found = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    except sqlite3.Error as error:
        raise StudyError(f"a checkpoint cannot be read ({error}); delete it") from error
    if {sql for (sql,) in found} != expected:
        raise StudyError("a checkpoint has other tables than a study; delete it")
    return {name: Table(database, name, form) for name, form in forms.items()}


def _columns(form: Form) -> list[str]:
    return [f"c{number}" for number in range(form.width)]


def _key(key: Any) -> Any:
    """A key as one value; a pair of texts, which have no line ends, is two lines."""
    return "\n".join(key) if isinstance(key, tuple) else _packed(key)


def _packed(value: Any) -> Any:
    return bytes.fromhex(value) if isinstance(value, str) and _HEX.fullmatch(value) else value


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return tuple(value.split("\n")) if isinstance(value, str) and "\n" in value else value
