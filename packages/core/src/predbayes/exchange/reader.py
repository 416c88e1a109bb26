"""The one place where an upload becomes what a site predicts.

A site sends its posterior samples, which the coordinator runs on the reference inputs; or it runs
them itself and sends the predictions. Either way the coordinator has one predictive per site
(Paper: alg:dBpredbayes, step 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Network, NetworkLearner
from predbayes.predictive.families import Predictive


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads uploads of predictions, and with a network uploads of its weights.

    Args:
        network: What weights are of.
        device: Where to run it.
    """

    network: Network | None = None
    device: str = "cpu"

    @classmethod
    def of(cls, learner: object) -> Reader:
        """Return a reader with the learner's network, if it has one."""
        if isinstance(learner, NetworkLearner):
            return cls(learner.network, learner.device)
        return cls()

    def read(self, upload: Upload, inputs: Tensor) -> Predictive:
        """Return a site's predictives on the reference inputs, whichever way they came."""
        if upload.info.kind == "predictions":
            predictive = upload.predictive()
        elif self.network is not None:
            predictive = self.network.predict(upload.samples(), inputs, self.device)
        else:
            raise TrainingError("weights can only be read with the network that they are of")
        if len(predictive) != len(inputs):
            raise UploadError(
                f"site {upload.info.site!r} predicted {len(predictive)} rows; there are "
                f"{len(inputs)} reference inputs"
            )
        return predictive
