"""`predbayes site survey`: tell what columns are like, before there is a plan to train for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import predbayes_study
from predbayes.errors import StudyError
from predbayes.system import quoted
from predbayes_study.cli.plan import PlanFile, plan_file
from predbayes_study.cli.show import DataArgument, SiteOption, require_place, say
from predbayes_study.cli.site_check import (
    DEFAULT_SITE,
    NameOption,
    SuggestOption,
    draft_site,
    site_log,
    site_option,
)
from predbayes_study.cli.site_train import held_back, read_key, read_site
from predbayes_study.wording import counted


def survey_command(
    plan: PlanFile,
    data: DataArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The survey, for the coordinator.")
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    name: NameOption = None,
    suggest: SuggestOption = False,
) -> None:
    """Tell what your columns are like, in a file to approve."""
    from predbayes_study.extras.survey.leaving import write_survey

    with site_log(site).during("survey", table=data.name, suggest=suggest or None) as what:
        read = predbayes_study.Plan.load(plan_file(plan))
        what["plan"] = read.digest()
        if suggest:
            again = f"predbayes site survey {quoted(plan)} {quoted(data)}{site_option(site)}"
            draft_site(read, data, site, name, f"{again} --out FILE")
            return
        if out is None:
            raise StudyError("say where the survey goes: --out FILE, such as NAME.survey")
        require_place(out, data)
        own = read_site(site)
        done = write_survey(read, own, read_key(own), data, out)
        what |= {"site": own.name, "survey": done.survey.digest(), "released": done.released}
    told, moments = done.survey, done.survey.moments
    rows = f"at least {counted(told.rows, 'row')}"
    say(f"{told.site}: {rows}, {counted(len(told.columns), 'column')}")
    if read.survey is not None and read.survey.moments and moments is None:
        say("no sums of products: too few rows for so many, or the site's policy forbids them")
    say(f"read and sign the egress page: {done.page}")
    say(f"hand over: {done.path}" if done.released else held_back(done.path, site))
