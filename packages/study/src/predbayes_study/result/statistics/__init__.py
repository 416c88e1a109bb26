"""What a site sends about a model, one file for each statistic.

To add a statistic, write a file with a class like those here (`statistic.Statistic`), give its
message a field in `Evaluation` and its result a field in `Evaluated`, and name it in `STATISTICS`.
A measure that is a mean over rows needs none of this: it is an entry of
`predbayes.predictive.measures`.
"""

from __future__ import annotations

from typing import Any

from predbayes_study.result.statistics.confidence import ConfidenceBins
from predbayes_study.result.statistics.coverage import CountsOfScores
from predbayes_study.result.statistics.groups import GroupCounts
from predbayes_study.result.statistics.means import MeansOfRows
from predbayes_study.result.statistics.risks import RiskCounts
from predbayes_study.result.statistics.statistic import Statistic

STATISTICS: tuple[Statistic[Any], ...] = (
    MeansOfRows(),
    ConfidenceBins(),
    RiskCounts(),
    GroupCounts(),
    CountsOfScores(),
)
"""In the order in which they are made and checked: each sees those before it."""
