"""Surveys as attachments of a study: what the coordinator does with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predbayes.errors import StudyError
from predbayes_study.attachments import Attachment
from predbayes_study.extras.survey.surveyfile import (
    MAX_BYTES,
    begins_survey,
    misfit,
    read_survey,
)
from predbayes_study.plan.schema import Plan


class Surveys:
    """The kind of attachment (`attachments.AttachmentKind`)."""

    max_bytes = MAX_BYTES

    def begins(self, content: bytes) -> bool:
        """Return whether a file that begins so is a survey."""
        return begins_survey(content)

    def read(self, path: Path) -> Attachment:
        """Read a survey; refuse one that was altered after it was signed."""
        survey, is_signed = read_survey(path)
        digest, about = survey.digest(), (survey.site, survey.key, is_signed, survey.plan)
        return Attachment(*about, digest, survey.rows, survey, survey.seen)

    def check(self, plan: Plan, attachment: Attachment) -> None:
        """Refuse a survey of other columns than the plan's, and one that makes no table."""
        from predbayes_study.extras.survey.tableone import table_one

        if problem := misfit(plan, attachment.content):
            raise StudyError(problem)
        try:
            table_one(plan, [attachment.content], 1)
        except (ValueError, ArithmeticError) as error:
            raise StudyError(
                "its figures make no table; ask the site to look at what its survey tells"
            ) from error

    def conclude(
        self, plan: Plan, attachments: Sequence[Attachment], num_sites: int
    ) -> dict[str, Any]:
        """Return Table 1."""
        from predbayes_study.extras.survey.tableone import table_one

        table = table_one(plan, [one.content for one in attachments], num_sites)
        return table.model_dump(mode="json")


SURVEYS = Surveys()
