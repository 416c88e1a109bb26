"""Where the surveys of sites disagree: other units, other codes, other spellings, absent columns.

    units       middles and spreads of one column at two sites are far apart. Sites that agree are
                one group; the largest is what others are held against. A factor between known
                units, or a power of ten, that mends both is named. Of a small site only the
                median is told; one far from all of the largest group is doubted as well
    codes       numbers that look like codes for missing; words of which none is the plan's
    spellings   words that differ from the plan's, or another site's, by case, accents or a letter
    absent      columns that a site does not have, or hardly ever fills in
    swapped     of two classes the first is as frequent at one site as the second elsewhere
    rows        a site states several times as many as the largest of the others

Hospitals differ in whom they treat, so each rule asks for far more than that. A doubt is one line
that names column, sites and figures, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from predbayes_study.extras.survey.surveyfile import CategoryTold, NumberTold, Survey
from predbayes_study.plan.schema import MAX_WEIGHT, Category, Number, Plan
from predbayes_study.plan.text import toml_value
from predbayes_study.plan.weight import RowCaps
from predbayes_study.tables.plausible import (
    ELSEWHERE,
    FAR,
    conversion_between,
    distance,
    is_swapped,
)
from predbayes_study.tables.suggest import same_word
from predbayes_study.tables.vocabulary import Conversion
from predbayes_study.wording import counted, plain, six_digits

_MOSTLY = 0.5  # share of rows without a value from which on a column is hardly there
_SELDOM = 0.1  # and elsewhere, at the most
_UNREADABLE = 0.05  # share of rows with something that is no number
_RARE = 3.0  # times fewer rows of a word than elsewhere
_MANY_STEPS = 4  # of rows of a word that would be expected, for it to be missed


@dataclass(frozen=True, slots=True)
class Doubt:
    """One thing in which sites disagree."""

    column: str
    sites: tuple[str, ...]  # whose tables are doubted
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """What the words of sites are taken for, beside the plan's."""

    new: tuple[str, ...]  # further categories
    doubts: tuple[Doubt, ...]


def disagreements(plan: Plan, surveys: Sequence[Survey]) -> list[Doubt]:
    """Find where surveys of one draft disagree, in the order of the plan's columns."""
    found: list[Doubt] = []
    for name in plan.names:
        found += _absent(name, surveys)
        numbers = numbers_of(name, surveys)
        found += _codes(name, surveys) if numbers else ()
        found += _units(plan, name, numbers)
        found += words_of(plan, name, surveys).doubts
        found += _hardly(name, surveys)
    return [*found, *_swapped(plan, surveys), *_loud(plan, surveys)]


def counted_rows(plan: Plan, surveys: Sequence[Survey]) -> dict[str, float]:
    """Return for how many rows each site counts."""
    most = RowCaps.of(plan, [survey.rows for survey in surveys]).most
    return {survey.site: min(float(survey.rows), most) for survey in surveys}


def _loud(plan: Plan, surveys: Sequence[Survey]) -> Iterator[Doubt]:
    """Sites whose rows are far beyond those of every other."""
    counts, times = counted_rows(plan, surveys), plan.rules.max_weight or MAX_WEIGHT
    for survey in surveys:
        others = [other.rows for other in surveys if other is not survey]
        if others and survey.rows > times * max(others):
            yield Doubt(
                "",
                (survey.site,),
                f"{survey.site} states {counted(survey.rows, 'row')}, more than {plain(times)} "
                f"times as many as any other site; it counts for "
                f"{plain(counts[survey.site], 0)}: ask {survey.site} how many it has",
            )


def numbers_of(name: str, surveys: Sequence[Survey]) -> dict[str, NumberTold]:
    """Return what sites tell of a column of numbers, by site."""
    told = {survey.site: survey.columns.get(name) for survey in surveys}
    return {site: one for site, one in told.items() if isinstance(one, NumberTold)}


# Columns that are not there


def _absent(name: str, surveys: Sequence[Survey]) -> Iterator[Doubt]:
    lacking = tuple(survey.site for survey in surveys if name in survey.absent)
    if lacking:
        has = "has" if len(lacking) == 1 else "have"
        yield Doubt(
            name,
            lacking,
            f"{name}: {_and(lacking)} {has} no such column; ask for it, drop it from the plan, or "
            "leave it optional",
        )


def _hardly(name: str, surveys: Sequence[Survey]) -> Iterator[Doubt]:
    """Sites that leave a column empty which others fill in."""
    shares = {
        survey.site: (told.missing or 0) / survey.rows
        for survey in surveys
        if (told := survey.columns.get(name)) is not None and survey.rows
    }
    rare = [site for site, share in shares.items() if share <= _SELDOM]
    for site, share in shares.items():
        if share >= _MOSTLY and rare:
            yield Doubt(
                name,
                (site,),
                f"{name}: {share:.0%} of the rows of {site} lack it, but at most {_SELDOM:.0%} of "
                f"those of {_and(rare)}; ask {site} whether it is the right column",
            )


