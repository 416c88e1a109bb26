"""A node's half: train when it is asked, and hand over the upload.

Everything that is the site's comes from the site: data, key, `site.toml`, kit and folder are named
in the node's own configuration, never in a message. A message names the plan that is asked for, by
its digest, and nothing else.
Training leaves the finished upload on the node's disk, so that being asked again only sends again
(`predbayes_flower.outbox`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from predbayes.errors import NotApprovedError
from predbayes.files import file_digest
from predbayes_flower.outbox import Outbox
from predbayes_flower.simulation import node_config
from predbayes_study.kit.kit import Kit
from predbayes_study.plan.schema import PLAN_FILE, Plan
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import Training
from predbayes_study.store.audit import AuditLog
from predbayes_study.store.files import RUN_LOCK, locked
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import KIT_SIGNATURE

_log = logging.getLogger(__name__)

Read = Callable[[Plan, SiteFile, Path], pd.DataFrame]
"""Makes a table in the plan's columns and units from a plan, a site.toml and a path."""


@dataclass(frozen=True, slots=True)
class Node:
    """A site as its node knows it.

    Args:
        outbox: What is ready, by the node's configuration.
        training: Plan, name, key, approvals, folder and learner.
        rows: Reads the site's rows; called only when there is something to train.
        made_of: The files that determine the upload; None where something else is read, too.
        log: The site's audit log.
    """

    outbox: Outbox
    training: Training
    rows: Callable[[], SiteRows]
    made_of: tuple[Path, ...] | None
    log: AuditLog

    @classmethod
    def of_context(cls, context: Any, read: Read = read_site_table) -> Node:
        """Return the site of a ClientApp's context, in a deployment or a simulation."""
        return cls.of_config(node_config(context.node_config, context.run_config), read)

    @classmethod
    def of_config(cls, config: Mapping[str, Any], read: Read = read_site_table) -> Node:
        """Read a node's own configuration: paths of site.toml, data, kit and folder.

        Args:
            config: Its configuration.
            read: Makes a table in the plan's columns and units from the site's own.
        """
        outbox = Outbox(config)
        own, kit = SiteFile.load(outbox.path("site")), _kit(outbox.path("kit"))
        data = outbox.path("data")
        training = Training(
            kit,
            own.name,
            SigningKey.load(own.key_path),
            Approvals.of(own),
            outbox.path("out"),
            kit.plan.learner_or(str(config.get("learner", ""))),
            str(config.get("device", "cpu")),
            own.allow_networks,
            own.table,
        )
        # Only of our own reading it is known that nothing but these files is read.
        signed = () if kit.signed is None else (kit.folder / KIT_SIGNATURE,)
        files = (kit.folder / PLAN_FILE, *signed, outbox.path("site"), own.key_path, data)
        is_all = read is read_site_table and not kit.plan.vectors
        made_of = files if is_all else None
        return cls(
            outbox,
            training,
            lambda: SiteRows.to_train(kit.plan, own, read(kit.plan, own, data)),
            made_of,
            AuditLog.at(own.folder, own.audit),
        )

    def answer(self, plan_digest: str) -> Path | str:
        """Return the signed file that answers a plan, or why there is none."""
        with self.log.during("send", plan=plan_digest, asked_by="message") as what:
            answer = self._answer(plan_digest)
            if isinstance(answer, Path):
                what["file"] = file_digest(answer)
            else:
                what["nothing sent"] = answer
            return answer

    def _answer(self, plan_digest: str) -> Path | str:
        training = self.training
        if plan_digest != training.kit.digest:
            return "no such plan"
        if not training.approvals.may_train(training.kit, by_message=True):
            return "not approved"
        training.out.mkdir(parents=True, exist_ok=True)
        # A message that was given up leaves its process at work, and the next one starts another:
        # it waits for the first, and then its upload is there.
        with locked(training.out, RUN_LOCK, timeout=-1):
            ready = (
                None if self.made_of is None else self.outbox.ready(plan_digest, training.approvals)
            )
            return ready or self._train()

    def _train(self) -> Path | str:
        facts = {"plan": self.training.kit.digest, "site": self.training.site}
        try:
            with self.log.during("train", long=True, asked_by="message", **facts) as what:
                asked = self.training
                asked.approvals.require_plan(asked.kit, learner=asked.learner)
                trained = asked.run(self.rows())
                what |= trained.facts()
        except NotApprovedError as error:
            _log.warning("%s", error)
            return "not approved"
        if not trained.released:
            return "awaiting release"
        if self.made_of is not None:
            self.outbox.keep(self.training.kit.digest, trained.path, list(self.made_of))
        return trained.path


def _kit(folder: Path) -> Kit:
    """Read a kit, once for the many simulated nodes for which one process answers."""
    return _kit_as_of(folder, (folder / PLAN_FILE).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _kit_as_of(folder: Path, _changed: int) -> Kit:
    return Kit.load(folder)
