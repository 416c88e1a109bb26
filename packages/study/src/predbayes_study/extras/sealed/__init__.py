"""Sealed sums: the coordinator sees what sites sent in a sum of many sites only."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.sealed",
    sections={"sealed": "section:Sealed"},
    payloads={"masked": "payload:MaskedTerms"},
    rules={"plan": "section:RULES"},
    commands={"holder": "command:app", "study request": "command:request_command"},
)