# Numbers


def _codes(name: str, surveys: Sequence[Survey]) -> Iterator[Doubt]:
    for survey in surveys:
        told = survey.columns.get(name)
        if not isinstance(told, NumberTold):
            continue
        for code, rows in told.codes.items():
            yield Doubt(
                name,
                (survey.site,),
                f"{name}: {code} in {counted(rows, 'row')} of {survey.site} looks like a code for "
                f'missing; if it is, {survey.site} writes missing = ["{code}"] in its site.toml',
            )
        if (told.unreadable or 0) > _UNREADABLE * survey.rows:
            yield Doubt(
                name,
                (survey.site,),
                f"{name}: {counted(told.unreadable or 0, 'row')} of {survey.site} have something "
                f"that is no number; ask {survey.site} to run site survey --suggest",
            )


def unit_groups(numbers: Mapping[str, NumberTold]) -> list[list[str]]:
    """Return sites in groups whose middles and spreads agree, the largest group first.

    Sites that tell no quartiles, or have most values the same, are in none.
    """
    groups: list[list[str]] = []
    for site, told in numbers.items():
        if told.middle is None or told.spread <= 0:
            continue
        near = [group for group in groups if any(_agree(numbers[other], told) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), site])
    return sorted(groups, key=len, reverse=True)


def _agree(one: NumberTold, other: NumberTold) -> bool:
    wider, narrower = (one, other) if one.spread >= other.spread else (other, one)
    assert narrower.middle is not None
    return distance(_as_column(wider), narrower.middle, narrower.spread) < FAR


def _as_column(told: NumberTold, unit: str = "") -> Number:
    return Number(type="number", unit=unit, centre=told.middle, scale=told.spread)


def _units(plan: Plan, name: str, numbers: Mapping[str, NumberTold]) -> Iterator[Doubt]:
    most, *others = unit_groups(numbers) or [[]]
    for site, told in numbers.items():
        # A median alone, which no site of the largest group explains.
        alone = most and told.middle is not None and told.spread <= 0
        if alone and is_far(told, most, numbers):
            figures = f"{_medians([site], numbers)}, but {_medians(most, numbers)}"
            ratio = _ratio(numbers[most[0]], told)
            yield Doubt(name, (site,), f"{name}: {figures}{ratio}; {_advice(None, [site], most)}")

    def way(standard: NumberTold, told: NumberTold) -> Conversion | None:
        assert told.middle is not None
        column = _as_column(standard, plan.column(name).unit)
        return conversion_between(name, column, told.middle, told.spread, theirs=name)

    for group in others:
        standard, told = numbers[most[0]], numbers[group[0]]
        there = way(standard, told)
        back = None if there else way(told, standard)
        if not (there or back) and not _is_elsewhere(standard, told):
            continue
        doubted, right = (most, group) if back else (group, most)
        figures = (
            f"{name}: {_medians(group, numbers)}, but {_medians(most, numbers)}"
            f"{_ratio(standard, told)}"
        )
        yield Doubt(name, tuple(doubted), f"{figures}; {_advice(there or back, doubted, right)}")


def is_far(told: NumberTold, group: Sequence[str], numbers: Mapping[str, NumberTold]) -> bool:
    """Return whether a median is elsewhere than that of every site of a group."""
    return all(_is_elsewhere(numbers[site], told) for site in group)


def _is_elsewhere(standard: NumberTold, told: NumberTold) -> bool:
    apart = abs((standard.middle or 0.0) - (told.middle or 0.0))
    return apart > ELSEWHERE * max(standard.spread, told.spread)


def _medians(sites: Sequence[str], numbers: Mapping[str, NumberTold]) -> str:
    middles = [numbers[site].middle or 0.0 for site in sites]
    ends = dict.fromkeys((plain(min(middles)), plain(max(middles))))
    return f"the median at {_and(sites)} is {' to '.join(ends)}"


def _ratio(standard: NumberTold, told: NumberTold) -> str:
    low, high = sorted((standard.middle or 0.0, told.middle or 0.0))
    return f", {plain(high / low)} times" if low > 0 else ""


def _advice(way: Conversion | None, doubted: Sequence[str], right: Sequence[str]) -> str:
    who = _and(doubted)
    if way is None:
        return f"ask {who} and {_and(right)} whether it is the same quantity in the same unit"
    factor = toml_value(six_digits(way.factor))
    also = f", offset = {toml_value(six_digits(way.offset))}" if way.offset else ""
    units = f" ({way.unit} to {way.to})" if way.unit else ""
    return (
        f"times {factor}{units} {who} would be like {_and(right)}: if so, {who} "
        f"{'writes' if len(doubted) == 1 else 'write'} factor = {factor}{also} in site.toml"
    )


# Words


