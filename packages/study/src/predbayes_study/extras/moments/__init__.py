"""Sums of moments: sites send sums over their rows, of which the model is made."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.moments",
    sections={"moments": "section:Moments"},
    payloads={"moments": "payload:MomentSums"},
    rules={"review": "rules:REVIEW", "policy": "rules:POLICY"},
)
