"""The ClientApp of any method: what a user writes is the method and the site's rows.

Which site a node is comes from its own configuration, never from a message:

    site    the site's name; a simulated node without one is called by its number
    out     a folder for what it has learnt; by default in Flower's own, `$FLWR_HOME/predbayes`

What a site has learnt stays in that folder, so that being asked again, also by another run with the
same method, seed and reference inputs, only sends again. It is kept under a digest of the task and
of the site's learner and rows; those of a `DataLoader`, which may read other rows the next time,
count within one run only. Beside it are the reference inputs, which are sent once. What was learnt
for another method, seed or reference inputs is removed.

Each message starts a process at a node, so this imports no more than what learns.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import predbayes
from predbayes.arrays import as_rows
from predbayes.errors import DataError
from predbayes.exchange.federation import learn_at, require_width, with_learner
from predbayes.exchange.strict import require_site_name
from predbayes.exchange.upload import digest_of
from predbayes.files import own_folder, remove, write_whole
from predbayes.methods.method import method_digest
from predbayes.optional import require
from predbayes_flower import HELLO, UPLOAD
from predbayes_flower.apps import with_lines
from predbayes_flower.simulation import PARTITION
from predbayes_flower.task import Question, digest_of_inputs, given
from predbayes_flower.wire import LACKS_INPUTS, replying, upload_record, words
from predbayes_study.store.files import RUN_LOCK, locked

_INPUTS = "inputs"


def client_app(
    method: Any,
    rows: Callable[[Any], Any],
    *,
    learner: Callable[[Any], Any] = lambda _context: None,
) -> Any:
    """Make the ClientApp of a method: what a site does when it is asked.

    Args:
        method: The method, or a function of Flower's Context that returns it.
        rows: A function of Flower's Context that returns the site's rows: a pair (inputs, targets)
            of tensors, arrays or tables, or a loader.
        learner: A function of Flower's Context that returns what the site fits in place of the
            method's own learner; None: the method's.
    """
    app, method_of = require("flwr.clientapp", "flower").ClientApp(), given(method)

    @app.query(HELLO.partition(".")[2])  # type: ignore[untyped-decorator]
    @replying
    def hello(_message: Any, context: Any) -> Any:
        told = {"site": site_name(context), "version": predbayes.__version__}
        return words(**told, approved=True)

    @app.train(UPLOAD.partition(".")[2])  # type: ignore[untyped-decorator]
    @replying
    def upload(message: Any, context: Any) -> Any:
        context = with_lines(context)
        question, own = Question.read(message.content), method_of(context)
        if question.method != method_digest(own):
            return words(status="another method than the coordinator's: is it the same app?")
        site_learner = learner(context)
        at_site = own if site_learner is None else with_learner(own, site_learner)
        path = _learnt(question, at_site, context, rows(context))
        if path is None:
            return words(status=LACKS_INPUTS)
        return upload_record(path, run=question.run, task=question.digest)

    return app


def site_name(context: Any) -> str:
    """Return a node's site, by its own configuration."""
    own = context.node_config
    if "site" in own:
        return require_site_name(str(own["site"]))
    if PARTITION not in own:
        raise DataError("""the node has no site; start it with --node-config 'site="Basel"'""")
    width = len(str(int(own.get("num-partitions", 1)) - 1))  # names in the order of numbers
    return f"site {int(own[PARTITION]):0{width}}"


def _learnt(question: Question, method: Any, context: Any, rows: Any) -> Path | None:
    """Return the file with what a site sends; None if it cannot learn without the inputs."""
    site, rows = site_name(context), as_rows(rows)
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "predbayes"
    folder = Path(str(context.node_config.get("out") or home)) / site
    made_for = folder / question.origin[:32]
    path = made_for / f"{_key(question, method, site, rows)}.safetensors"
    own_folder(folder)
    # A message that was given up leaves its process at work, and the next one starts another:
    # it waits for the first, and then its upload is there.
    with locked(folder, RUN_LOCK, timeout=-1):
        if not path.exists():
            for other in folder.iterdir():
                if other.is_dir() and other != made_for:
                    remove(other)
            own_folder(made_for)
            inputs = _inputs(question, made_for / _INPUTS)
            if inputs is None:
                return None
            require_width(site, rows, inputs)
            upload = learn_at(site, rows, question.task(method, inputs))
            write_whole(path, upload.save)
    return path


def _inputs(question: Question, path: Path) -> Tensor | None:
    """Return the reference inputs, as they came or as they are on the disk; None: neither."""
    if question.inputs is not None:
        arrays = {_INPUTS: question.inputs.contiguous()}
        write_whole(path, lambda scratch: save_file(arrays, scratch))
        return question.inputs
    try:
        kept = load_file(path)[_INPUTS]
    except (OSError, SafetensorError, KeyError):
        return None
    return kept if digest_of_inputs(kept) == question.reference else None


def _key(question: Question, method: Any, site: str, rows: Any) -> str:
    """A digest of all that an upload depends on."""
    if isinstance(rows, tuple):
        read = digest_of("rows", {"inputs": rows[0], "targets": rows[1]})
    else:
        read = question.run
    made_of = [question.digest, method_digest(method), site, read, predbayes.__version__]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
