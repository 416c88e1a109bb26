"""A survey on its way out of a site: computed, shown on its egress page, approved, signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import StudyError
from predbayes.files import remove, write_bytes
from predbayes_study.extras.survey.page import render_survey
from predbayes_study.extras.survey.surveyfile import Survey, is_survey
from predbayes_study.extras.survey.take import take_survey
from predbayes_study.plan.schema import Plan
from predbayes_study.site.policy import Asked
from predbayes_study.site.release import Approvals, require_no_promise
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import SigningKey

_HELD_BACK = "held-back-"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What `write_survey` wrote."""

    survey: Survey
    path: Path  # signed, or held back
    page: Path
    released: bool


def write_survey(plan: Plan, own: SiteFile, key: SigningKey, data: Path, out: Path) -> Surveyed:
    """Survey a site's table, and write page and file; unsigned until it may leave.

    The same table gives the same bytes, so what was approved is what a second call signs.
    """
    held_back, page = out.with_name(_HELD_BACK + out.name), out.with_name(f"{out.name}.html")
    _require_free(out, held_back, page)
    approvals = Approvals.of(own)
    policy = approvals.policy
    policy.require(Asked(leaving=("survey",)))
    require_no_promise(plan, "a survey")
    step, public = policy.least_cell(plan), key.public.hex
    survey = take_survey(plan, own, data, step=step, key=public, moments=policy.allows("moments"))
    released = approvals.may_attach(plan, survey.kind, survey.digest())
    path, other = (out, held_back) if released else (held_back, out)
    content = survey.file(key if released else None)
    write_bytes(path, content)
    remove(other)
    rendered = render_survey(plan, survey, num_bytes=len(survey.file(key)), released=released)
    write_bytes(page, rendered.encode())
    return Surveyed(survey, path, page, released)


def _require_free(out: Path, held_back: Path, page: Path) -> None:
    """Refuse to write over, or to remove, what no earlier survey left there: a key, `site.toml`."""
    taken = [path for path in (out, held_back) if path.exists() and not is_survey(path)]
    if page.exists() and not (out.exists() or held_back.exists()):
        taken.append(page)
    if taken:
        raise StudyError(
            f"--out would overwrite {taken[0]}, which is no survey; choose another name"
        )