def words_of(plan: Plan, name: str, surveys: Sequence[Survey]) -> Words:
    """Say what sites' words are that the plan does not have: spellings, codes, or new ones."""
    column, new, doubts = plan.column(name), list[str](), list[Doubt]()
    if not isinstance(column, Category):
        return Words((), ())

    def doubt(survey: Survey, says: str) -> None:
        doubts.append(Doubt(name, (survey.site,), f"{name}: {survey.site} {says}"))

    counts = counted_rows(plan, surveys)
    heard = [(one, counts[one.site] / one.rows) for one in surveys]
    for survey in sorted(surveys, key=lambda one: -one.rows):
        told = survey.columns.get(name)
        if not isinstance(told, CategoryTold):
            continue
        known = (*column.categories, *new)
        same = {word: _meant(word, known) for word in told.unlisted if word not in new}
        spelt = {word: meant for word, meant in same.items() if meant}
        strange = [word for word, meant in same.items() if not meant]
        if spelt:
            pairs = ", ".join(f"{_of_rows(told, w)} for {meant!r}" for w, meant in spelt.items())
            doubt(
                survey,
                f"writes {pairs}; if so, {survey.site} writes recode = {toml_value(spelt)} in its "
                "site.toml",
            )
        if strange and not any(told.words.values()) and not spelt:
            words, ours = (", ".join(map(repr, w)) for w in (strange, column.categories))
            doubt(
                survey,
                f"has {words} and none of the plan's words {ours}; ask what they mean, and "
                f"{survey.site} writes a recode in its site.toml",
            )
        elif strange:
            new += strange
            words = ", ".join(_of_rows(told, word) for word in strange)
            doubt(
                survey,
                f"has {words}, which the plan has not; it is proposed as a category: delete it "
                "there, or ask what it means",
            )
        elif not spelt:
            doubts += _missed(name, survey, told, heard)
    return Words(tuple(new), tuple(doubts))


def _meant(word: str, known: Sequence[str]) -> str:
    """The known word that a word is another spelling of; those of other numbers are other words."""
    found = same_word(word, known)
    if found is None:
        return ""
    digits = ("".join(filter(str.isdigit, one)) for one in (word, found[0]))
    is_code = word.isdigit() or found[0].isdigit()
    return found[0] if is_code or len(set(digits)) == 1 else ""


def _of_rows(told: CategoryTold, word: str) -> str:
    return f"{word!r} ({counted(told.unlisted[word], 'row')})"


def _missed(
    name: str, survey: Survey, told: CategoryTold, heard: Sequence[tuple[Survey, float]]
) -> Iterator[Doubt]:
    """Words that a site has hardly a row of, and would have many of by what others tell."""
    most = survey.rows + survey.step - sum(count or 0 for count in told.counts)
    for word, count in told.words.items():
        if count is not None:
            continue
        expected = _share(name, word, survey, heard) * survey.rows
        if expected > max(_RARE * most, _MANY_STEPS * survey.step):
            yield Doubt(
                name,
                (survey.site,),
                f"{name}: {survey.site} has fewer than {most} rows of {word!r}, and would have "
                f"about {expected:.0f} if it were as elsewhere; ask whether it is coded otherwise",
            )


def _share(name: str, word: str, but: Survey, heard: Sequence[tuple[Survey, float]]) -> float:
    """How frequent a word is at the other sites that tell it, of each as many rows as count."""
    pairs = [
        (part * (told.words[word] or 0), part * survey.rows)
        for survey, part in heard
        if survey is not but
        and isinstance(told := survey.columns.get(name), CategoryTold)
        and told.words.get(word) is not None
    ]
    return sum(n for n, _ in pairs) / sum(rows for _, rows in pairs) if pairs else 0.0


# The target


def second_share(plan: Plan, surveys: Sequence[Survey]) -> float | None:
    """Return how frequent the second of two classes is over sites; None if no site tells."""
    first = second = 0.0
    counts = counted_rows(plan, surveys)
    for survey in surveys:
        told = survey.columns.get(plan.target.name)
        words = [*told.words.values()] if isinstance(told, CategoryTold) else []
        if len(words) == 2 and None not in words:
            part = counts[survey.site] / survey.rows
            first, second = first + part * (words[0] or 0), second + part * (words[1] or 0)
    return second / (first + second) if first + second else None


def _swapped(plan: Plan, surveys: Sequence[Survey]) -> Iterator[Doubt]:
    name = plan.target.name
    for survey in surveys:
        others = second_share(plan, [other for other in surveys if other is not survey])
        here = second_share(plan, [survey])
        if others is not None and here is not None and is_swapped(others, here):
            first, second = plan.target.classes or ("", "")
            yield Doubt(
                name,
                (survey.site,),
                f"{name}: {here:.0%} of the rows of {survey.site} are {second!r}, elsewhere "
                f"{others:.0%}: are {first!r} and {second!r} swapped? If so, {survey.site} writes "
                "recode under [target] in its site.toml",
            )


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
