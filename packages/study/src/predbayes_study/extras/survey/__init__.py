"""What sites tell of their columns before a plan is frozen, and what follows from it."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.survey",
    sections={"survey": "section:SurveyTerms"},
    rules={"review": "rules:REVIEW"},
    events={"survey": "events:SURVEYS"},
    pages={"report": "tableone:section"},
    commands={
        "site survey": "command:survey_command",
        "plan merge": "command:merge_command",
        "demo-from-nothing": "command:demo_command",
    },
)
