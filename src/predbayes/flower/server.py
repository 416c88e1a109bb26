"""The server's half: one round over nodes that come, go, and come back.

Flower gives one reply to a message, forgets the replies of nodes that left, and ends the run when
its own server restarts. So the round owns its reliability: `flower.round` decides what to do next,
`flower.post` sends messages and pulls replies, and `Round` stands between them and the study. Each
upload is a file in the study as soon as it is here, checked as any other file is.

All that must survive is in the study's folder. A new run over the same folder goes on: sites that
are in are not asked.
"""

from __future__ import annotations

import logging
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from predbayes.errors import PredbayesError, StudyError, UploadError
from predbayes.exchange.header import Signature, from_metadata
from predbayes.exchange.sealed import read_envelope
from predbayes.exchange.upload import Upload
from predbayes.flower import ACK, HELLO, events
from predbayes.flower.bounds import Bounds
from predbayes.flower.post import Post
from predbayes.flower.round import RoundSettings, RoundState
from predbayes.flower.wire import read_upload, read_words, sealed_content, words
from predbayes.study.coordinator.intake import Intake
from predbayes.study.coordinator.run_status import RunStatus, one_run
from predbayes.study.coordinator.study import Study
from predbayes.study.wording import counted
from predbayes.text import printable

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60  # with a command that is at work on the study
_CLIENT_RAISED = 2  # Flower's error code; most others mean that the message or its node was lost
_NOT_TRUSTED = 7


@dataclass(slots=True)
class Round:
    """One round over a Flower grid: takes the sites' signed uploads into a study.

    What a site does is said by the plan that it approved, and by nothing else. So a round is no
    `Federation`, which would hand a method's own task to the sites.
    """

    grid: Any
    study: Study
    settings: RoundSettings = field(default_factory=RoundSettings)
    _state: RoundState = field(init=False)
    _post: Post = field(init=False)
    _plan_digest: str = field(init=False)
    _bounds: Bounds = field(init=False)
    _scratch: Path = field(init=False)
    _files: dict[Path, events.Take] = field(default_factory=dict)  # uploads not in the study yet

    def run(self) -> dict[str, events.SiteState]:
        """Ask, take, ask again; return the state of every site."""
        self._begin()
        with self._post.open(), tempfile.TemporaryDirectory() as scratch:
            self._scratch = Path(scratch)
            while self._goes_on():
                wait = min(self._state.left, self.settings.poll_seconds)
                for sent, reply in self._post.replies(wait):
                    self._handle(self._event(sent, reply), reply)
                self._add()
            self._add_last()
            self._notice()
            self._report()
            self._acknowledge()
        return dict(self._state.sites)

    def _begin(self) -> None:
        self._plan_digest = self.study.plan.digest()
        admitted = frozenset(self.study.state().keys)
        self._state = RoundState(admitted, self.settings, time.monotonic())
        self._bounds = Bounds(Intake.of(self.study.plan).max_bytes)
        self._post = Post(self.grid, self.settings, self._bounds)
        self._notice()
        self._save_status()

    def _goes_on(self) -> bool:
        """Let time pass; False if the round has ended."""
        self._handle(events.Time(time.monotonic()))
        return not self._state.ended

    def _handle(self, event: events.Event, reply: Any = None) -> None:
        """Tell the state of an event, and do what follows."""
        actions = self._state.on(event)
        self._send([action for action in actions if isinstance(action, events.Send)])
        for action in actions:
            match action:
                case events.Take():
                    self._keep(action, reply)
                case events.Warn(text):
                    _log.warning("%s", text)
                case "look":
                    self._handle(events.Nodes(frozenset(self.grid.get_node_ids())))
                case "report":
                    self._notice()
                    self._report()

    def _send(self, sends: list[events.Send]) -> None:
        asking = words(plan=self._plan_digest) if sends else None
        states = self._state.sites
        contents = [words(state=states[s.site]) if s.kind == ACK else asking for s in sends]
        for send in self._post.send(list(zip(sends, contents, strict=True))):
            self._handle(events.Closed(send.node, send.kind))

    def _event(self, sent: events.Send, reply: Any) -> events.Event:
        """Return what a reply says."""
        if isinstance(reply, UploadError):
            _log.warning("refused: %s: %s", sent.site or f"node {sent.node}", reply)
            if sent.kind == HELLO:
                return events.Introduced(sent.node)
            return events.Answered(sent.node, "refused")
        if sent.kind == HELLO:
            return self._introduced(sent.node, reply)
        return events.Answered(sent.node, _outcome(sent.site, reply))

    def _introduced(self, node: int, reply: Any) -> events.Introduced:
        if reply.has_error():
            _log.warning("node %s did not say who it is: %s", node, _error(reply))
            return events.Introduced(node)
        told = read_words(reply.content)
        site = str(told.get("site", ""))
        if site not in self._state.admitted:
            said = printable(f"{site} {told.get('reason', '')}", 60)
            _log.warning("node %s is of no admitted site: %s", node, said)
            return events.Introduced(node)
        brings = told.get("status") == "upload"
        return events.Introduced(node, site, told.get("approved") is True, brings)

    def _keep(self, take: events.Take, reply: Any) -> None:
        """Write an upload as a file, for the study to check."""
        path = self._scratch / f"{len(self._files)}.safetensors"
        try:
            site = _write_upload(reply.content, self._bounds.upload, path)
            if site != take.site:
                raise UploadError("its upload is in the name of another site")
        except OSError:
            raise  # our disk, not the site's doing
        except Exception as error:
            # Whatever a node may send, it ends neither the round nor the others' part in it.
            known = isinstance(error, PredbayesError)
            self._decide(take, error if known else UploadError("its answer is no upload"))
        else:
            self._files[path] = take

    def _add(self) -> bool:
        """Take files into the study, from where nothing can lose them; False if it is in use."""
        if not self._files:
            return True
        try:
            answers = list(self.study.add_all(list(self._files), uploads_only=True))
        except StudyError as error:
            _log.debug("%s", error)  # a person's command; it is over in a moment
            return False
        for (path, take), answer in zip(self._files.items(), answers, strict=True):
            self._decide(take, answer if isinstance(answer, UploadError) else None)
            path.unlink(missing_ok=True)
        self._files.clear()
        return True

    def _decide(self, take: events.Take, refusal: Exception | None) -> None:
        if refusal is None:
            _log.info("%s: in", take.site)
        else:
            _log.warning("refused: %s: %s", take.site, refusal)
        self._handle(events.Decided(take.node, take.site, accepted=refusal is None))

    def _add_last(self) -> None:
        """Add what is here when the round ends, also if a command is at work on the study."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._add() and time.monotonic() < end:
            time.sleep(1)

    def _notice(self) -> None:
        """Note which sites are in, also those that came as a file meanwhile."""
        self._handle(events.InStudy(frozenset(self.study.state().uploads)))

    def _acknowledge(self) -> None:
        """Tell nodes what became of their upload, and give them a moment to note it."""
        self._handle("closing")
        end = time.monotonic() + self.settings.ack_seconds
        while self._state.untold and (left := end - time.monotonic()) > 0:
            for sent, _ in self._post.replies(left):
                if sent.kind == ACK:
                    self._handle(events.Closed(sent.node, ACK))

    def _report(self) -> None:
        by_state: dict[str, list[str]] = {}
        for site, state in self._state.standing().items():
            by_state.setdefault(state, []).append(site)
        told = "; ".join(f"{state}: {_names(names)}" for state, names in by_state.items())
        _log.info("%s; %.0f s to the deadline", told, self._state.left)
        self._save_status()

    def _save_status(self) -> None:
        """Write how the round stands, for `predbayes study status`."""
        RunStatus(self._state.standing(), round(self._state.left, 1)).save(self.study.folder)


def run_study(
    grid: Any, folder: Path, settings: RoundSettings, *, finish: bool = True
) -> dict[str, events.SiteState]:
    """Run a round over a study's folder, and make the result if the quorum is there."""
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


