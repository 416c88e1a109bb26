"""Differential privacy of the people at a site, which a plan promises."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.privacy",
    sections={"privacy": "section:Privacy"},
    payloads={"private": "payload:PrivatePredictions"},
)
