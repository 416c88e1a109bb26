"""The software that a plan was frozen with: the digest of the files of predbayes.

A frozen plan has it, and the version, so that a site can tell whether the wheel it was given is the
one that the plan is of. It covers every file in the folders of both packages, whether a wheel's
RECORD lists it or not, but for caches that Python compares with their sources. An installation from
the sources (`pip install -e`, PYTHONPATH) is no wheel's: then there is no digest, and that is said.

It does not cover what runs beside the package: `.pth` files and `sitecustomize`, which Python runs
at its start, other packages, Python itself, nor a cache with a forged time of its source.
"""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path, PurePosixPath

import predbayes
import predbayes_study
from predbayes_study.plan.networks import files_digest, is_unchecked
from predbayes_study.plan.schema import Plan


@functools.cache
def software_digest() -> str:
    """Return the digest of the installed files of predbayes; empty if they are not of wheels."""
    there: list[PurePosixPath] = []
    for name, package in {"predbayes": predbayes, "predbayes-study": predbayes_study}.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return ""
        root = Path(str(distribution.locate_file("")))
        folder = root / package.__name__
        listed = any(file.parts[0] == folder.name for file in distribution.files or ())
        if not listed or Path(str(package.__file__)).resolve().parent != folder.resolve():
            return ""
        found = [path for path in folder.rglob("*") if path.is_file() and _counts(path)]
        there += [PurePosixPath(path.relative_to(root)) for path in found]
    return files_digest(root, there)


def _counts(path: Path) -> bool:
    """Return whether a file is no cache, or one that would be run whatever its source says."""
    return path.parent.name != "__pycache__" or (path.suffix == ".pyc" and is_unchecked(path))


def is_another_software(plan: Plan) -> bool:
    """Return whether predbayes here is known not to be the plan's: of its version, or its files."""
    if plan.frozen is None:
        return False
    stated, here = plan.frozen.software, software_digest()
    is_other = bool(stated and here) and stated != here
    return is_other or plan.frozen.version != predbayes.__version__


def software_problem(plan: Plan) -> str:
    """Say why it is not known that predbayes here is the plan's; empty if it is."""
    if plan.frozen is not None and plan.frozen.version != predbayes.__version__:
        return (
            f"this is predbayes {predbayes.__version__}, and the plan was frozen with "
            f"{plan.frozen.version}, which all parties use: install that version"
        )
    stated, here = plan.frozen.software if plan.frozen else "", software_digest()
    if not stated:
        return "frozen.software of the plan is empty: nobody can tell which predbayes it is of"
    if not here:
        return (
            "predbayes runs from its sources here, so its files were not compared with the plan's"
        )
    if here == stated:
        return ""
    assert plan.frozen is not None
    return (
        f"the files of predbayes {predbayes.__version__} here are not those of predbayes "
        f"{plan.frozen.version} that the plan was frozen with"
    )
