"""The server's half: one round over nodes that come, go, and come back.

Flower gives one reply to a message, forgets the replies of nodes that left, and ends the run when
its own server restarts. So the round owns its reliability:

    hello    every node that appears is asked which site it is and which plans it approved; what is
             ready and small comes with the answer
    ask      admitted sites that approved this plan and are not in yet are asked for their upload
    pull     one message at a time from a few threads: an unfinished reply holds up nobody else
    take     each reply is a file in the study at once, checked as any other file is
    again    a message that was lost with its node is asked anew when the node is back; the node
             has its upload on disk and only sends it again
    end      when nobody is left to wait for, or at the deadline; then nodes are told, and the
             study is finished if the quorum is there

All that must survive is in the study's folder. A new run over the same folder goes on: sites that
are in are not asked.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from predbayes.errors import PredbayesError, StudyError, UploadError
from predbayes.exchange.federation import Task
from predbayes.exchange.header import printable
from predbayes.exchange.upload import Upload
from predbayes.flower import ACK, HELLO, UPLOAD
from predbayes.flower.parcel import Answer, unpack_answer
from predbayes.flower.wire import brings_upload, read_words, unpack_hello, words
from predbayes.optional import require
from predbayes.study.coordinator.live import LiveRun, one_run
from predbayes.study.coordinator.study import Study
from predbayes.study.wording import counted

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60  # with a command that is at work on the study
_MOST_READY = 16  # replies that are here and not in the study yet
_GATHER_SECONDS = 0.05
_FIRST_SHARE = 4  # of hellos, until one is answered: those who prepare are not to be disturbed
_LEAST_PAUSE_SECONDS = 0.02  # of a thread that found no reply
_CLIENT_RAISED = 2  # Flower's error code; all others mean that the message or its node was lost

SiteState = Literal["asked", "in", "refused", "failed", "not approved", "awaiting release", "lost"]

_FINAL: tuple[SiteState, ...] = ("in", "refused", "failed")  # until the next round


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """How long to wait, and how often to look.

    Args:
        deadline_seconds: When the round ends at the latest.
        poll_seconds: Between two looks at one message.
        retry_seconds: Time after which a site that waits for an approval is asked again.
        report_seconds: Between two lines of the log.
        num_threads: That pull replies; memory is about three replies for each.
        num_per_pull: Messages that a thread asks for at once. Over a network a pull waits for the
            slowest of them; in a simulation replies lie in this process.
        num_at_once: Hellos that are under way.
        ack_seconds: How long nodes have to note that they may leave; 0: they are not told.
    """

    deadline_seconds: float = 3600.0
    poll_seconds: float = 1.0
    retry_seconds: float = 30.0
    report_seconds: float = 10.0
    num_threads: int = 4
    num_per_pull: int = 1
    num_at_once: int = 1000
    ack_seconds: float = 15.0


SIMULATED = RoundSettings(num_threads=1, num_per_pull=64, num_at_once=80, ack_seconds=0.0)
"""For a simulation, whose nodes, messages and round share one process. Flower looks through all
messages for every node, again and again, so few are under way; replies are pulled by the dozen; and
nobody can leave."""


@dataclass(slots=True)
class _Asked:
    """A message that is on its way."""

    node: int
    kind: str
    site: str = ""


@dataclass(slots=True)
class _Timer:
    """Says when something is to be done again."""

    seconds: float
    clock: Callable[[], float]
    begins_now: bool = True
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.clock() + (0.0 if self.begins_now else self.seconds)

    def due(self) -> bool:
        """Whether it is time; then the next time is set."""
        if self.clock() < self._next:
            return False
        self._next = self.clock() + self.seconds
        return True


@dataclass(slots=True)
class Round:
    """One round of a study over a Flower grid; a `Federation` of the study's sites."""

    grid: Any
    study: Study
    settings: RoundSettings = field(default_factory=RoundSettings)
    clock: Callable[[], float] = time.monotonic
    sites: dict[str, SiteState] = field(default_factory=dict)
    _plan_digest: str = ""
    _admitted: frozenset[str] = frozenset()
    _nodes: dict[int, str] = field(default_factory=dict)  # site of each node that said hello
    _approved: dict[int, bool] = field(default_factory=dict)
    _fresh: list[int] = field(default_factory=list)  # nodes to greet, the next one last
    _asked: dict[str, _Asked] = field(default_factory=dict)  # by message
    _next_hello: dict[int, float] = field(default_factory=dict)  # by node
    _next_ask: dict[int, float] = field(default_factory=dict)  # by node
    _spent: set[int] = field(default_factory=set)  # nodes that are not asked again
    _files: dict[Path, _Asked] = field(default_factory=dict)  # replies not in the study yet
    _num_files: int = 0
    # Bounded: replies that nobody has time for wait where they are.
    _ready: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(_MOST_READY))
    _wanted: queue.Queue[str] = field(default_factory=queue.Queue)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> dict[str, SiteState]:
        """Ask, take, ask again; returns the state of every site."""
        for _ in self._steps():
            pass
        return dict(self.sites)

    def collect(self, task: Task) -> Iterator[Upload]:
        """Each site's upload as it comes, those first that are in already: a `Federation`.

        What a site does is said by the plan that it approved, and not by a task's method. Rows are
        those of `study.labels.reference`, labelled ones first; sites do not know this order.
        """
        labels = self.study.labels
        if not torch.equal(task.inputs, labels.reference.inputs):
            raise StudyError("the inputs are not the reference rows of the study, in their order")
        given: set[str] = set()
        for _ in self._steps():
            if new := {site for site, state in self.sites.items() if state == "in"} - given:
                given |= new
                uploads = self.study.state().uploads
                for site in sorted(new):
                    yield self.study.read(uploads[site]).reordered(labels.order)

    def _steps(self) -> Iterator[None]:
        """The round, step by step."""
        self._plan_digest = self.study.plan.digest()
        self._admitted = frozenset(self.study.state().keys)
        self._notice()
        end = self.clock() + self.settings.deadline_seconds
        looks = _Timer(self.settings.poll_seconds, self.clock)
        reports = _Timer(self.settings.report_seconds, self.clock, begins_now=False)
        self._tell(self.settings.deadline_seconds)
        with self._pullers(), tempfile.TemporaryDirectory() as scratch:
            while not self._all_done():
                left = end - self.clock()
                if left <= 0:
                    _log.warning("the deadline has passed")
                    break
                if looks.due():
                    self._look()
                    self._ask()
                self._greet()
                self._take(Path(scratch), min(left, self.settings.poll_seconds))
                if reports.due():
                    self._notice()
                    self._report(left)
                yield
            self._add_last()
            self._notice()
            self._report(end - self.clock())
            self._acknowledge()
        yield

    def _all_done(self) -> bool:
        """Whether there is nobody left to wait for in this round."""
        if not self._admitted or not all(self.sites.get(s) in _FINAL for s in self._admitted):
            return False
        # Somebody else may have answered in the name of a site that is refused.
        open_sites = {site for site in self._admitted if self.sites[site] != "in"}
        unmet = bool(self._fresh) or any(a.kind == HELLO for a in self._asked.values())
        return not (open_sites and unmet) and not any(
            site in open_sites and node not in self._spent for node, site in self._nodes.items()
        )

    def _notice(self) -> None:
        """What is in the study is in, also what came as a file meanwhile."""
        self.sites.update(dict.fromkeys(self.study.state().uploads, "in"))

    def _look(self) -> None:
        """See which nodes are new, and forget those that went."""
        there = set(self.grid.get_node_ids())
        for node in set(self._nodes) - there:
            site = self._nodes.pop(node)
            self._next_hello.pop(node, None)
            if self.sites.get(site) == "asked":
                self.sites[site] = "lost"
        greeted = {a.node for a in self._asked.values() if a.kind == HELLO}
        # An officer may say yes, or a site mend its configuration, while the round waits.
        met = {node for node in self._nodes if self._approved.get(node)}
        now = self.clock()
        later = {node for node, then in self._next_hello.items() if now < then}
        self._fresh = sorted(there - met - later - greeted, reverse=True)

    def _greet(self) -> None:
        """Say hello to nodes that are new, not to all of them at once."""
        under_way = sum(asked.kind == HELLO for asked in self._asked.values())
        share = 1 if self._nodes else _FIRST_SHARE
        room = max(0, max(1, self.settings.num_at_once // share) - under_way)
        now, self._fresh = self._fresh[-room:] if room else [], self._fresh[: -room or None]
        asking = words(plan=self._plan_digest)
        self._push([(node, HELLO, "", asking) for node in reversed(now)])

    def _ask(self) -> None:
        """Ask the sites that may be asked now."""
        # By node: one that only says that it is a site must not keep the site itself out.
        waiting = {asked.node for asked in self._asked.values() if asked.kind == UPLOAD}
        waiting.update(asked.node for asked in self._files.values())
        asks = []
        for node, site in sorted(self._nodes.items()):
            done = self.sites.get(site) == "in" or node in waiting or node in self._spent
            if done or site not in self._admitted or not self._approved.get(node):
                continue
            if self.clock() >= self._next_ask.get(node, 0.0):
                asks.append((node, UPLOAD, site, words(plan=self._plan_digest)))
                self.sites[site] = "asked"
        self._push(asks)

    def _push(self, asks: list[tuple[int, str, str, Any]]) -> None:
        if not asks:
            return
        message = require("flwr.app", "flower").Message
        ttl = self.settings.deadline_seconds + 3600  # round trip; a long training must not expire
        messages = [
            message(content, dst_node_id=node, message_type=kind, ttl=ttl)
            for node, kind, _, content in asks
        ]
        for (node, kind, site, _), pushed in zip(
            asks, self.grid.push_messages(messages), strict=True
        ):
            if pushed:
                self._asked[pushed] = _Asked(node, kind, site)
                self._wanted.put(pushed)

    def _take(self, scratch: Path, seconds: float) -> None:
        """Handle the replies that are there, or wait a moment for one."""
        for reply in self._replies(seconds):
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            if asked.kind == HELLO:
                site = self._meet(asked.node, reply)
                if self._brings(site, reply):
                    self._keep(_Asked(asked.node, UPLOAD, site), reply, scratch)
            elif asked.kind == UPLOAD:
                self._keep(asked, reply, scratch)
        self._add()

    def _brings(self, site: str, reply: Any) -> bool:
        """Whether a hello has with it what the site would be asked for now."""
        wanted = site in self._admitted and self.sites.get(site) in (None, "lost")
        here = any(asked.site == site for asked in self._files.values())
        return wanted and not here and brings_upload(reply.content)

    def _keep(self, asked: _Asked, reply: Any, scratch: Path) -> None:
        self._num_files += 1
        path = scratch / f"{self._num_files}.safetensors"
        if self._save(asked, reply, path):
            self._files[path] = asked

    def _replies(self, seconds: float) -> Iterator[Any]:
        """Those that come within a moment of the first, which is waited for."""
        with suppress(queue.Empty):
            yield self._ready.get(timeout=seconds)
            # Taken in together: each time the study's lock is taken and its ledger read.
            end = time.monotonic() + _GATHER_SECONDS
            while True:
                yield self._ready.get(timeout=max(0.0, end - time.monotonic()))

    def _meet(self, node: int, reply: Any) -> str:
        """Note which site a node is; nobody's name if it cannot be told."""
        self._next_hello[node] = self.clock() + self.settings.retry_seconds
        if reply.has_error():
            _log.warning("node %s did not say who it is: error %s", node, reply.error.code)
            return ""
        try:
            hello = unpack_hello(reply.content)
        except UploadError as error:
            reason = printable(str(read_words(reply.content).get("reason", "")), 60)
            _log.warning("node %s: %s %s", node, error, reason)
            self._nodes[node] = ""
            return ""
        if hello.site not in self._admitted:
            _log.warning("node %s is of no admitted site: %s", node, printable(hello.site, 60))
            self._nodes[node] = ""
            return ""
        self._nodes[node] = hello.site
        self._approved[node] = self._plan_digest in hello.approved
        if not self._approved[node] and self.sites.get(hello.site) in (None, "lost"):
            self.sites[hello.site] = "not approved"
            _log.warning("%s has not approved this plan", hello.site)
        return hello.site

    def _save(self, asked: _Asked, reply: Any, path: Path) -> bool:
        """Write a site's answer as a file; False where there is nothing to write."""
        site = asked.site
        if reply.has_error():
            raised = reply.error.code == _CLIENT_RAISED
            self._mark(asked, "failed" if raised else "lost")
            _log.warning("%s: error %s", site, reply.error.code)
            return False
        try:
            answer = unpack_answer(reply.content)
            if answer.upload is None:
                self._note(asked, answer)
                return False
            if answer.upload.info.site != site:
                raise UploadError("its upload is in the name of another site")
            answer.upload.save(path, answer.signature)
        except OSError:
            raise  # our disk, not the site's doing
        except Exception as error:
            # Whatever a node may send, it ends neither the round nor the others' part in it.
            known = isinstance(error, PredbayesError)
            self._mark(asked, "refused")
            _log.warning("refused: %s: %s", site, error if known else "its answer is no upload")
            return False
        return True

    def _mark(self, asked: _Asked, state: SiteState) -> None:
        """What became of a message; what another node of the site brought in stays in."""
        if state in ("refused", "failed"):
            self._spent.add(asked.node)
        if self.sites.get(asked.site) != "in":
            self.sites[asked.site] = state

    def _note(self, asked: _Asked, answer: Answer) -> None:
        """Why a site sent nothing, and when it is asked again."""
        if answer.status == "awaiting release" or answer.status == "not approved":
            self._mark(asked, answer.status)
            self._next_ask[asked.node] = self.clock() + self.settings.retry_seconds
        else:
            self._mark(asked, "failed")
        _log.info("%s: %s %s", asked.site, answer.status, answer.reason)

    def _add(self) -> bool:
        """Take files into the study, from where nothing can lose them; False if it is in use."""
        if not self._files:
            return True
        try:
            answers = list(self.study.add_all(list(self._files)))
        except StudyError as error:
            _log.debug("%s", error)  # a person's command; it is over in a moment
            return False
        for (path, asked), found in zip(self._files.items(), answers, strict=True):
            refused = isinstance(found, UploadError)
            self._mark(asked, "refused" if refused else "in")
            told = f"refused: {asked.site}: {found}" if refused else f"{asked.site}: in"
            _log.log(logging.WARNING if refused else logging.INFO, "%s", told)
            path.unlink(missing_ok=True)
        self._files.clear()
        return True

    def _add_last(self) -> None:
        """What is here when the round ends goes in, also if somebody is at work on the study."""
        end = self.clock() + _PATIENCE_SECONDS
        while not self._add() and self.clock() < end:
            time.sleep(1)

    def _acknowledge(self) -> None:
        """Tell nodes what became of their upload, and give them a moment to note it."""
        if not self.settings.ack_seconds:
            return
        told = [
            (node, ACK, site, words(state=self.sites.get(site, "")))
            for node, site in sorted(self._nodes.items())
            if self.sites.get(site) in ("in", "refused")
        ]
        self._push(told)
        end = self.clock() + self.settings.ack_seconds
        while any(a.kind == ACK for a in self._asked.values()) and self.clock() < end:
            try:
                reply = self._ready.get(timeout=max(0.0, end - self.clock()))
            except queue.Empty:
                break
            self._asked.pop(reply.metadata.reply_to_message_id, None)

    def _report(self, left: float) -> None:
        by_state: dict[str, list[str]] = {}
        for site in sorted(self._admitted):
            by_state.setdefault(self.sites.get(site, "not there"), []).append(site)
        told = "; ".join(f"{state}: {_names(names)}" for state, names in by_state.items())
        _log.info("%s; %.0f s to the deadline", told, max(0.0, left))
        self._tell(left)

    def _tell(self, left: float) -> None:
        """For `predbayes study status`."""
        states = {site: self.sites.get(site, "not there") for site in sorted(self._admitted)}
        LiveRun(states, round(max(0.0, left), 1)).save(self.study.folder)

    @contextmanager
    def _pullers(self) -> Iterator[None]:
        """Threads that pull one message each; they end with the round."""
        threads = [
            threading.Thread(target=self._pull, daemon=True)
            for _ in range(self.settings.num_threads)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()

    def _pull(self) -> None:
        while not self._stop.is_set():
            wanted = _several(self._wanted, self.settings.num_per_pull)
            try:
                found = list(self.grid.pull_messages(wanted)) if wanted else []
            except Exception as error:
                # A thread that ended would pull no more. Whether there still is a run to go on
                # with is seen where nodes are looked for, in the thread that can end it.
                _log.warning("a reply could not be pulled: %s", type(error).__name__)
                found = []
            for reply in found:
                wanted.remove(reply.metadata.reply_to_message_id)
                self._hand_over(reply)
            for message in wanted:
                self._wanted.put(message)
            if not found:
                # All messages are looked at once in a while, however many there are; but in a
                # simulation whoever looks takes the time of those who work.
                pause = self.settings.poll_seconds / (1 + self._wanted.qsize())
                self._stop.wait(max(pause, _LEAST_PAUSE_SECONDS))

    def _hand_over(self, reply: Any) -> None:
        """Give a reply to the thread that takes them in, when it has time."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._ready.put(reply, timeout=0.5)
                return


def run_study(
    grid: Any, folder: Path, settings: RoundSettings, *, finish: bool = True
) -> dict[str, SiteState]:
    """A round over a study's folder, and its result if the quorum is there."""
    if not folder.is_absolute():
        raise StudyError(f"{folder} is relative; a run needs the absolute path of its study")
    study = Study(folder)
    with one_run(folder):
        sites = Round(grid, study, settings).run()
        num_in = len(study.state().uploads)
        quorum = study.plan.rules.quorum
        if num_in < quorum:
            came = counted(num_in, "site")
            raise StudyError(f"the round ended with {came}; the plan's quorum is {quorum}")
        if finish:
            recorded, result = study.finish()
            _log.info("result %s: %s", recorded.number, result.verdict)
    return sites


def _several(items: queue.Queue[str], most: int) -> list[str]:
    """Up to so many of a queue; the first is waited for a moment."""
    found: list[str] = []
    with suppress(queue.Empty):
        found.append(items.get(timeout=0.5))
        while len(found) < most:
            found.append(items.get_nowait())
    return found


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} sites"
