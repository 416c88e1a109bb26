"""The survey's commands: `site survey`, `plan merge`, and the demo from nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import PlanError, StudyError
from predbayes.system import quoted
from predbayes.text import printable
from predbayes_study.cli.demo import OutOption, run_here
from predbayes_study.cli.plan import PlanFile, plan_file, relative_to_plan
from predbayes_study.cli.show import (
    DEFAULT_SITE,
    DataArgument,
    SiteOption,
    say,
    say_held_back,
    show_findings,
)
from predbayes_study.cli.site import NameOption, SuggestOption, show_draft
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.extras.survey.surveyfile import Survey


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
    from predbayes_study.extras.survey.section import SurveyTerms
    from predbayes_study.site.site import Site, require_place

    own, seen = Site(site), ""
    read = predbayes_study.Plan.load(plan_file(plan))
    if read.frozen is not None:
        seen = predbayes_study.Kit.load(plan_file(plan).parent).head  # it is signed, or refused
    if suggest:
        again = f"predbayes site survey {quoted(plan)} {quoted(data)}{own.option}"
        show_draft(own, read, data, name, f"{again} --out FILE")
        return
    with own.log.during("survey", table=data.name, plan=read.digest()) as what:
        if out is None:
            raise StudyError("say where the survey goes: --out FILE, such as NAME.survey")
        require_place(out, data)
        done = write_survey(read, own.file, own.key, data, out, seen)
        what |= {"site": own.file.name, "survey": done.survey.digest(), "released": done.released}
    told, moments = done.survey, done.survey.moments
    rows = f"at least {counted(told.rows, 'row')}"
    say(f"{told.site}: {rows}, {counted(len(told.columns), 'column')}")
    asked = read.section(SurveyTerms)
    if asked is not None and asked.moments and moments is None:
        say("no sums of products: too few rows for so many, or the site's policy forbids them")
    say(f"read and sign the egress page: {done.page}")
    if done.released:
        say(f"hand over: {done.path}")
    else:
        say_held_back(done.path, own.option)


def merge_command(
    plan: PlanFile,
    surveys: Annotated[
        list[Path], typer.Argument(metavar="SURVEY...", help="What sites told: NAME.survey.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan to write.")],
    keys: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="FILE", help="A site's NAME.pub; give one for each."),
    ] = None,
    reference: Annotated[
        int, typer.Option(metavar="N", min=0, help="Draw so many synthetic reference rows.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
) -> None:
    """Propose ranges, categories and the like; say where sites disagree."""
    from predbayes.files import write_bytes
    from predbayes_study.extras.survey.merge import merge
    from predbayes_study.plan.text import dump
    from predbayes_study.rules import warning

    path, rows_path = plan_file(plan), out.with_name(f"{out.stem}-reference.csv")
    for there in (out, rows_path) if reference else (out,):
        if there.exists():
            raise PlanError(f"{there} exists already; choose another name with --out")
    told = _surveys(surveys, keys or [])
    merged = merge(predbayes_study.Plan.load(path), told)
    if reference:
        from predbayes_study.extras.survey.synthetic import with_rows

        file = relative_to_plan(rows_path, out)
        proposed, rows = with_rows(
            merged.plan, told, reference, seed, folder=path.parent, file=file
        )
        merged = replace(merged, plan=proposed)
        write_bytes(rows_path, rows.to_csv(index=False, lineterminator="\n").encode())
        say(f"wrote {rows_path}: {counted(len(rows), 'row')}, {reference:,} of them synthetic")
    text = dump(merged.plan, merged.notes)
    predbayes_study.Plan.loads(text, out.name)  # a survey may say anything, and a plan may not
    write_bytes(out, text.encode())
    show_findings(warning(doubt.text) for doubt in merged.doubts)
    rows = counted(sum(survey.rows for survey in told), "row")
    doubts = counted(len(merged.doubts), "warning")
    say(f"wrote {out}: by {counted(len(told), 'site')} and at least {rows}, {doubts}")
    if merged.doubts:
        say("next: ask the sites; what they mend needs a new survey of theirs")
    else:
        say(f"next: edit it, then predbayes plan check {quoted(out)}")


def _surveys(paths: list[Path], keys: list[Path]) -> list[Survey]:
    """Read surveys; refuse those that nobody signed, or with another key than the site's given."""
    from predbayes_study.extras.survey.surveyfile import read_survey
    from predbayes_study.trust.keyfiles import owner_of
    from predbayes_study.trust.signing import PublicKey

    known = {PublicKey.load(path).hex: owner_of(path) for path in keys}
    found = []
    for path in paths:
        survey, is_signed = read_survey(path)
        if not is_signed:
            raise StudyError(f"{path.name} is not signed: it was held back at {survey.site}")
        if known and survey.key not in known:
            raise StudyError(f"{path.name} is signed with a key that is none of those given")
        if known and known[survey.key] not in ("", survey.site):
            raise StudyError(
                f"{path.name} says that it is of {survey.site}, but is signed with the key of "
                f"{printable(known[survey.key])}"
            )
        found.append(survey)
        if not known:
            words = PublicKey(survey.key).fingerprint
            say(f"{survey.site}: signed with {words}; not compared with any key: give --key")
    return found


def demo_command(out: OutOption = Path("demo")) -> None:
    """Run a study that begins with no reference row, but with surveys."""
    from predbayes_study.extras.survey.nothing import run_from_nothing

    run_here(lambda say: run_from_nothing(out, say), labels=False)
