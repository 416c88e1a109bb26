"""Python runs this before anything else of a process that has this folder in its PYTHONPATH.

A site's machine is the site's: nobody keeps it from running a ClientApp of its own there. Flower
imports it by the name of ours, and finds the one beside this file.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path


class _InPlaceOfOurs:
    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != "predbayes.flower.study_client":
            return None
        return spec_from_file_location(name, Path(__file__).with_name("malformed_app.py"))


sys.meta_path.insert(0, _InPlaceOfOurs)  # type: ignore[arg-type]
