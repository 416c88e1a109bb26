"""What the coordinator asks each key holder for: the summed masks of the uploads that are in."""

from __future__ import annotations

from predbayes.errors import StudyError
from predbayes_study.coordinator.step import begin_step
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.sealed.masking import Request, requests_of
from predbayes_study.extras.sealed.section import Sealed


def request_sums(study: Study) -> list[Request]:
    """Return a request to each key holder, in the order of the plan.

    They are for all uploads that are in. Once a holder has opened a sum, it opens no other that
    would reveal, together with it, a sum of fewer sites than the plan's minimum.
    """
    with study.audit.during("request") as what, begin_step(study) as step:
        state, plan = step.state, study.plan
        what["uploads"] = num_in = len(state.uploads)
        sealing = plan.section(Sealed)
        if sealing is None:
            raise StudyError("the plan's sums are not sealed, so there is nobody to ask")
        quorum = plan.rules.quorum
        if num_in < quorum:
            raise StudyError(
                f"sites that are in: {num_in}; the plan's quorum is {plan.rules.quorum}"
            )
        sent = ((study.read(accepted), accepted.key) for accepted in state.in_order)
        return requests_of(plan.digest(), sent, sealing.recipients)
