"""A node's half: say who it is, and hand over its upload when it is asked.

Everything that is the site's comes from the site: data, key, `site.toml`, kit and folder are named
in the node's own configuration, never in a message. A message names no more than the plan that is
asked for, by its digest. Training leaves the finished upload on the node's disk, so that being
asked again only sends again. What goes wrong is written to the node's log; the server is told no
more than its kind.

An upload that was made before and is small goes with the hello: a node that is asked in a new run,
after whatever ended the last one, need not be asked twice.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import predbayes
from predbayes.errors import PlanError, PredbayesError, StudyError
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.upload import Declared, Signature
from predbayes.flower.simulation import node_config
from predbayes.flower.wire import (
    Answer,
    Hello,
    pack_answer,
    pack_hello,
    read_words,
    words,
)
from predbayes.study.approvals import Approvals
from predbayes.study.folder import RUN_LOCK, file_digest, locked
from predbayes.study.kit import PLAN_FILE, Kit
from predbayes.study.plan import Plan
from predbayes.study.site import SiteRows, Training
from predbayes.study.sitefile import SiteFile, read_site_table

_log = logging.getLogger(__name__)
_NEEDED = ("site", "data", "kit", "out")
_SMALL_BYTES = 1 << 20

Read = Callable[[Plan, SiteFile, Path], pd.DataFrame]
"""Makes a table in the plan's columns and units: of a plan, a site.toml and a path."""


@dataclass(frozen=True, slots=True)
class Node:
    """A site as its node knows it.

    Args:
        training: Plan, name, key, approvals, folder and learner.
        rows: Reads the site's rows; called only when there is something to train.
        must_approve: Whether the plan needs the site's recorded yes.
    """

    training: Training
    rows: Callable[[], SiteRows]
    must_approve: bool = True

    @classmethod
    def of_context(cls, context: Any, read: Read = read_site_table) -> Node:
        """The site that a ClientApp's context belongs to, in a deployment or a simulation."""
        return cls.of_config(node_config(context.node_config, context.run_config), read)

    @classmethod
    def of_config(cls, config: Mapping[str, Any], read: Read = read_site_table) -> Node:
        """From a node's own configuration: paths of site.toml, data, kit and folder.

        Args:
            config: Its configuration.
            read: Makes a table in the plan's columns and units from the site's own.
        """
        missing = [name for name in _NEEDED if not config.get(name)]
        if missing:
            raise PlanError(f"the node's configuration lacks {', '.join(missing)}")
        own = SiteFile.load(Path(str(config["site"])))
        kit = _kit(Path(str(config["kit"])))
        data = Path(str(config["data"]))
        files = (Path(str(config["site"])), data)
        training = Training(
            kit,
            own.name,
            SigningKey.load(own.key_path),
            Approvals(own.folder),
            Path(str(config["out"])),
            str(config.get("learner", "network")),
            str(config.get("device", "cpu")),
            # Only of our own reading it is known that nothing but these files is read.
            _source(files) if read is read_site_table else "",
        )
        return cls(training, lambda: SiteRows.of(kit.plan, read(kit.plan, own, data)))

    def hello(self) -> Hello:
        """Who the site is, and whether it approved the plan that it holds."""
        digest = self.training.kit.digest
        return Hello(self.training.site, predbayes.__version__, (digest,) if self._agrees() else ())

    def ready(self, plan_digest: str) -> Answer | None:
        """The upload for a plan if it was made of the same files before, and is small."""
        if plan_digest != self.training.kit.digest or not self._agrees():
            return None
        try:
            with locked(self.training.out, RUN_LOCK):
                sent = self.training.sent()
        except Exception:
            _log.debug("nothing is ready", exc_info=True)
            return None  # it will be asked for, and then say what is wrong
        if sent is None or sent.path.stat().st_size > _SMALL_BYTES:
            return None
        return Answer("upload", sent.upload, _signature(sent.path))

    def answer(self, plan_digest: str) -> Answer:
        """The upload for a plan, or why there is none."""
        if plan_digest != self.training.kit.digest:
            return Answer("no such plan")
        if not self._agrees():
            return Answer("not approved")
        with _alone(self.training.out):
            trained = self.training.sent() or self.training.run(self.rows())
        if not trained.released:
            return Answer("awaiting release")
        return Answer("upload", trained.upload, _signature(trained.path))

    def _agrees(self) -> bool:
        training = self.training
        return not self.must_approve or training.approvals.given("plan", training.kit.digest)


def answer_hello(node: Node, message: Any) -> Any:
    """Who the site is, with its upload if that is ready."""
    asked = str(read_words(message.content).get("plan", ""))
    return pack_hello(node.hello(), node.ready(asked))


def answer_upload(node: Node, message: Any) -> Any:
    """The upload that is asked for, or why there is none."""
    asked = str(read_words(message.content).get("plan", ""))
    return pack_answer(node.answer(asked))


def answer_ack(message: Any) -> Any:
    """Note what became of the upload."""
    _log.info("the coordinator says: %s", read_words(message.content).get("state", ""))
    return words(state="noted")


def guarded(answer: Callable[[], Any]) -> Any:
    """An answer, or the kind of what went wrong and nothing else of it."""
    try:
        return answer()
    except PredbayesError as error:
        _log.error("%s", error)
        return words(status="failed", reason=type(error).__name__)
    except Exception as error:
        _log.exception("the node's part failed")
        return words(status="failed", reason=type(error).__name__)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process trains in this folder: then its upload is there.

    A message that was given up leaves its process at work, and the next one starts another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder, RUN_LOCK))
                break
            except StudyError:
                time.sleep(1)
        yield


def _kit(folder: Path) -> Kit:
    """A kit; the nodes of a simulation share theirs, and one process answers for many."""
    return _kit_as_of(folder, (folder / PLAN_FILE).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _kit_as_of(folder: Path, _changed: int) -> Kit:
    return Kit.load(folder)


def _source(files: Iterable[Path]) -> str:
    """One digest of several files; none if one cannot be read, which then says so itself."""
    try:
        return " ".join(file_digest(path) for path in files)
    except OSError:
        return ""


def _signature(path: Path) -> Signature | None:
    return Declared.read(path).signature
