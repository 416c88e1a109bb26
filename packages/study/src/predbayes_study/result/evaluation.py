"""How the model does at the sites: statistics of their held-out rows, which add up over sites.

A site that tries the model on rows of its own sends sums and counts of them, and no row: the parts
of an evaluation are the `predbayes_study.result.statistics`, and what keeps them from telling of
people is in `predbayes_study.result.statistics.disclosure`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from pydantic import ValidationError
from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import MEASURES
from predbayes_study.payloads.details import Evaluation, evaluation_of, with_evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.result.between import between_sites
from predbayes_study.result.groups import pooled_looks, words_of
from predbayes_study.result.schema import FEWEST_TO_POOL, AtSites, Evaluated
from predbayes_study.result.statistics import STATISTICS
from predbayes_study.result.statistics.disclosure import (
    DIGITS,
    Cells,
    fewest_rows,
    has_small_cell,
    rounded,
)
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of
from predbayes_study.tasks.echo import asks_for_echo, is_possible


@contextmanager
def bounded_figures() -> Iterator[None]:
    """Refuse a model in one line if a figure of it is not finite, or larger than any may be."""
    try:
        yield
    except ValidationError as error:
        raise DataError(
            "the model is so far off at these rows that a figure of it is not finite or too "
            "large; tell the coordinator"
        ) from error


def evaluate(
    plan: Plan, predictive: Predictive, targets: Tensor, model: str, inputs: Tensor | None = None
) -> Evaluation:
    """Make every statistic that may leave of a model, which its weights' digest names.

    With the rows' inputs also of the plan's groups of rows.
    """
    rows = HeldOutRows(plan, predictive, targets, inputs)
    evaluation, told = Evaluation(model=model, metrics={}), list[Cells]()
    for statistic in STATISTICS:
        with bounded_figures():
            sent = statistic.make(rows, evaluation, told)
        if sent is not None:
            evaluation = evaluation.model_copy(update={statistic.name: sent})
            told += statistic.cells(rows, sent)
    if asks_for_echo(plan) and (echo := rows.echo):
        evaluation = evaluation.model_copy(update={"echo": tuple(map(rounded, echo))})
    return evaluation


def evaluation_upload(
    plan: Plan,
    site: str,
    predictive: Predictive,
    targets: Tensor,
    model: str,
    *,
    inputs: Tensor | None = None,
) -> Upload:
    """Make what a site sends about a model; refuse where it has too few rows."""
    least = fewest_rows(plan)
    if len(targets) < least:
        raise DataError(
            f"{len(targets)} held-out rows are fewer than {least}, so nothing of them is sent"
        )
    evaluation = evaluate(plan, predictive, targets, model, inputs)
    info = with_evaluation(UploadInfo(kind="evaluation", num_rows=len(targets)), evaluation)
    return Upload(info, {}).named(site).for_plan(plan.digest())


def check_evaluation(plan: Plan, info: UploadInfo) -> None:
    """Refuse statistics that no honest site can have found, or may have sent."""
    evaluation, num_rows = evaluation_of(info), info.num_rows
    if info.class_rows is not None:
        raise UploadError("an evaluation counts no classes")
    if num_rows < fewest_rows(plan):
        raise UploadError(f"it is of fewer rows than {fewest_rows(plan)}, the least there may be")
    for statistic in STATISTICS:
        sent = getattr(evaluation, statistic.name)
        if sent is not None:
            statistic.check(plan, sent, evaluation, num_rows)
    expected = task_of(plan).num_echo(plan) if asks_for_echo(plan) else 0
    if evaluation.echo is not None and len(evaluation.echo) != expected:
        raise UploadError(f"its echo does not have the plan's {expected} numbers")
    if any(rounded(number) != number for number in evaluation.echo or ()):
        raise UploadError(f"its echo has more than {DIGITS} digits")
    if evaluation.echo and not is_possible(evaluation.echo, plan.num_outputs, num_rows):
        raise UploadError(f"its echo cannot be that of {num_rows:,} rows")


def at_sites(
    plan: Plan, received: Sequence[UploadInfo], out: Collection[str] = ()
) -> AtSites | None:
    """Return what sites found with the model, each and together; None if none has sent anything.

    Sites that are left out of the model are not asked whether they differ from the others.
    """
    sent = {info.site: (info.num_rows, evaluation_of(info)) for info in received}
    if not sent:
        return None
    pooled = _pooled(plan, list(sent.values()))
    shares = {
        name: sum(evaluation.metrics[name].total for _, evaluation in sent.values())
        for name in pooled.metrics
        if MEASURES[name].is_share
    }
    sites = tuple(_pooled(plan, [found], site) for site, found in sorted(sent.items()))
    return AtSites(
        sites=sites,
        pooled=pooled,
        between=between_sites([site for site in sites if site.site not in out]),
        group_words=(
            words_of(pooled_looks(pooled.groups), len(pooled.groups))
            if task_of(plan).compares_sums
            else ""
        ),
        public=len(sent) >= FEWEST_TO_POOL and not has_small_cell(plan, pooled.num_rows, shares),
    )


def _pooled(plan: Plan, several: Sequence[tuple[int, Evaluation]], site: str = "") -> Evaluated:
    """What one site, or several together, say of the model."""
    num_rows = sum(num for num, _ in several)
    parts = {}
    for statistic in STATISTICS:
        if site and not statistic.by_site:
            continue
        sent = [getattr(evaluation, statistic.name) for _, evaluation in several]
        parts[statistic.name] = statistic.pool(
            plan, [one for one in sent if one is not None], num_rows
        )
    return Evaluated(site=site, num_rows=num_rows, **parts)
