"""The software that a plan was frozen with: the digest of the files of predbayes.

A frozen plan has it, so that a site can tell whether the wheel it was given is the one that the
plan is of. It covers the package's files as the wheel's RECORD lists them. An installation from the
sources (`pip install -e`, PYTHONPATH) has no such list: then there is no digest, and that is said.
"""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path, PurePosixPath

import predbayes
from predbayes.study.plan.networks import files_digest
from predbayes.study.plan.schema import Plan


@functools.cache
def software_digest() -> str:
    """Return the digest of the installed files of predbayes; empty if they are not a wheel's."""
    try:
        distribution = importlib.metadata.distribution("predbayes")
    except importlib.metadata.PackageNotFoundError:
        return ""
    root = Path(str(distribution.locate_file("")))
    listed = [PurePosixPath(file) for file in distribution.files or ()]
    files = [f for f in listed if f.parts[0] == "predbayes" and "__pycache__" not in f.parts]
    runs = Path(predbayes.__file__).resolve().parent == (root / "predbayes").resolve()
    return files_digest(root, files) if files and runs else ""


def software_problem(plan: Plan) -> str:
    """Say why it is not known that predbayes here is the plan's; empty if it is."""
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
