"""A head from moments: one model of all sites' rows, without a reference row or a label.

Sites send sums of moments of agreed features (`predbayes.learning.moments`), and nothing else. The
sum of these is that of all rows together, so the result does not depend on how rows are split: not
on the number of sites, and not on how unlike they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes.learning.local import NetworkLearner
from predbayes.learning.moments import Moments, MomentsHead, RandomFeatures
from predbayes.learning.training import Rows, gather
from predbayes.pools.pool import BOTH_FAMILIES, RoundState
from predbayes.predictive.families import Categorical, Predictive
from predbayes.seeding import draw_seed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MomentsState(RoundState):
    """The features, which everybody may see, and after the round the head."""

    features: RandomFeatures
    head: MomentsHead | None = None


@dataclass(frozen=True, slots=True)
class HeadFromMoments:
    """Bayesian least squares in random features, from sums.

    Args:
        num_classes: Classes of the targets; None for numbers, which should have about unit size,
            as inputs should.
        num_features: Random features of each scale.
        scales: Distances over which the model may bend.
    """

    num_classes: int | None = None
    num_features: int = 300
    scales: tuple[float, ...] = (1.0, 2.0, 4.0)

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> MomentsState:
        """Draw the features that sites agree on."""
        num_inputs = reference.inputs[:1].flatten(1).shape[1]
        seed = draw_seed(rng)
        return MomentsState(RandomFeatures(num_inputs, self.num_features, tuple(self.scales), seed))

    def learn(
        self, state: MomentsState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Sum the moments of the site's rows."""
        own, targets = gather(rows, rng=rng)
        features = state.features
        if len(own) < ENOUGH_ROWS * features.width:
            _log.warning(
                "%d rows for %d features: their moments give rows away; send those of %d rows or "
                "more, or of fewer features",
                *(len(own), features.width, ENOUGH_ROWS * features.width),
            )
        moments = Moments.of(features, own, targets, self.num_classes)
        return Upload(UploadInfo(kind="moments", num_rows=len(own)), moments.arrays())

    def state_arrays(self, state: MomentsState) -> dict[str, Tensor]:
        """What the features are drawn from."""
        features = state.features
        return {
            "sizes": torch.tensor([features.num_inputs, features.num_features]),
            "scales": torch.tensor(features.scales, dtype=torch.float64),
            "seed": torch.tensor(features.seed),
        }

    def state_from(self, arrays: Mapping[str, Tensor]) -> MomentsState:
        """The state with the same features."""
        num_inputs, num_features = (int(size) for size in arrays["sizes"])
        scales = tuple(float(scale) for scale in arrays["scales"])
        return MomentsState(RandomFeatures(num_inputs, num_features, scales, int(arrays["seed"])))

    def lift(self, state: MomentsState, upload: Upload, inputs: Tensor) -> Moments:
        """Return the site's sums."""
        if upload.info.kind != "moments":
            raise UploadError(f"site {upload.info.site!r} sent {upload.info.kind}, not moments")
        found = Moments.from_arrays(state.features, self.num_classes, upload.arrays)
        if found.num_rows != upload.info.num_rows:
            raise UploadError(f"site {upload.info.site!r} sent moments of another number of rows")
        return found

    def finish(
        self, state: MomentsState, total: Moments, reference: ReferenceRows, *, rng: torch.Generator
    ) -> MomentsState:
        """Fit the head, and predict the reference rows with it."""
        head = total.head()
        return replace(state, head=head, pooled=head.predict(reference.inputs))

    def model(self, state: MomentsState) -> MomentsHead:
        """Return the head."""
        if state.head is None:
            raise TrainingError("no round has been run yet, so there is no head")
        return state.head


def head_for(learner: NetworkLearner, **options: Any) -> HeadFromMoments:
    """Return the method for the family of a learner's network; the learner fits nothing."""
    likelihood = learner.network.likelihood
    if likelihood.family not in BOTH_FAMILIES:
        raise TrainingError("a head from moments is for classes and numbers")
    num_classes = likelihood.num_outputs if likelihood.family is Categorical else None
    return HeadFromMoments(num_classes, **options)
