"""Running a method: one call from sites and reference rows to a `Result`.

    state = init(reference)
    each round:  every site learns, uploads are lifted and added as they arrive, finish

There is one seed. Every part of the run derives its randomness from it by an address of its own, so
a site's numbers do not depend on the other sites.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from predbayes.api.result import Result, account_of
from predbayes.errors import PredbayesError, TrainingError
from predbayes.exchange.federation import (
    Federation,
    InProcess,
    LeftOut,
    Task,
    require_federation,
    warn_of_scale,
)
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.methods.description import describe_pool, name_of, pool_of
from predbayes.methods.method import HasModel, Method, require_method
from predbayes.methods.pooled import Pooled
from predbayes.progress import Callback, Event, listening, tell
from predbayes.seeding import generator
from predbayes.summand import Summand, fold

State = TypeVar("State")
Total = TypeVar("Total", bound=Summand)

_log = logging.getLogger(__name__)


def run(
    method: Method[State, Total],
    sites: Mapping[str, Any] | Federation,
    reference: ReferenceRows | tuple[Any, Any],
    *,
    seed: int = 0,
    num_rounds: int = 1,
    calibrate: Literal["labels", "sites"] = "labels",
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result[State]:
    """Run a method over sites and return its result.

    Args:
        method: Such as ``Distilled(Pooled(learner), student=network)``.
        sites: Rows by site, or a `Federation` that reaches the sites.
        reference: The reference rows; a pair (inputs, labels) if all of them have labels.
        seed: Of everything random in the run.
        num_rounds: For methods that average weights; a pool needs one.
        calibrate: By what a student is made as sure as it should be: the reference rows' labels, if
            there are any, or rows that each site holds out, which takes one more round
            (`predbayes.methods.levelled`).
        progress: Whether to draw a bar on stderr; None is yes where stderr is a terminal.
        callbacks: Functions that are told of every `Event`: an epoch with its loss, a site's
            upload, the pool chosen, the student distilled.
    """
    if calibrate not in ("labels", "sites"):
        raise TrainingError(f"calibrate must be 'labels' or 'sites', not {calibrate!r}")
    if calibrate == "sites":
        return run(
            _levelled(method, num_rounds),
            sites,
            reference,
            seed=seed,
            num_rounds=2,
            progress=progress,
            callbacks=callbacks,
        )
    require_method(method)
    federation: Any = InProcess(sites) if isinstance(sites, Mapping | list | tuple) else sites
    require_federation(federation)
    if num_rounds < 1:
        raise TrainingError(f"a method is run for at least one round, not {num_rounds}")
    if num_rounds > 1 and isinstance(getattr(method, "method", method), Pooled):
        raise TrainingError(f"a pool needs one round; leave out num_rounds={num_rounds}")
    reference = ReferenceRows.given(reference)
    warn_of_scale("targets of the reference rows", reference.targets)
    num_rows: dict[str, int] = {}
    left_out: dict[str, str] = {}
    _log.info("run: %s, %s reference rows, seed %s", name_of(method), len(reference.inputs), seed)
    with listening(callbacks, bar=progress):
        state = method.init(reference, rng=generator(seed, "init"))
        for index in range(num_rounds):
            task = Task(method, state, reference.inputs, index, seed)
            uploads = _noted(federation.collect(task), index, num_rows, left_out)
            total = fold(_lifted(task, upload) for upload in uploads)
            state = method.finish(state, total, reference, rng=generator(seed, "finish", index))
        if state is pool_of(state) and describe_pool(state):  # a distilled one has told already
            tell(Event("pool", detail=describe_pool(state)))
    account = account_of(method, state, num_rows, reference, left_out)
    model = method.model(state) if isinstance(method, HasModel) else None
    return Result(state, account, model)


def _levelled(method: Any, num_rounds: int) -> Any:
    from predbayes.methods.levelled import Levelled

    if num_rounds != 1:
        raise TrainingError('calibrate="sites" is for methods of one round; leave num_rounds out')
    return method if isinstance(method, Levelled) else Levelled(method)


def _noted(
    arrived: Iterator[Upload | LeftOut],
    index: int,
    num_rows: dict[str, int],
    left_out: dict[str, str],
) -> Iterator[Upload]:
    """The uploads as they come; each site's rows, or why it is left out, are noted and told."""
    for upload in arrived:
        if isinstance(upload, LeftOut):
            left_out[upload.site] = upload.reason
            tell(Event("left out", who=upload.site, round=index, detail=upload.reason))
            continue
        info = upload.info
        num_rows.setdefault(info.site, info.num_rows)
        tell(Event("site", who=info.site, round=index, num_rows=info.num_rows))
        yield upload


def _lifted(task: Task, upload: Upload) -> Any:
    method: Any = task.method
    try:
        return method.lift(task.state, upload, task.inputs)
    except PredbayesError as error:
        named = upload.info.site in str(error)
        raise error if named else type(error)(f"site {upload.info.site!r}: {error}") from error
