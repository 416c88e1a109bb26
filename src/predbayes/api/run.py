"""Running a method: one call from sites and reference rows to a `Result`.

    state = init(reference)
    each round:  every site learns, uploads are lifted and added as they arrive, finish

There is one seed. Every part of the run derives its randomness from it by an address of its own, so
a site's numbers do not depend on the other sites.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from predbayes.api.result import Result, account_of
from predbayes.errors import TrainingError
from predbayes.exchange.federation import Federation, InProcess, Task, require_federation
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.methods.description import describe_pool, pool_of
from predbayes.methods.method import HasModel, Method, require_method
from predbayes.methods.pooled import Pooled
from predbayes.progress import Callback, Event, listening, tell
from predbayes.seeding import generator
from predbayes.summand import Summand, fold

State = TypeVar("State")
Total = TypeVar("Total", bound=Summand)

_log = logging.getLogger(__name__)
_FAR_OFF = 10.0  # mean or spread of targets, or its inverse, that no setting here is made for


def run(
    method: Method[State, Total],
    sites: Mapping[str, Any] | Federation,
    reference: ReferenceRows | tuple[Any, Any],
    *,
    seed: int = 0,
    num_rounds: int = 1,
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
        progress: Whether to draw a bar on stderr; None is yes where stderr is a terminal.
        callbacks: Functions that are told of every `Event`: an epoch with its loss, a site's
            upload, the pool chosen, the student distilled.
    """
    require_method(method)
    federation: Any = InProcess(sites) if isinstance(sites, Mapping | list | tuple) else sites
    require_federation(federation)
    _require_rounds(method, num_rounds)
    reference = ReferenceRows.given(reference)
    _warn_of_scale(reference)
    num_rows: dict[str, int] = {}
    with listening(callbacks, bar=progress):
        state = method.init(reference, rng=generator(seed, "init"))
        for index in range(num_rounds):
            task = Task(method, state, reference.inputs, index, seed)
            uploads = _noted(federation.collect(task), index, num_rows)
            total = fold(method.lift(state, upload, reference.inputs) for upload in uploads)
            state = method.finish(state, total, reference, rng=generator(seed, "finish", index))
        if state is pool_of(state) and describe_pool(state):  # a distilled one has told already
            tell(Event("pool", detail=describe_pool(state)))
    account = account_of(method, state, num_rows, reference)
    model = method.model(state) if isinstance(method, HasModel) else None
    return Result(state, account, model)


def _noted(uploads: Iterator[Upload], index: int, num_rows: dict[str, int]) -> Iterator[Upload]:
    """The uploads as they come; how many rows each site has is written down and told."""
    for upload in uploads:
        info = upload.info
        num_rows[info.site] = info.num_rows
        tell(Event("site", who=info.site, round=index, num_rows=info.num_rows))
        yield upload


def _require_rounds(method: object, num_rounds: int) -> None:
    if num_rounds < 1:
        raise TrainingError(f"a method is run for at least one round, not {num_rounds}")
    if num_rounds > 1 and isinstance(getattr(method, "method", method), Pooled):
        raise TrainingError(f"a pool needs one round; leave out num_rounds={num_rounds}")


def _warn_of_scale(reference: ReferenceRows) -> None:
    targets = reference.targets
    if not targets.is_floating_point() or len(targets) < 2:
        return
    mean, std = float(targets.mean()), float(targets.std())
    if not (abs(mean) < _FAR_OFF and 1 / _FAR_OFF < std < _FAR_OFF):
        _log.warning(
            "targets have mean %.3g and spread %.3g where settings assume about 0 and 1; "
            "standardise them, or use pb.FederatedRegressor, which does",
            mean,
            std,
        )
