"""A survey on its way out of a site: computed, shown on its egress page, approved, signed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from predbayes.errors import StudyError
from predbayes.files import remove, write_bytes
from predbayes_study.extras.survey.section import SurveyTerms
from predbayes_study.extras.survey.surveyfile import CategoryTold, NumberTold, Survey, is_survey
from predbayes_study.extras.survey.take import BEYOND, BOUND, ROWS_PER_SUM, take_survey
from predbayes_study.plan.schema import Plan
from predbayes_study.report.pages import render_page
from predbayes_study.result.schema import FEWEST_TO_POOL
from predbayes_study.site.policy import Asked
from predbayes_study.site.release import Approvals, Leaving, require_no_promise
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import PublicKey, SigningKey, fingerprint


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What `write_survey` wrote."""

    survey: Survey
    path: Path  # signed, or held back
    page: Path
    released: bool


def write_survey(
    plan: Plan, own: SiteFile, key: SigningKey, data: Path, out: Path, seen: str = ""
) -> Surveyed:
    """Survey a site's table, and write page and file; unsigned until it may leave.

    The same table gives the same bytes, so what was approved is what a second call signs. For this
    the head is the kit's, and not the newest that the site has seen.
    """
    held_back, page = out.with_name(f"held-back-{out.name}"), out.with_name(f"{out.name}.html")
    # Write over, and remove, nothing but what an earlier survey left: no key, no `site.toml`.
    taken = [path for path in (out, held_back) if path.exists() and not is_survey(path)]
    if page.exists() and not (out.exists() or held_back.exists()):
        taken.append(page)
    if taken:
        raise StudyError(
            f"--out would overwrite {taken[0]}, which is no survey; choose another name"
        )
    approvals = Approvals.of(own)
    approvals.recall(out.parent)
    policy = approvals.policy
    policy.require(Asked(leaving=("survey",)))
    require_no_promise(plan, "a survey")
    step, public = policy.least_cell(plan), key.public.hex
    moments = not policy.problems(Asked(leaving=("moments",)))
    survey = take_survey(plan, own, data, step=step, key=public, moments=moments, seen=seen)
    manual = plan.upload.release == "manual"
    kinds = ("survey",) if survey.moments is None else ("survey", "moments")
    leaving = Leaving(
        what="survey", digest=survey.digest(), plan=plan.digest(), kinds=kinds, manual=manual
    )
    released = not approvals.why_not(leaving)
    path, other = (out, held_back) if released else (held_back, out)
    content = survey.file(key if released else None)
    write_bytes(path, content)
    remove(other)
    if released:
        approvals.note_released(leaving, path, content, held_back)
    rendered = render_survey(plan, survey, num_bytes=len(survey.file(key)), released=released)
    write_bytes(page, rendered.encode())
    return Surveyed(survey, path, page, released)


# The egress page: everything that would leave, and what it could reveal


class Line(NamedTuple):
    """What is told of one column."""

    name: str
    missing: str
    figures: str
    mapped: str


class SumLine(NamedTuple):
    """Sums of one feature: its own, and with those before it and itself."""

    name: str
    total: str
    products: str


def render_survey(plan: Plan, survey: Survey, *, num_bytes: int, released: bool) -> str:
    """Render the egress page of a survey.

    Args:
        plan: That it answers.
        survey: All of it.
        num_bytes: Size of its file.
        released: Whether it may leave; otherwise the page says that it is held back.
    """
    asked = plan.section(SurveyTerms)
    return render_page(
        "survey.html.j2",
        {},
        plan=plan,
        survey=survey,
        asks_sums=asked is not None and asked.moments,
        lines=list(_lines(survey)),
        sums=list(_sums(survey)),
        num_bytes=num_bytes,
        released=released,
        beyond=BEYOND,
        bound=BOUND,
        rows_per_sum=ROWS_PER_SUM,
        fewest_sites=FEWEST_TO_POOL,
        key_fingerprint=PublicKey(survey.key).fingerprint,
        digest=survey.digest(),
        fingerprint=fingerprint(survey.digest()),
    )


def _lines(survey: Survey) -> Iterator[Line]:
    def shown(count: int | None) -> str:
        """A count stands for itself and the next few, because it is rounded down."""
        return f"fewer than {survey.step}, or not told" if count is None else f"{count:,}"

    for name, told in survey.columns.items():
        if isinstance(told, CategoryTold):
            rows = {**told.words, **told.unlisted, "all other words": told.other}
            words = "; ".join(f"{word}: {shown(count)}" for word, count in rows.items())
            yield Line(name, shown(told.missing), words, "words")
            continue
        values = ", ".join(f"{level} %: {value:.6g}" for level, value in told.quantiles.items())
        parts = [f"quantiles {values}" if values else "no quantile: too few values"]
        parts += [f"{c} (a code for missing?): {rows:,} rows" for c, rows in told.codes.items()]
        if told.unreadable is not None:
            parts.append(f"no number: {told.unreadable:,} rows")
        parts.append(f"decimals: {told.decimals}")
        yield Line(name, shown(told.missing), "; ".join(parts), _mapped(told))


def _mapped(told: NumberTold) -> str:
    unit = told.unit or "no unit stated"
    if (told.factor, told.offset) == (1.0, 0.0):
        return f"{unit}, as it is"
    return f"{unit}, by times {told.factor:.6g} plus {told.offset:.6g}"


def _sums(survey: Survey) -> Iterator[SumLine]:
    if survey.moments is None:
        return
    told = survey.moments
    for feature, total, products in zip(told.features, told.sums, told.products, strict=True):
        name = {
            "word": f"{feature.column} = {feature.word}",
            "missing": f"{feature.column} is missing",
            "value": f"({feature.column} − {feature.centre:.6g}) / {feature.scale:.6g}",
        }[feature.kind]
        yield SumLine(name, f"{total:g}", " ".join(f"{number:g}" for number in products))
