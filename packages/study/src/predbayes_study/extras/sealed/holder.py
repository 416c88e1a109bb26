"""A key holder of sealed sums: who opens the sum of many sites, and never that of a few.

The holder is somebody whom the sites trust not to work with the coordinator against them: a data
trustee, or one of the sites. It has no data, no upload and no model, only

    holder.key      its private keys, whose public half the plan names
    holder.jsonl    a hash-chained ledger: which sites it admitted, by their keys, and of which
                    sites it has opened a sum, under every plan

and it answers a request (`predbayes_study.extras.sealed.masking`) by what it knows itself:

    sites      every one was admitted by the holder, under this name and with this key: nobody can
               be invented to surround a single site
    minimum    there are no fewer of them than the plan's minimum
    earlier    together with all sums that it opened, under whatever plan, no combination reveals
               fewer sites than that

Sort the sites by which of the opened sums S_1, ..., S_m each is in. With x_kj what site k put into
S_j, each opened sum is made of totals of whole sorts t,

    y_j = sum over sorts t within S_j of  X_tj,      X_tj = sum over sites k of t of  x_kj

so the coordinator, who has all the y_j, learns nothing that does not follow from the X_tj. If each
sort has the minimum of sites, that is totals of so many. To compare sums two by two would not be
enough: of A + B, B + C and A + C no two differ by one site, and half of their sum less B + C is A.

A site is the same whatever it sent: under another plan its words have other masks, but what is
below them may be the same to the last bit. Where only words differ, the difference of two sums is
what changed. So uploads are sorted as sites are, too: of the sites of a sum, the minimum must have
sent anew before what they changed is opened. Who sent anew without a change is not seen here: a
site asks a person before it makes a second upload of a table (`predbayes_study.site.book`).

The sites of a sort agreed to the plans of the sums that they are in. The largest minimum of these
plans is the sort's.

A name is one site for good. A key belongs to one name, even after the site has a new key. That a
site has a new key, the holder says itself, or another site could take a name over.

A sum needs every holder. One who opened it while another cannot would never open it less one site:
so each checks all seals of a request before any of them opens it.

What it opens is in its ledger before the file is written: a crash cannot make it forget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from predbayes.errors import StudyError, no_such
from predbayes.exchange.strict import SiteName, Strict, folded_name, require_site_name
from predbayes_study.extras.sealed.masking import Request, opening_of, seeds_of, summed_masks
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.plan.schema import Plan
from predbayes_study.store.journal import Journal
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import PublicKey
from predbayes_study.trust.statement import Digest
from predbayes_study.wording import counted

FILE = "holder.jsonl"
R = TypeVar("R", bound=Strict)


class _Admitted(Strict):
    site: SiteName
    key: Digest


class Opened(Strict):
    """A sum that was opened, or is asked for."""

    plan: Digest
    sites: dict[SiteName, Digest]  # digests of their masked words
    study: str = ""  # the plan's name
    minimum: int = 0  # of the plan; 0: an entry of a time when the ledger did not have it

    @property
    def least(self) -> int:
        """The fewest sites that may be told apart; without the plan's minimum, all of the sum."""
        return self.minimum or len(self.sites)

    def is_of(self, plan: str, sites: dict[str, str]) -> bool:
        """Return whether it is the sum of these words, under this plan."""
        return (self.plan, self.sites) == (plan, sites)


