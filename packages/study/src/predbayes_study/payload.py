"""What leaves a site: one `Payload` for each kind of upload, in a file of its own.

    arrays      names, types and shapes of what a plan asks for
    permission  what a site's policy calls it
    in_words    what leaves, in a line; `meanings` says it of each array
    check       refuse, at the coordinator, what no honest site can have sent

Models are made of some kinds (`ModelPayload`):

    why_refused what would be told of single rows; it is asked before anything is fitted
    hold_out    which rows are held out, if not those that the plan's seed draws
    make        fit a model to a site's rows, and make the upload
    conclude    lift and fold all uploads, and make a model and its result of their sum

`predictions` and `evaluation` are in `predbayes_study.payloads`; extras add others. Nothing else in
a study branches on a kind. An implementation is imported when it is asked for, because a command
must not load what it does not use.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from predbayes.errors import UploadError
from predbayes_study import extra

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from predbayes.exchange.header import Spec
    from predbayes.exchange.upload import Upload
    from predbayes.learning.local import Network, Predictor
    from predbayes_study.plan.schema import Plan
    from predbayes_study.result.analysis import Conclusion, Evidence
    from predbayes_study.site.fitting import Job
    from predbayes_study.site.policy import SitePolicy
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.tables.sitefile import SiteFile

EVALUATION = "evaluation"
"""The kind of what a site says about a model, which the ledger has a step of its own for."""

_OWN = {
    "predictions": "predbayes_study.payloads.predictions:Predictions",
    EVALUATION: "predbayes_study.payloads.evaluation:EvaluationPayload",
}


class Payload(ABC):
    """One kind of upload."""

    kind: ClassVar[str]
    permission: ClassVar[str]

    @abstractmethod
    def arrays(self, plan: Plan) -> Mapping[str, Spec]:
        """Return the names, types and shapes of the arrays that a plan asks for."""

    @abstractmethod
    def check(self, plan: Plan, upload: Upload, key: str) -> None:
        """Refuse an upload that no honest site can have sent, or that cannot be used.

        Args:
            plan: Plan of the study.
            upload: Its header, signature, and the types and shapes of its arrays are checked.
            key: The public key of its site.
        """


class ModelPayload(Payload):
    """A kind of upload that models are made of."""

    predicts: ClassVar[bool] = True
    """Whether it tells what a site's model says of the reference rows."""

    words: ClassVar[str] = ""
    """Template of the blocks of report, model card and egress page that it words otherwise."""

    masks: ClassVar[bool] = False
    """Whether nobody reads a single upload, but sums of many sites alone."""

    again: ClassVar[str] = ""
    """What a second upload of nearly the same rows reveals beside the first, in sentences.

    A person at the site is asked before it is made. Empty: no more than each alone.
    """

    refusals_tell: ClassVar[bool] = True
    """Whether a site may refuse by what it found in its rows; otherwise no row decides that."""

    @abstractmethod
    def in_words(self, plan: Plan) -> str:
        """Return what leaves a site, in a line for whoever approves it."""

    @abstractmethod
    def meanings(self, plan: Plan, num_trained: int) -> Mapping[str, str]:
        """Return what each array means, by name.

        Args:
            plan: Plan of the study.
            num_trained: Rows that the site trained on.
        """

    def why_refused(
        self, plan: Plan, rows: tuple[Tensor, Tensor], least: int, people: Tensor | None = None
    ) -> str:
        """Return why nothing about these rows may leave; "" if it may.

        Args:
            plan: Plan of the study.
            rows: Inputs and targets to train on.
            least: Rows, or people, that a group has at least.
            people: Number of the person of each row, where that is known, (N,).
        """
        del plan, rows, least, people
        return ""

    def secret(self, own: SiteFile, *, may_make: bool = True) -> bytes:
        """Return what a site draws from that it alone knows; empty if it needs nothing like that.

        Args:
            own: What the site says of itself.
            may_make: Whether to make a secret if there is none, and return no stand-in.
        """
        del own, may_make
        return b""

    def usable(self, plan: Plan, frame: pd.DataFrame) -> Tensor | None:
        """Return which rows count, (N,), None for all; refuse a table that lacks a column.

        Args:
            plan: Plan of the study.
            frame: A site's table in the plan's columns.
        """
        del plan, frame
        return None

    def hold_out(self, plan: Plan, site: str, rows: SiteRows) -> Tensor | None:
        """Return which rows are held out, (N,); None if the plan's seed draws them."""
        del plan, site, rows
        return None

    def holdout_rule(self, plan: Plan) -> str:
        """Return by which rule `hold_out` does so, in a few words."""
        del plan
        return ""

    def shown(self, plan: Plan, upload: Upload, num_trained: int) -> Mapping[str, Any]:
        """Return what the page on what leaves says of the arrays beside their meanings, by name.

        Args:
            plan: Plan of the study.
            upload: What leaves.
            num_trained: Rows that the site trained on.
        """
        del plan, upload, num_trained
        return {}

    def reserve(self, job: Job, *, table: str, policy: SitePolicy, folder: Path) -> None:
        """Write into the books of a site what its upload will promise, before it is made.

        Args:
            job: What is to be made.
            table: Name by which the books know the rows.
            policy: The site's.
            folder: The site's, where the books are.
        """
        del job, table, policy, folder

    @abstractmethod
    def make(self, job: Job) -> tuple[Upload, Predictor]:
        """Fit a model to a site's rows; return what leaves, and the model, which stays."""

    @abstractmethod
    def conclude(self, evidence: Evidence) -> Conclusion:
        """Return the model that uploads give, and the result that tells about it."""

    def network(self, plan: Plan) -> Network | None:
        """Return the network of the common model; None for the one that the plan describes."""
        del plan
        return None


def payload_named(kind: str) -> Payload:
    """Return what a study does with a kind of upload."""
    if kind in _OWN:
        module, _, name = _OWN[kind].partition(":")
        found: type[Payload] = getattr(importlib.import_module(module), name)
        return found()
    added = extra.load("payloads", kind)
    if added is None:
        raise UploadError(f"it holds {kind}, which nothing installed here knows")
    return cast(type[Payload], added)()


def payload_of(plan: Plan) -> ModelPayload:
    """Return what the sites of a plan send: two payloads may make one kind in two ways."""
    return cast(ModelPayload, payload_named(plan.payload))


def upload_bytes(plan: Plan) -> int:
    """Return the size in bytes of one site's arrays."""
    return sum(spec.num_bytes for spec in payload_of(plan).arrays(plan).values())
