"""Two plans that differ in one word, or one reference row, must not draw the same at a site.

Rows near to a reference row are held out first. If both plans drew alike, equal predictions would
say that the site has no row near to that one, and others that it has.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from tests.study.world import make_world

LEARNER = "[learner]\nname = 'logistic-regression'\nsplit = 'any'\n"


def test_held_out_rows_and_fits_are_drawn_by_the_whole_plan(tmp_path):
    kit = make_world(tmp_path, learner=LEARNER).kit
    other = replace(kit, plan=kit.plan.model_copy(update={"description": "another word"}))
    rng = torch.Generator().manual_seed(0)
    rows = SiteRows(torch.randn(120, kit.plan.num_inputs, generator=rng), torch.arange(120) % 3)
    out, again, elsewhere = (rows.split(one.plan, "Alpha")[1] for one in (kit, kit, other))
    assert torch.equal(out, again)
    assert not torch.equal(out, elsewhere)
    # All rows are trained on, so the two fits differ in nothing but what they draw.
    whole = [
        replace(one, plan=one.plan.model_copy(update={"learner": no_holdout(one.plan)}))
        for one in (kit, other)
    ]
    sent = [Job(one, "Alpha", rows, "logistic-regression").run()[0] for one in whole]
    assert not torch.equal(*(upload.arrays["log_probs"] for upload in sent))


def no_holdout(plan):
    return plan.learner.model_copy(update={"holdout": 0.0})
