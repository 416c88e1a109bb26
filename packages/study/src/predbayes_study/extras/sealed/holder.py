"""A key holder of sealed sums: who opens the sum of many sites, and never that of a few.

The holder is somebody whom the sites trust not to work with the coordinator against them: a data
trustee, or one of the sites. It has no data, no upload and no model, only

    holder.key      its private keys, whose public half the plan names
    holder.jsonl    a hash-chained ledger: which sites it admitted, by their keys, and of which
                    sites it has opened a sum

and it answers a request (`predbayes_study.extras.sealed.masking`) by what it knows itself:

    sites      every one was admitted by the holder, under this name and with this key: nobody can
               be invented to surround a single site
    minimum    there are no fewer of them than the plan's minimum
    earlier    together with all sums that it opened for the plan, no combination tells of fewer
               sites than that

Sums opened before are taken together: sort the sites by which of the sums each is in. Every
combination of sums treats the sites of one sort alike, so if each sort has the minimum of sites, a
combination tells of at least as many or of nobody. To compare sums two by two would not be enough:
of A + B, B + C and A + C no two differ by one site, and half of their sum less B + C is A.

What it opens is in its ledger before the file is written: a crash cannot make it forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import StudyError, no_such
from predbayes.exchange.strict import SiteName, Strict, require_site_name
from predbayes_study.extras.sealed.masking import Request, opening_of, summed_masks
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.plan.schema import Plan
from predbayes_study.store.journal import Journal
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import PublicKey
from predbayes_study.trust.statement import Digest
from predbayes_study.wording import counted

FILE = "holder.jsonl"


class _Admitted(Strict):
    site: SiteName
    key: Digest


class _Opened(Strict):
    plan: Digest
    sites: dict[SiteName, Digest]  # digests of their masked words


@dataclass(frozen=True, slots=True)
class Holder:
    """The folder of a key holder."""

    folder: Path

    def admit(self, site: str, key: PublicKey) -> bool:
        """Record a site's key, as the site itself gave it; False if it is known."""
        require_site_name(site)
        with self._journal.writing() as note:
            keys = self.keys()
            if keys.get(site) == key.hex:
                return False
            if owner := next((name for name, known in keys.items() if known == key.hex), ""):
                raise StudyError(f"this is the key of {owner}; each site has a key of its own")
            note("admit", _Admitted(site=site, key=key.hex))
        return True

    def keys(self) -> dict[str, str]:
        """The key of every site that the holder admitted."""
        said = (word for _, word in self._journal.read())
        return {word.site: word.key for word in said if isinstance(word, _Admitted)}

    def opened(self, plan: str) -> list[dict[str, str]]:
        """The sets of sites of which it opened a sum for a plan, with digests of their words."""
        said = (word for _, word in self._journal.read())
        opened = (word for word in said if isinstance(word, _Opened))
        return [dict(word.sites) for word in opened if word.plan == plan]

    def open(self, plan: Plan, request: Request, key: CoordinatorKey) -> bytes:
        """Return the opening of a request, if all that the holder knows allows it."""
        sealing = _sealing(plan, request, key)
        digest, asked = request.plan, {site: told.words for site, told in request.sites.items()}
        with self._journal.writing() as note:
            self._require_admitted(request)
            minimum = sealing.minimum
            if len(asked) < minimum:
                raise StudyError(
                    f"the sum of {counted(len(asked), 'site')} is not opened: the plan's minimum "
                    f"is {minimum}"
                )
            before = self.opened(digest)
            require_apart(asked, before, minimum)
            mask = summed_masks(request, key, sealing.form(plan).size)
            content = opening_of(request, mask, key.signing)
            if asked not in before:
                note("open", _Opened(plan=digest, sites=asked))
        return content

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

    @property
    def _journal(self) -> Journal[_Admitted | _Opened]:
        return Journal(self.folder / FILE, {"admit": _Admitted, "open": _Opened})


def _sealing(plan: Plan, request: Request, key: CoordinatorKey) -> Sealed:
    """The terms of sealed sums, if the request is of this plan and the plan names the holder."""
    if request.plan != plan.digest():
        raise StudyError("the request belongs to a different plan than this kit")
    sealing = plan.section(Sealed)
    if sealing is None or key.public not in sealing.public_keys:
        raise StudyError("the plan does not name this holder's key")
    return sealing


def require_apart(asked: Mapping[str, str], opened: list[dict[str, str]], minimum: int) -> None:
    """Refuse a sum that, with sums opened before, tells of fewer sites than the minimum."""
    if dict(asked) in opened:
        return
    sums = [set(told.items()) for told in (*opened, asked)]
    sorts: dict[tuple[bool, ...], set[str]] = {}
    for site, words in set().union(*sums):
        sorts.setdefault(tuple((site, words) in told for told in sums), set()).add(site)
    few = sorted((sites for sites in sorts.values() if len(sites) < minimum), key=len)
    if few:
        names = ", ".join(sorted(few[0]))
        raise StudyError(
            f"this sum is not opened: with one opened before it would tell of {names} alone, and "
            f"the plan's minimum is {minimum} sites"
        )
