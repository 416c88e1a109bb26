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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from predbayes.errors import StudyError
from predbayes.exchange.signing import SigningKey
from predbayes.study.approvals import Approvals
from predbayes.study.kit import Kit
from predbayes.study.study import Study

_STUDY, _SITES, _NODE = "study", "sites", "node.json"
_PARTITION = "partition-id"  # Flower's word for the number of a simulated node


def lay_out(
    root: Path,
    kit_folder: Path,
    labels_path: Path,
    tables: Mapping[str, pd.DataFrame],
    learners: Mapping[str, str] | None = None,
) -> Study:
    """Begin a study of simulated sites.

    Args:
        root: A folder that does not exist yet.
        kit_folder: The frozen plan.
        labels_path: The coordinator's labels.
        tables: Each site's rows, in the plan's columns and units; sites are numbered in this order.
        learners: Of sites that have a choice of their own; a network.
    """
    study = Study.init(root / _STUDY, kit_folder, labels_path)
    digest = Kit.load(kit_folder).digest
    keys = {}
    for number, (site, table) in enumerate(tables.items()):
        folder = root / _SITES / str(number)
        folder.mkdir(parents=True)
        keys[site] = SigningKey.generate()
        keys[site].save(folder / f"{site}.key")
        (folder / "site.toml").write_text(f"format = 1\nname = {json.dumps(site)}\n")
        table.to_csv(folder / "rows.csv", index=False)
        Approvals(folder).record("plan", digest, "simulation")
        config = {
            "site": str(folder / "site.toml"),
            "data": str(folder / "rows.csv"),
            "kit": str(study.folder / "kit"),
            "out": str(folder / "out"),
            "learner": (learners or {}).get(site, "network"),
        }
        (folder / _NODE).write_text(json.dumps(config))
    study.admit_all({site: key.public for site, key in keys.items()})
    return study


def study_folder(root: Path) -> Path:
    """Where the study of a simulation is."""
    return root / _STUDY


def node_config(own: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """A node's configuration; that of a simulated site is found by its number.

    Args:
        own: The configuration that the node was started with.
        run: That of the run, heeded only where there is no site: a run never tells a site where
            its data are.
    """
    if "site" in own or _PARTITION not in own:
        return dict(own)
    root = str(run.get("simulation", ""))
    if not root:
        raise StudyError("a simulated node needs the run configuration's `simulation`")
    path = Path(root) / _SITES / str(own[_PARTITION]) / _NODE
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StudyError(f"there is no site {own[_PARTITION]} in {root}") from error
    return found
