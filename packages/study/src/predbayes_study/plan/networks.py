"""A network of the consortium's own: an installed distribution offers it, and a plan names it.

    [project.entry-points."predbayes.networks"]   in the pyproject.toml of that distribution
    hearts = "ournets.hearts:build"

The plan says `module = "hearts"`. The function is called with the numbers of inputs and outputs,
and returns a torch module. A plan carries no code, and naming code does not run it:

    look     `Installed.find` reads the metadata of distributions, and files as bytes
    import   `Installed.load`; after `require_agreed` where a plan is frozen, and at a site only if
             its site.toml allows the network by name (`require_allowed`)

A frozen plan has the digest of all Python files of the distribution, so every party runs the same.
Files are digested where Python would import them from. Where that is not the installation but, for
instance, the bundle of a Flower app, they are run only if they are the plan's, too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from importlib.metadata import EntryPoint
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from predbayes.errors import PlanError, no_such
from predbayes_study.plan.schema import Plan

if TYPE_CHECKING:  # who only looks needs no torch
    from torch import nn

GROUP = "predbayes.networks"

_UNCHECKED = bytes([1, 0, 0, 0])  # PEP 552: by a hash that nobody compares
_COMPILED = (*BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)

Build = Callable[[int, int], "nn.Module"]


@dataclass(frozen=True, slots=True)
class Installed:
    """A network that a distribution offers here; nothing of it was imported."""

    entry: EntryPoint
    distribution: str
    version: str
    digest: str  # of its Python files

    @classmethod
    def find(cls, name: str) -> Installed:
        """Return the network of a name, if it is there whole."""
        entry = _entry(name)
        owner = entry.dist
        assert owner is not None  # `entry_points` always tells
        try:
            root, sources = _root(entry), _sources(entry)
            digest = files_digest(root, sources)
            _refuse_caches(root, sources, name)
        except OSError as error:
            raise PlanError(f"cannot read {error.filename}, which {name!r} has") from error
        return cls(entry, owner.name, owner.version, digest)

    def load(self) -> Build:
        """Import the function that builds the network."""
        try:
            build: Build = self.entry.load()
        except (ImportError, AttributeError) as error:
            raise PlanError(f"cannot import {self._called}: {error}") from error
        if not callable(build):
            raise PlanError(f"{self._called} is {self.entry.value}, no function")
        return build

    @property
    def _called(self) -> str:
        return f"network {self.entry.name!r}"

    def require(self, digest: str, distribution: str, version: str) -> None:
        """Refuse other files than a plan was frozen with."""
        if self.digest != digest:
            raise PlanError(
                f"{self._called} of {self.distribution} {self.version} is installed here, but its "
                f"files are not those of the plan; install {distribution} {version}"
            )


def require_agreed(plan: Plan) -> Installed:
    """Find the network that a plan names; refuse one of other files than it was frozen with."""
    name = plan.model.module
    if plan.frozen is None or plan.frozen.network is None:
        raise PlanError(f"network {name!r} is known once the plan is frozen, and this is a draft")
    found, agreed = Installed.find(name), plan.frozen.network
    found.require(agreed.digest, agreed.distribution, agreed.version)
    return found


HOW_TO_ALLOW = (
    'allow it with --allow-network {0}, or at a site in site.toml: allow_networks = ["{0}"]'
)


def require_allowed(plan: Plan, allowed: Collection[str], how: str) -> None:
    """Refuse a network of the consortium's own that nobody here allowed by name.

    Args:
        plan: The plan that names it, or none.
        allowed: Names of networks.
        how: What to do to allow it; the name is put in for {}.
    """
    name = plan.model.module
    if name and name not in allowed:
        raise PlanError(f"network {name!r} is code that would run here; {how.format(name)}")


IN_SITE_FILE = 'to allow it write allow_networks = ["{}"] in site.toml, above all sections'


def network_problem(plan: Plan, allowed: Collection[str]) -> str:
    """Say why a site cannot use the network that a plan names, if so; nothing is imported."""
    if not plan.model.module:
        return ""
    try:
        require_agreed(plan)
        require_allowed(plan, allowed, IN_SITE_FILE)
    except PlanError as refused:
        return str(refused)
    return ""


def files_digest(root: Path, files: Collection[PurePosixPath]) -> str:
    """Return the SHA-256 of files below a folder by their names, line endings apart."""
    content = hashlib.sha256()
    for file in sorted(files):
        source = (root / file).read_bytes().replace(b"\r\n", b"\n")
        content.update(f"{file} {hashlib.sha256(source).hexdigest()}\n".encode())
    return content.hexdigest()


def is_unchecked(cache: Path) -> bool:
    """Return whether a compiled file is one that Python runs without a look at its source."""
    with cache.open("rb") as file:
        return file.read(8)[4:] == _UNCHECKED


def _entry(name: str) -> EntryPoint:
    offered = importlib.metadata.entry_points(group=GROUP)
    found = [entry for entry in offered if entry.name == name]
    if not found:
        known = [entry.name for entry in offered]
        raise PlanError(f"{no_such('installed network', name, known)} (entry points of {GROUP})")
    if len(found) > 1:
        raise PlanError(f"{len(found)} installed distributions offer the network {name!r}")
    return found[0]


def _sources(entry: EntryPoint) -> list[PurePosixPath]:
    """Return all Python files that the distribution of a network says it has."""
    assert entry.dist is not None
    files = [PurePosixPath(file) for file in entry.dist.files or () if ".." not in file.parts]
    what = f"network {entry.name!r}: {entry.dist.name} {entry.dist.version}"
    if any(f.name.endswith(_COMPILED) for f in files if f.parent.name != "__pycache__"):
        raise PlanError(f"{what} has compiled files, which differ from computer to computer")
    sources = [file for file in files if file.suffix == ".py"]
    module = PurePosixPath(*entry.module.split("."))
    if not {module.with_suffix(".py"), module / "__init__.py"} & set(sources):
        raise PlanError(f"{what} does not list {entry.module} among its files; install it, not -e")
    return sources


def _refuse_caches(root: Path, sources: Collection[PurePosixPath], name: str) -> None:
    """Refuse a cache that Python runs without a look at its source: the digest is of sources."""
    for folder in {root / file.parent for file in sources}:
        for cache in folder.glob("__pycache__/*.pyc"):
            if is_unchecked(cache):
                raise PlanError(f"network {name!r}: delete {cache}, which may be of other code")


def _root(entry: EntryPoint) -> Path:
    """Return the one folder from which Python would import all packages of a distribution."""
    names = {file.parts[0].removesuffix(".py") for file in _sources(entry)}
    roots = {name: _folder_of(name) for name in names}
    root = roots[entry.module.partition(".")[0]]
    elsewhere = sorted(name for name, folder in roots.items() if folder != root)
    if elsewhere or root is None or _lies_about(entry):
        where = ", ".join(elsewhere) or entry.module
        raise PlanError(f"network {entry.name!r}: Python finds {where} outside its installation")
    return root


def _folder_of(package: str) -> Path | None:
    """Return where Python would find a package or module, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parents[1] if spec.submodule_search_locations is not None else file.parent


def _lies_about(entry: EntryPoint) -> bool:
    """Whether what calls itself installed lies in the working directory, where anything may lie."""
    assert entry.dist is not None
    return Path(str(entry.dist.locate_file(""))).resolve() == Path.cwd()
