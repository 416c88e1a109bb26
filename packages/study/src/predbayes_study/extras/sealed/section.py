"""What a plan says of sealed sums, in `[sealed]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from predbayes.errors import KeyFileError, PoolError
from predbayes_study.extras.sealed.fixed_point import FixedPoint
from predbayes_study.plan.schema import Added, Names, Plan
from predbayes_study.rules import Rule
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey


def _holders(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            CoordinatorPublicKey(PublicKey(value[:64]), value[64:])
        except KeyFileError as error:
            raise ValueError(f"must be as `predbayes holder keys` prints them: {error}") from error
    return values


class Sealed(Added):
    """Nobody sees what a single site sent: the coordinator sees sums that key holders opened."""

    sends: ClassVar[str] = "masked"
    # A regression's term trust_2 is a weight of up to 1e32 per row, which 64 bits cannot hold.
    tasks: ClassVar[tuple[str, ...]] = ("classification", "survival")
    opening: ClassVar[str] = ".opening"
    excludes: ClassVar[tuple[str, ...]] = ("gate", "rules.max_weight", "rules.screening")

    # Public keys of those without whom no sum is opened.
    holders: Annotated[Names, Field(min_length=1, max_length=8), AfterValidator(_holders)]
    minimum: Annotated[int, Field(ge=2)] = 3  # sites of a sum that is opened
    max_rows: Annotated[int, Field(gt=0)] = 100_000  # that a site counts for at most
    max_sites: Annotated[int, Field(gt=0)] = 100

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.minimum > self.max_sites:
            raise ValueError("minimum is above max_sites")
        return self

    @property
    def public_keys(self) -> tuple[CoordinatorPublicKey, ...]:
        """The holders' keys, to sign and to encrypt."""
        pairs = ((text[:64], text[64:]) for text in self.holders)
        return tuple(CoordinatorPublicKey(PublicKey(one), other) for one, other in pairs)

    @property
    def recipients(self) -> tuple[str, ...]:
        """The encryption keys that seeds of masks are sealed to."""
        return tuple(key.encryption for key in self.public_keys)

    def form(self, plan: Plan) -> FixedPoint:
        """Return where the terms of a plan are in words."""
        return FixedPoint(
            plan.reference.num_rows,
            plan.num_outputs,
            plan.pool.floor,
            self.max_rows,
            self.max_sites,
            bool(plan.target.times),
        )


def _sealed(plan: Plan) -> Sealed:
    section = plan.section(Sealed)
    assert section is not None
    return section


def _too_large(plan: Plan) -> Iterator[str]:
    """Why the terms of a plan do not fit into 64 bits."""
    if plan.target.task not in Sealed.tasks:
        return  # which is refused already
    try:
        _sealed(plan).form(plan).parts  # noqa: B018  # fit, or are refused
    except PoolError as error:
        yield str(error)


RULES = (
    Rule[Plan](
        "rules.quorum",
        "error",
        lambda plan: plan.rules.quorum < _sealed(plan).minimum,
        "{asked.rules.quorum} is below sealed.minimum: no result could be opened",
    ),
    Rule[Plan](
        "sealed.holders",
        "error",
        lambda plan: plan.coordinator is not None and plan.coordinator in _sealed(plan).public_keys,
        "the coordinator cannot be a key holder as well",
    ),
    Rule[Plan]("sealed", "error", _too_large),
)