@dataclass(frozen=True, slots=True)
class Holder:
    """The folder of a key holder."""

    folder: Path

    def admit(self, site: str, key: PublicKey, *, same_site: bool = False) -> bool:
        """Record a site's key, as the site itself gave it; False if it is known.

        Args:
            site: Its name, over all studies.
            key: Its public key.
            same_site: Whether the holder says that a name with another key is still the same site.
        """
        require_site_name(site)
        with self._journal.writing() as note:
            names = {word.key: word.site for word in self._said(_Admitted)}
            if names.get(key.hex, site) != site:
                raise StudyError(
                    f"this is the key of {names[key.hex]}; a site keeps its name here over all "
                    "studies, and each has keys of its own"
                )
            keys = self.keys()
            if keys.get(site) == key.hex:
                return False
            if other := next((n for n in keys if folded_name(n) == folded_name(site)), ""):
                if other != site:
                    raise StudyError(f"{site} would be taken for {other}, which is admitted")
                if not same_site:
                    raise StudyError(
                        f"{site} was admitted with another key. If it is the same site with a new "
                        "key, give --same-site; admit another site under a name of its own"
                    )
            note("admit", _Admitted(site=site, key=key.hex))
        return True

    def keys(self) -> dict[str, str]:
        """The key of every site that the holder admitted."""
        return {word.site: word.key for word in self._said(_Admitted)}

    def opened(self, sites: Collection[str]) -> list[Opened]:
        """The sums that it opened of any of these sites, in order."""
        return [told for told in self._said(Opened) if not told.sites.keys().isdisjoint(sites)]

    def open(self, plan: Plan, request: Request, key: CoordinatorKey) -> bytes:
        """Return the opening of a request, if all that the holder knows allows it."""
        sealing = _sealing(plan, request, key)
        with self._journal.writing() as note:
            asked, is_new = self._allowed(plan, request, sealing.minimum)
            mask = summed_masks(request, key, sealing.form(plan).size)
            content = opening_of(request, mask, key.signing)
            if is_new:
                note("open", asked)
        return content

    def check(self, plan: Plan, request: Request, key: CoordinatorKey) -> None:
        """Refuse what `open` would refuse, every seal included; note and return nothing."""
        self._allowed(plan, request, _sealing(plan, request, key).minimum)
        seeds_of(request, key)

    def _allowed(self, plan: Plan, request: Request, minimum: int) -> tuple[Opened, bool]:
        """Return the sum that is asked for, and whether it was never opened; or refuse it."""
        sites = {site: told.words for site, told in request.sites.items()}
        asked = Opened(plan=request.plan, sites=sites, study=plan.name, minimum=minimum)
        self._require_admitted(request)
        if len(sites) < minimum:
            raise StudyError(
                f"the sum of {counted(len(sites), 'site')} is not opened: the plan's minimum "
                f"is {minimum}"
            )
        before = list(self._said(Opened))
        is_new = not any(told.is_of(asked.plan, sites) for told in before)
        if is_new:
            require_apart(asked, before)
        return asked, is_new

    def _require_admitted(self, request: Request) -> None:
        keys = self.keys()
        for site, told in request.sites.items():
            if site not in keys:
                raise StudyError(no_such("site that this holder admitted", site, keys))
            if keys[site] != told.key:
                raise StudyError(
                    f"{site} has another key here than in the request: ask the site itself which "
                    "is right"
                )

    def _said(self, form: type[R]) -> Iterator[R]:
        return (word for _, word in self._journal.read() if isinstance(word, form))

    @property
    def _journal(self) -> Journal[_Admitted | Opened]:
        return Journal(self.folder / FILE, {"admit": _Admitted, "open": Opened})


def _sealing(plan: Plan, request: Request, key: CoordinatorKey) -> Sealed:
    """The terms of sealed sums, if the request is of this plan and the plan names the holder."""
    if request.plan != plan.digest():
        raise StudyError("the request belongs to a different plan than this kit")
    sealing = plan.section(Sealed)
    if sealing is None or key.public not in sealing.public_keys:
        raise StudyError("the plan does not name this holder's key")
    return sealing


def require_apart(asked: Opened, opened: Sequence[Opened]) -> None:
    """Refuse a sum that, with the sums opened before, reveals fewer sites than a plan's minimum."""
    for what, whose in (("", _site), ("what changed at ", _upload)):
        few = [sort for sort in _new_sorts(asked, opened, whose) if len(sort.sites) < sort.least]
        if few:
            first = min(few, key=lambda sort: len(sort.sites))
            names = ", ".join(sorted(first.sites))
            raise StudyError(
                f"this sum is not opened: with {_named(first.sites | {*asked.sites}, opened)} it "
                f"would reveal {what}{names} alone, and the plans' minimum is {first.least} sites"
            )


class _Sort(NamedTuple):
    """Sites that are in the same sums."""

    sites: frozenset[str]
    least: int  # sites that it must have


def _new_sorts(
    asked: Opened, opened: Sequence[Opened], whose: Callable[[str, str], tuple[str, ...]]
) -> Iterator[_Sort]:
    """Yield the sorts of sites that a further sum is part of, or has split.

    Args:
        asked: The further sum.
        opened: The sums before.
        whose: Makes of a site and the digest of its words what is the same in several sums.
    """
    sums, last = [*opened, asked], len(opened)
    places: dict[tuple[str, ...], list[int]] = {}
    for place, told in enumerate(sums):
        for site, words in told.sites.items():
            places.setdefault(whose(site, words), []).append(place)
    sorts: dict[tuple[int, ...], set[str]] = {}
    for one, where in places.items():
        sorts.setdefault(tuple(where), set()).add(one[0])
    for among, sites in sorts.items():
        if last in among or (*among, last) in sorts:
            yield _Sort(frozenset(sites), max(sums[place].least for place in among))


def _site(site: str, words: str) -> tuple[str, ...]:
    del words
    return (site,)


def _upload(site: str, words: str) -> tuple[str, ...]:
    return site, words


def _named(sites: Collection[str], opened: Sequence[Opened]) -> str:
    """Name the plans under which sums of some sites were opened."""
    found = {told.plan: told for told in opened if not told.sites.keys().isdisjoint(sites)}
    plans = (
        f"{told.study!r} ({plan[:16]})" if told.study else plan[:16] for plan, told in found.items()
    )
    return f"what was opened before for the plan{'s' * (len(found) > 1)} {', '.join(plans)}"