def _write_upload(content: Any, most_bytes: int, path: Path) -> str:
    """Write what came as the file that it is at the site, and return whose it says that it is."""
    metadata, arrays = read_upload(content, most_bytes)
    sealed = None if metadata else sealed_content(arrays)
    if sealed is not None:
        path.write_bytes(sealed)
        return read_envelope(path).site
    upload, signature = unpack_upload(content, most_bytes)
    if upload.info.kind == "evaluation":
        raise UploadError("its answer is an evaluation and no upload")
    upload.save(path, signature)
    return upload.info.site


def unpack_upload(content: Any, most_bytes: int) -> tuple[Upload, Signature | None]:
    """Read an upload and its signature from a record, whoever sent it."""
    metadata, arrays = read_upload(content, most_bytes)
    info, signature = from_metadata(metadata, "a node's answer")
    return Upload(info, {name: torch.from_numpy(a) for name, a in arrays.items()}), signature


def _outcome(site: str, reply: Any) -> events.Outcome:
    """Return what a site answered when it was asked for its upload."""
    if reply.has_error():
        _log.warning("%s: %s", site, _error(reply))
        return "failed" if reply.error.code == _CLIENT_RAISED else "lost"
    told = read_words(reply.content)
    status = told.get("status")
    if status == "upload":
        return "upload"
    _log.info("%s: %s", site, printable(f"{status} {told.get('reason', '')}"))
    return status if status in ("not approved", "awaiting release") else "failed"


def _error(reply: Any) -> str:
    code = int(reply.error.code)
    return "it does not trust this app" if code == _NOT_TRUSTED else f"error {code}"


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} sites"
