"""An attack on what a site would send, at the site."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.audit",
    measurements={"audit": "leakage:audited"},
    commands={"site audit": "command:audit_command"},
)
