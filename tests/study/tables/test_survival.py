"""Times and events of a table as the targets of a plan."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from predbayes.errors import DataError, PlanError
from predbayes.study.kit.draft import draft
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.text import dump
from predbayes.study.tables.coding import code_targets

PLAN = """
format = 1
name = "relapse"
[target]
name = "months"
task = "survival"
event = "relapse"
codes = ["no", "yes"]
times = [6, 12, 36]
unit = "months"
[columns]
age = { type = "number" }
[reference]
labelled = 30
"""


def coded(**columns):
    return code_targets(Plan.loads(PLAN), pd.DataFrame(columns)).tolist()


class TestTargets:
    def test_times_are_in_intervals_and_negative_where_censored(self):
        found = coded(months=["3", "6", "9", "24"], relapse=["yes", "no", "no", "yes"])
        assert found == [0.5, -1.0, -1.5, 2.5]

    def test_after_the_horizon_every_row_is_censored_at_it(self):
        assert coded(months=["36", "37", "99"], relapse=["yes", "yes", "no"]) == [3.0, -3.0, -3.0]

    def test_a_time_of_nothing_keeps_its_sign(self):
        event, censored = coded(months=["0", "0"], relapse=["yes", "no"])
        assert 0 < event < 1e-5
        assert -1e-5 < censored < 0

    def test_a_row_without_time_or_event_has_no_target(self):
        found = coded(months=["3", "", "9"], relapse=["", "yes", "no"])
        assert [value != value for value in found] == [True, True, False]

    @pytest.mark.parametrize(
        ("months", "relapse", "why"),
        [
            ("-1", "yes", "months: 1 value negative, which no time is"),
            ("3", "perhaps", "relapse: 1 value not in the plan's list"),
            ("soon", "no", "months: 1 value that cannot be read"),
        ],
    )
    def test_refuses(self, months, relapse, why):
        with pytest.raises(DataError, match=why):
            coded(months=[months], relapse=[relapse])

    def test_names_the_column_that_is_missing(self):
        with pytest.raises(DataError, match="relapse: the column is missing"):
            coded(months=["3"])


class TestPlan:
    def test_text_loads_back(self):
        plan = Plan.loads(PLAN)
        assert Plan.loads(dump(plan)) == plan
        assert plan.num_outputs == 3
        assert plan.names == ("age", "months", "relapse")

    @pytest.mark.parametrize(
        ("line", "instead", "why"),
        [
            ("times = [6, 12, 36]", "", "needs event"),
            ("times = [6, 12, 36]", "times = [6, 36, 12]", "the least first"),
            ("times = [6, 12, 36]", "times = [0, 36]", "greater than 0"),
            ('event = "relapse"', "", "needs event"),
            ('event = "relapse"', 'event = "months"', "two columns"),
            ('event = "relapse"', 'event = "age"', "also one of the columns"),
            ('task = "survival"', 'task = "regression"', "are for a survival"),
            ('unit = "months"', 'transform = "log"', "are for a regression"),
            ("labelled = 30", 'labelled = 30\n[learner]\nname = "random-forest"', "no learner"),
            ("labelled = 30", "labelled = 30\n[measures]\nthresholds = [0.2]", "thresholds"),
        ],
    )
    def test_refuses(self, line, instead, why):
        with pytest.raises(PlanError, match=why):
            Plan.loads(PLAN.replace(line, instead))


class TestDraft:
    frame = pd.DataFrame(
        {
            "age": [str(20 + k % 50) for k in range(200)],
            "days": [str(k + 1) for k in range(200)],
            "dead": [("no", "yes")[k % 2] for k in range(200)],
        }
    )

    def test_intervals_have_about_equally_many_events(self):
        target = draft(self.frame, name="d", target="days", file="", event="dead").plan.target
        assert (target.codes, target.event) == (("no", "yes"), "dead")
        ends = [0, *target.times]
        pairs = zip(self.frame.days, self.frame.dead, strict=True)
        events = [float(time) for time, dead in pairs if dead == "yes"]
        counts = [sum(a < t <= b for t in events) for a, b in itertools.pairwise(ends)]
        assert len(counts) == 10
        assert 7 <= min(counts) <= max(counts) <= 12

    def test_refuses_three_kinds_of_events(self):
        frame = self.frame.assign(dead=[("a", "b", "c")[k % 3] for k in range(200)])
        with pytest.raises(PlanError, match="has 3 different values, and must have two"):
            draft(frame, name="d", target="days", file="", event="dead")

    def test_refuses_a_column_that_is_not_there(self):
        with pytest.raises(PlanError, match="no column 'died'"):
            draft(self.frame, name="d", target="days", file="", event="died")
