"""A study for the record: the reporting items of its card, and an archive without data."""

from __future__ import annotations

from predbayes_study.extra import Extra

extra = Extra(
    "predbayes_study.extras.records",
    files={"model-card.json": "tripod:render_card_data"},
    copies={"ro-crate-metadata.json": "crate:listed_digests"},
    commands={"study export": "command:export_command"},
)
