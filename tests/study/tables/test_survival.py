"""Times and events of a table as the targets of a plan."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from predbayes.errors import DataError, PlanError
from predbayes_study.kit.draft import draft
from predbayes_study.kit.review import Review, check
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.tables.check import site_problems
from predbayes_study.tables.coding import code_targets
from predbayes_study.tables.sitefile import SiteFile

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

        found = coded(months=["36", "37", "99"], relapse=["yes", "yes", "no"])
        assert found == [3.0, -3.0, -3.0]  # after the horizon every row is censored at it
        event, censored = coded(months=["0", "0"], relapse=["yes", "no"])
        assert 0 < event < 1e-5
        assert -1e-5 < censored < 0
        found = coded(months=["3", "", "9"], relapse=["", "yes", "no"])
        assert [value != value for value in found] == [True, True, False]
        with pytest.raises(DataError, match="relapse: the column is missing"):
            coded(months=["3"])

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
            ('task = "survival"', 'task = "regression"', "event is not for a regression"),
            ('unit = "months"', 'transform = "log"', "not for a survival"),
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
        three = self.frame.assign(three=[("a", "b", "c")[k % 3] for k in range(200)])
        for event in ("three", "died"):
            with pytest.raises(PlanError, match=event):
                draft(three, name="d", target="days", file="", event=event)
        target = draft(self.frame, name="d", target="days", file="", event="dead").plan.target
        assert (target.codes, target.event) == (("no", "yes"), "dead")
        ends = [0, *target.times]
        pairs = zip(self.frame.days, self.frame.dead, strict=True)
        events = [float(time) for time, dead in pairs if dead == "yes"]
        counts = [sum(a < t <= b for t in events) for a, b in itertools.pairwise(ends)]
        assert len(counts) == 10
        assert 7 <= min(counts) <= max(counts) <= 12

    @pytest.mark.parametrize(
        ("words", "codes"),
        [
            (("alive", "deceased"), ("alive", "deceased")),
            (("well", "dead"), ("well", "dead")),
            (("TRUE", "lost"), ("lost", "TRUE")),
            (("Died", "survived"), ("survived", "Died")),
            (("1", "2"), ("1", "2")),
            (("0", "1"), ("0", "1")),
        ],
    )
    def test_words_for_an_event_are_taken_for_it(self, words, codes):
        frame = self.frame.assign(dead=[words[k % 2] for k in range(200)])
        target = draft(frame, name="d", target="days", file="", event="dead").plan.target
        assert target.codes == codes


def patients(months, share=0.5):
    rng = np.random.default_rng(0)
    num = len(months)
    return pd.DataFrame(
        {
            "age": rng.uniform(20, 80, num).round(3).astype(str),
            "months": np.asarray(months).round(4).astype(str),
            "relapse": np.where(rng.uniform(size=num) < share, "yes", "no"),
        }
    )


class TestSiteCheck:
    def said(self, tmp_path, months):
        path = tmp_path / "rows.csv"
        patients(months).to_csv(path, index=False)
        own = SiteFile.loads("format = 1\nname = 'B'\n")
        found = site_problems(Plan.loads(PLAN), own, path, 0)
        return [one.text for one in found.findings if one.text.startswith("months")]

    @pytest.mark.parametrize(
        ("months", "said"),
        [
            (np.linspace(0.1, 40, 300), []),
            (np.linspace(0.1, 40, 300) / 12, ["within the first interval", "fewer than 5 rows"]),
            (np.linspace(0.1, 11, 300), ["second half of the horizon", "hazards"]),
            ([*np.linspace(0.1, 11, 300), 30, 31, 32, 33], ["nobody at risk"]),
            ([*np.linspace(0.1, 11, 300), 30, 31, 32, 33, 34], []),
        ],
    )
    def test_times_of_another_unit_or_follow_up_are_doubted(self, tmp_path, months, said):
        for text, words in zip(self.said(tmp_path, months), said, strict=True):
            assert words in text


class TestPlanCheck:
    def poor(self, tmp_path, months):
        patients(months, share=1.0).to_csv(tmp_path / "rows.csv", index=False)
        plan = Plan.loads(PLAN.replace("labelled = 30", 'file = "rows.csv"\nlabelled = 30'))
        found = check(Review(plan, tmp_path))
        return [one.text for one in found if "in the intervals" in one.text]

    def test_intervals_with_few_events_are_named(self, tmp_path):
        # Many events altogether.
        months = np.concatenate([np.linspace(0.1, 5.9, 200), [7, 8, 9], np.linspace(13, 35, 50)])
        (poor,) = self.poor(tmp_path, months)
        assert "fewer than 5 events of reference rows are in the intervals 6 to 12 months" in poor
        assert self.poor(tmp_path, [*months, 10, 11]) == []
