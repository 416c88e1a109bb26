"""Evaluations: how well a model predicts a site's held-out rows, as sums, and no array."""

from __future__ import annotations

from collections.abc import Mapping

from predbayes.exchange.header import Spec
from predbayes.exchange.upload import Upload
from predbayes_study.payload import EVALUATION, Payload
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import at_sites, check_evaluation


class EvaluationPayload(Payload):
    """Sums over held-out rows; `predbayes_study.result.evaluation` makes and pools them."""

    kind = EVALUATION
    permission = EVALUATION

    def arrays(self, plan: Plan) -> Mapping[str, Spec]:
        """Return none: sums are in the header."""
        del plan
        return {}

    def check(self, plan: Plan, upload: Upload, key: str) -> None:
        """Refuse sums that no honest site can have found, or that cannot be pooled."""
        del key
        check_evaluation(plan, upload.info)
        at_sites(plan, [upload.info])
