"""What speaks against the sums of moments that a site sent beside its predictions.

    copy           they are the sums of another site
    inconsistent   they do not say what its predictions say. Both are of the same rows, so that the
                   model of its sums alone and its predictions are about as far from each other as
                   at the median site: with d_k the mean squared Hellinger distance of the two over
                   reference rows with and without labels, it is

                       d_k > max( 3 median_j d_j,  median_j d_j + 0.04 )

    harmful        without them the model of all sums is better by the labels (`study.result.head`)

Where no label is, a site's predictions are compared with those of the others
(`study.result.comparison`), and its sums with its predictions: neither can lie there alone.

The first two are left out of the head in any case, and the third if the plan leaves sites out that
screening finds. The site's predictions are judged by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from torch import Tensor

from predbayes.exchange.header import SUMS
from predbayes.exchange.upload import Upload, digest_of
from predbayes.learning.moments import Moments
from predbayes.predictive.families import Predictive
from predbayes.study.result.copies import hellinger
from predbayes.study.result.head import fitted
from predbayes.study.result.schema import Estimate, Finding

_FAR, _FARTHER = 3.0, 0.04


@dataclass(frozen=True, slots=True)
class SummedSite:
    """What is kept of a site's sums once they are added."""

    digest: str
    distance: float  # of the model of these sums alone from its predictions

    @classmethod
    def of(cls, upload: Upload, part: Moments, inputs: Tensor, predicted: Predictive) -> SummedSite:
        """Return it for the sums of an upload, and what it predicts for some inputs."""
        digest = digest_of("", {SUMS: upload.arrays[SUMS]})
        head = fitted(part).predict(inputs)
        return cls(digest, float(hellinger(head, predicted).mean()))


def against_sums(sites: Mapping[str, SummedSite | None]) -> dict[str, Finding]:
    """Return what is found against sums by site, without any label."""
    sent = {site: summed for site, summed in sites.items() if summed is not None}
    first: dict[str, str] = {}
    found = {}
    for site, summed in sent.items():
        if (other := first.setdefault(summed.digest, site)) != site:
            found[site] = _left_out("copy", f"Its sums are those of {other}")
    usual = median_low([summed.distance for summed in sent.values()] or [0.0])
    for site, summed in sent.items():
        if site not in found and summed.distance > max(_FAR * usual, usual + _FARTHER):
            found[site] = _left_out(
                "inconsistent",
                f"Its sums do not say what its predictions say: their distance is "
                f"{summed.distance:.2f} (squared Hellinger), where the median site has {usual:.2f}",
            )
    return found


def harmful_sums(changed: Estimate, *, leaves_out: bool) -> Finding:
    """Return the finding of sums without which the head is better."""
    text = f"Without its sums their model is better by {-changed.value:.3f} nats per row"
    if leaves_out:
        return _left_out("harmful", text)
    return Finding(kind="harmful", text=f"{text}; the plan only asks to report it.")


def _left_out(kind: Literal["copy", "inconsistent", "harmful"], why: str) -> Finding:
    return Finding(kind=kind, text=f"{why}: they are left out, and its predictions stay.")
