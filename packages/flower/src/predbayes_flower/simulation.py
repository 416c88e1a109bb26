"""A federation on one machine, as Flower's simulation runs it: each site is a folder.

    ROOT/study          the study, begun, with every site admitted
    ROOT/sites/0/       what the first site has at home: site.toml, key, table, approval, out/
    ROOT/sites/1/ ...

A simulated node has no configuration of its own, only a number, and finds its folder by it. All
else is as in a deployment: sites hold keys, approve the plan and sign what they send, so that what
was tried in a simulation is what will run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predbayes.errors import StudyError
from predbayes.files import put, remove, scratch_beside
from predbayes_study.site.release import Approvals

if TYPE_CHECKING:
    import pandas as pd

    from predbayes_study.coordinator.study import Study
    from predbayes_study.kit.kit import Kit
    from predbayes_study.trust.signing import SigningKey

_STUDY, _SITES, _NODE = "study", "sites", "node.json"
_PATHS = {"site": "site.toml", "data": "rows.csv", "kit": f"../../{_STUDY}/kit", "out": "out"}

PARTITION = "partition-id"
"""Flower's word for the number of a simulated node."""


def lay_out(
    root: Path,
    kit_folder: Path,
    labels_path: Path,
    tables: Mapping[str, pd.DataFrame],
    learners: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> Study:
    """Begin a study of simulated sites; all of it is there, or nothing.

    Args:
        root: A folder that does not exist yet, by its absolute path.
        kit_folder: The frozen plan.
        labels_path: The coordinator's labels.
        tables: Each site's rows as its node will read them: if it has no way of its own, in the
            plan's columns and units. Sites are numbered in this order.
        learners: Of sites that choose; the others fit what the plan says.
        device: Where the nodes train networks: ``cpu``, ``cuda``, ``auto``.
    """
    # Not above: nodes only look for their folder here, and are to do so at once.
    from predbayes_study.coordinator.study import Study
    from predbayes_study.kit.kit import Kit

    if not root.is_absolute():
        raise StudyError(f"{root} is relative; a run needs the absolute path of its simulation")
    if root.exists():
        raise StudyError(f"{root} exists; give another folder, or remove it first")
    root.parent.mkdir(parents=True, exist_ok=True)
    scratch = scratch_beside(root)
    try:
        study = Study.init(scratch / _STUDY, kit_folder, labels_path)
        kit = Kit.load(kit_folder)
        keys = {}
        for number, (site, table) in enumerate(tables.items()):
            learner = kit.plan.learner_or((learners or {}).get(site))
            folder = scratch / _SITES / str(number)
            choices = {"learner": learner, "device": device}
            keys[site] = _settle(folder, site, table, kit, choices).public
        study.admit_all(keys)
        put(scratch, root)
    finally:
        remove(scratch)
    return Study(study_folder(root))


def _settle(
    folder: Path, site: str, table: pd.DataFrame, kit: Kit, choices: Mapping[str, str]
) -> SigningKey:
    """Write what a site has at home, with its officer's approval; return its key."""
    from predbayes_study.trust.signing import SigningKey

    folder.mkdir(parents=True)
    key = SigningKey.generate()
    key.save(folder / f"{site}.key")
    told = {
        "format": 1,
        "name": site,
        "allow_networks": list(filter(None, [kit.plan.model.module])),
    }
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in told.items())
    (folder / _PATHS["site"]).write_bytes("".join(lines).encode())
    table.to_csv(folder / _PATHS["data"], index=False)
    Approvals(folder).record("plan", kit.digest, "simulation")
    (folder / _NODE).write_bytes(json.dumps({**_PATHS, **choices}).encode())
    return key


def study_folder(root: Path) -> Path:
    """Return where the study of a simulation is."""
    return root / _STUDY


def node_config(own: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's configuration; that of a simulated site is found by its number.

    Args:
        own: The configuration that the node was started with.
        run: That of the run, heeded only where there is no site: a run never tells a site where
            its data are.
    """
    if "site" in own or PARTITION not in own:
        return dict(own)
    root = str(run.get("simulation", ""))
    if not root:
        raise StudyError("a simulated node needs the run configuration's `simulation`")
    folder = Path(root) / _SITES / str(own[PARTITION])
    try:
        found: dict[str, Any] = json.loads((folder / _NODE).read_bytes())
    except (OSError, ValueError) as error:
        raise StudyError(f"there is no site {own[PARTITION]} in {root}") from error
    # Normal paths: all sites name one kit, by which it is read once.
    return found | {name: os.path.normpath(folder / found[name]) for name in _PATHS}
