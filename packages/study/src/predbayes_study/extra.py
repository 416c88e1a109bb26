"""Extras: capabilities that a plan asks for, each a package that an entry point names.

    [project.entry-points."predbayes.study"]
    sealed = "predbayes_study.extras.sealed:extra"

The rest of the study knows no extra by name. It asks here for what extras add: sections of a plan,
payloads, rules, ledger events, pages and commands. All of these are written as `module:attribute`,
relative to the extra's package, because a command must not load what it does not use.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

GROUP = "predbayes.study"
"""The group of the entry points."""

_OWN = "predbayes_study.extras"


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional capability; every reference is `module:attribute`, relative to its package.

    `:attribute` is of the package itself.

    Args:
        package: Dotted name of the extra's package; its last part is the extra's name.
        sections: Sections of a plan: name -> subclass of `plan.schema.Section`.
        payloads: What may leave a site: kind -> `Payload`.
        rules: Tables of rules: `plan`, `review`, `table` or `policy` -> tuple of `rules.Rule`.
        events: Files that sites send beside uploads: the ledger's step for one, which is also the
            ending of its name -> `attachments.AttachmentKind`.
        pages: Sections of pages: page -> function of plan, result and `public` that returns HTML.
        files: Files of a result: name -> function of plan and result that returns the text.
        measurements: What a site measures before an upload leaves: name -> function of the folder
            of what stays and of a digest that returns a `Measurement`, or None.
        copies: Copies of a study without its data: name of the file that lists what is in a copy ->
            function of its folder that returns the digest of every file in the list.
        commands: Commands: name, with the group before it (`site audit`) -> Typer app or function.
    """

    package: str
    sections: Mapping[str, str] = field(default_factory=dict)
    payloads: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    measurements: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The extra's name, by which it is installed."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import what a reference names."""
        module, _, attribute = reference.partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}".rstrip(".")), attribute)


def extras() -> dict[str, Extra]:
    """Return the installed extras by name, in the order of their names."""
    if not _found:
        _found.update(sorted(_find()))
    return dict(_found)


def added(what: str) -> Iterator[tuple[str, Extra, str]]:
    """Yield the name, the extra and the reference of everything that extras add to a field."""
    for extra in extras().values():
        for name, reference in getattr(extra, what).items():
            yield name, extra, reference


def names(what: str) -> Iterator[str]:
    """Yield the names of everything that extras add to a field."""
    for name, _, _ in added(what):
        yield name


def rules(table: str, of: str = "") -> Iterator[Any]:
    """Yield the rules that extras add to a table; `of` is a section of the extra that is meant."""
    for name, extra, reference in added("rules"):
        if name == table and (not of or of in extra.sections):
            yield from extra.load(reference)


def load(what: str, name: str) -> Any:
    """Import what an extra adds to a field under a name; None if no extra does."""
    for key, extra, reference in added(what):
        if key == name:
            return extra.load(reference)
    return None


def missing(section: str) -> str:
    """Return why a plan is refused that has a section of no installed extra."""
    return (
        f"the plan has a section [{section}], which nothing installed here knows. Install it with "
        f'`pip install "predbayes-study[{section}]"`'
    )


_found: dict[str, Extra] = {}


def _find() -> Iterator[tuple[str, Extra]]:
    """Extras by their entry points; those of this package from its folder if there are none.

    Sources that were put on the path have no metadata, or that of another version.
    """
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    there = {name: point for name, point in points.items() if exists(point.module)}
    for name, point in there.items():
        yield name, point.load()
    if not there and importlib.util.find_spec(_OWN) is not None:
        for module in pkgutil.iter_modules(importlib.import_module(_OWN).__path__):
            found = getattr(importlib.import_module(f"{_OWN}.{module.name}"), "extra", None)
            if found is not None:
                yield module.name, found


def exists(module: str) -> bool:
    """Whether a module can be imported: sources may have metadata of another version."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
