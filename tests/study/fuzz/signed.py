"""Files that a registered site made badly and signed well: they reach every check, and the pool.

`harness` breaks bytes and fields as they are written, so most of its files end at their signature.
Here a file is honest, then changed by its structure, and then signed as its reader digests it:
numbers by magnitude, all numbers together by one factor, cells of arrays, texts, lengths of lists.
Each goes through `study add` in batches of several sites; then the study is finished with all that
was taken in. Whatever a file says, the only answer is a refusal of that file in one line, the
others' files are taken in, and what the model predicts is finite and sums to one.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from predbayes.errors import PredbayesError, StudyError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.learning.gate import GateBounds
from predbayes.learning.moments import Moments
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes.text import printable
from predbayes_study.coordinator.status import status_of
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.moments.payload import summed_classes, summed_features
from predbayes_study.extras.sealed.holder import Holder
from predbayes_study.extras.sealed.masking import WORDS, masked
from predbayes_study.extras.sealed.request import request_sums
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.extras.sealed.secure_sum import to_words
from predbayes_study.kit.kit import freeze
from predbayes_study.payload import payload_of
from predbayes_study.payloads.details import promising
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.faults.malformed import Signed, site_key
from tests.study.fuzz.harness import FLOATS, Broken, Source, _changed, _other_law
from tests.study.invented import survey_of
from tests.study.world import SALT, World

HONEST = ("Alpha", "Beta", "Gamma")
LIARS = tuple(f"Liar {number}" for number in range(5))
NUM_BYTES = 200  # of the decisions that make one file
MAX_LINE = 400
NUM_ROWS = 300

HUGE = 10**320
WHOLE = (
    *(sign * 10**k for k in range(0, 20, 3) for sign in (1, -1)),
    *(0, 2, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, HUGE, -HUGE, 10**4000),
)
REAL = (
    *(-0.0, 5e-324, -5e-324, 1e-310, 1e-30, 1e-9, 0.5, 1.0, -1.0, 1e3, 1e15, 1e30, 1e100, 1.1e100),
    *(1e200, 1e308, -1e308, math.inf, -math.inf, math.nan, HUGE),
)
FACTORS = (
    -1,
    0,
    0.5,
    0.999,
    1 + 1e-9,
    2,
    10,
    10**3,
    10**6,
    10**9,
    10**15,
    10**60,
    10**155,
    10**300,
)
CELLS = (*FLOATS, 88.0, -88.0, 1e-38, 1e15, 3.4e38, math.nan, -math.inf)
TEXTS = ("", "a" * 10**5, "\x1b[8m", "Alpha", "Liar 0", "0" * 64, "red", "nll", "..", "é" * 200)
LEAST_SUM = 1e-3

_PLAN = """
format = 1
name = "fuzz"
{target}
[columns]
x = {{ type = "number", unit = "mm", range = [-50, 50], centre = 0, scale = 10 }}
sex = {{ type = "category", categories = ["f", "m"] }}
[reference]
{reference}
[model]
hidden = [4]
[learner]
name = "{learner}"
holdout = 0.0
holdout_reason = "drawn"
{more}
"""
_REFERENCE = """
file = "reference.csv"
source = "drawn"
licence = "CC0"
legal_basis = "nobody's data"
"""
_CLASSES = '[target]\nname = "y"\ntask = "classification"\nclasses = ["no", "yes"]'
_THREE = '[target]\nname = "y"\ntask = "classification"\nclasses = ["no", "yes", "perhaps"]'
_NUMBER = '[target]\nname = "y"\ntask = "regression"\nunit = "d"\ncentre = 0\nscale = 1'
_TIMES = '[target]\nname = "y"\ntask = "survival"\nevent = "died"\ntimes = [1, 2, 5]'
_FREE = '[pool]\nmethod = "{}"\nown = "none"\n[rules]\nquorum = 1\nscreening = "report"\n'
_GROUPS = '[measures]\ngroups = ["sex"]\n'
_SUMS = "[moments]\nfeatures = 6\nscales = [1, 2]\nrows_per_feature = 1\n[rules]\nquorum = 1\n"
_PRIVATE = """
[privacy]
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"
unit = "row"
"""
_SEALED = '[sealed]\nholders = ["{}"]\nminimum = 3\nmax_rows = 1000\n[rules]\nquorum = 3\n'


@dataclass(frozen=True, slots=True)
class Form:
    """A plan of one kind of upload."""

    target: str
    more: str
    labelled: int = 0
    evaluate: int = 0
    unlabelled: int = 50
    learner: str = "any"

    def text(self, holder: CoordinatorKey) -> str:
        rows = {name: getattr(self, name) for name in ("labelled", "evaluate", "unlabelled")}
        reference = _REFERENCE + "\n".join(f"{name} = {num}" for name, num in rows.items())
        public = holder.public.signing.hex + holder.public.encryption
        told = {"target": self.target, "learner": self.learner, "more": self.more.format(public)}
        return _PLAN.format(reference=reference if any(rows.values()) else "", **told)


FORMS = {
    "classes": Form(_CLASSES, _FREE.format("auto") + "[gate]\n" + _GROUPS, 0, 20),
    "numbers": Form(_NUMBER, _FREE.format("beta") + "[gate]\n" + _GROUPS, 30, 20),
    "times": Form(_TIMES, _FREE.format("mixture")),
    "product": Form(_THREE, _FREE.format("product") + "min_cell = 1\n"),
    "private": Form(_CLASSES, _FREE.format("mixture") + _PRIVATE, learner="dp-logistic"),
    "sums of classes": Form(_CLASSES, _SUMS, unlabelled=0),
    "sums of numbers": Form(_NUMBER, _SUMS, unlabelled=0),
    "sealed": Form(_CLASSES, _SEALED),
}


@dataclass
class Field:
    """A study with honest uploads, registered liars, and a copy of all to begin from again."""

    name: str
    root: Path
    world: World
    holder: CoordinatorKey
    drafts: list[Signed] = field(default_factory=list)
    survey: dict[str, Any] = field(default_factory=dict)
    opening: tuple[dict[str, Any], bytes] | None = None

    @property
    def plan(self) -> Plan:
        return self.world.kit.plan

    @property
    def study(self) -> Study:
        return Study(self.root / "now")

    def reset(self) -> None:
        shutil.rmtree(self.root / "now", ignore_errors=True)
        shutil.copytree(self.root / "before", self.root / "now")


def make_field(root: Path, name: str) -> Field:
    """Make a study of a form, with three honest uploads and a result."""
    form, holder = FORMS[name], CoordinatorKey.generate()
    root.mkdir(parents=True)
    (root / "plan.toml").write_text(form.text(holder))
    rng = np.random.default_rng(0)
    rows = _frame(form.labelled + form.evaluate + form.unlabelled, rng, form.target)
    rows.loc[form.labelled + form.evaluate :, "y"] = ""
    rows.to_csv(root / "reference.csv", index=False)
    kit = freeze(root / "plan.toml", root / "kit", root / "kit-labels.json", salt=SALT)
    world = World(root, kit, {site: site_key(site) for site in (*HONEST, *LIARS)})
    study = world.begin("before", sites=(*HONEST, *LIARS))
    made = Field(name, root, world, holder)
    for number, site in enumerate(HONEST):
        path = root / "honest.safetensors"
        path.write_bytes(signed(made, _honest(made, site, number), site))
        assert study.add(path)
    shutil.copytree(root / "before", root / "now")
    if kit.plan.opening:
        made.opening = _opened(made)
        (root / "opening").write_bytes(_opening(made, *made.opening))
    recorded, _ = made.study.finish(openings=_openings(made, root / "opening"))
    if not kit.plan.opening:  # there evaluations are of the result that the liars find
        shutil.rmtree(root / "before")
        shutil.copytree(root / "now", root / "before")
        made.drafts += _evaluations(made, recorded.model)
    made.drafts += [_honest(made, "Liar 0", number) for number in range(10, 13)]
    frame = _frame(NUM_ROWS, rng, form.target)
    if not kit.plan.target.times and not kit.plan.promise and not kit.plan.opening:
        told = survey_of(frame, root, "Liar 0", of=kit.plan, key=site_key("Liar 0"))
        made.survey = json.loads(told.content())
    return made


def _frame(num_rows: int, rng: np.random.Generator, target: str) -> pd.DataFrame:
    x = rng.normal(0, 10, num_rows).round(3)
    sex, odds = rng.choice(["f", "m"], num_rows), rng.logistic(size=num_rows)
    if "classes" in target:
        y = np.where(odds < x / 5, "yes", "no").astype(object)
    else:
        y = (x / 10 + 0.1 * odds).round(3).astype(object)
    return pd.DataFrame({"x": x, "sex": sex, "y": y, "died": ""})


def _predicted(plan: Plan, num_rows: int, seed: int) -> Predictive:
    rng = torch.Generator().manual_seed(seed)
    if plan.target.times:
        return Survival(torch.randn(num_rows, plan.num_outputs, generator=rng) - 1)
    if plan.target.classes:
        return Categorical(torch.randn(num_rows, plan.num_outputs, generator=rng).log_softmax(-1))
    mean = torch.randn(num_rows, generator=rng)
    return Gaussian(mean, torch.full_like(mean, 0.3), torch.full_like(mean, 0.1))


def _honest(made: Field, site: str, seed: int) -> Signed:
    """An upload as an honest site sends it."""
    plan, world = made.plan, made.world
    kind = payload_of(plan).kind
    if kind == "moments":
        rng = torch.Generator().manual_seed(seed)
        inputs = torch.randn(120, plan.num_inputs, generator=rng)
        numbers = inputs[:, 0] + torch.randn(120, generator=rng)
        targets = (numbers > 0).long() if plan.target.classes else numbers
        moments = Moments.of(summed_features(plan), inputs, targets, summed_classes(plan))
        counts = moments.class_rows
        rows = None if counts is None else tuple(map(float, counts))
        info = UploadInfo(kind=kind, num_rows=120, class_rows=rows)
        upload = Upload(info, moments.arrays()).named(site).for_plan(plan.digest())
        return _draft(upload)
    predictive = _predicted(plan, plan.reference.num_rows, seed)
    counts = (60.0, 40.0, 0.0)[: plan.num_outputs]
    if not plan.target.classes or plan.promise:
        counts = None
    gate = None
    if plan.gate is not None:
        gate = GateBounds().apply(0.3 * world.kit.inputs[:, 0])
    upload = Upload.of_predictions(predictive, num_rows=100, class_rows=counts, gate=gate)
    upload = upload.named(site).for_plan(plan.digest(), "x")
    if plan.promise is not None:
        upload = promising(upload, plan.promise)
    if plan.opening:
        sealing = plan.section(Sealed)
        words = to_words(sealing.form(plan), predictive, 100, torch.tensor([60.0, 40.0]).double())
        draft = _draft(upload)
        return draft.holding({WORDS: words.numpy()})
    return _draft(upload)


def _draft(upload: Upload) -> Signed:
    arrays = {name: array.numpy().copy() for name, array in upload.arrays.items()}
    return Signed(json.loads(upload.info.model_dump_json()), arrays)


def _evaluations(made: Field, model: str) -> list[Signed]:
    plan, rng = made.plan, np.random.default_rng(1)
    predictive = _predicted(plan, NUM_ROWS, 99)
    targets = torch.from_numpy(rng.integers(0, plan.num_outputs, NUM_ROWS))
    if not plan.target.classes:
        values = rng.uniform(0.1, 2.9, NUM_ROWS) * rng.choice([-1.0, 1.0], NUM_ROWS)
        targets = torch.from_numpy(values).float()
    inputs = None
    if plan.reference.num_rows:
        chosen = rng.integers(0, plan.reference.num_rows, NUM_ROWS)
        inputs = made.world.kit.inputs[torch.from_numpy(chosen)]
    upload = evaluation_upload(plan, "Liar 0", predictive, targets, model, inputs=inputs)
    return [_draft(upload)] * 3


def signed(made: Field, draft: Signed, site: str) -> bytes:
    """The file, signed by its site; words are masked and their seals signed, too."""
    info, key = draft.info | {"site": draft.info.get("site") and site}, site_key(site)
    if WORDS in draft.arrays and made.plan.opening and _is_masked(made, draft):
        of = UploadInfo(kind="predictions", num_rows=100, site=site, plan=made.plan.digest())
        words, holders = torch.from_numpy(draft.arrays[WORDS]), made.plan.section(Sealed).recipients
        hidden = _draft(masked(Upload(of, {}), words, holders, key))
        told = hidden.info | {n: v for n, v in info.items() if n in ("num_rows", "learner", "odd")}
        return Signed(told, hidden.arrays).file(key)
    return Signed(info, draft.arrays).file(key)


def _is_masked(made: Field, draft: Signed) -> bool:
    array = draft.arrays[WORDS]
    return array.dtype == np.int64 and array.ndim == 1 and draft.info["kind"] == "predictions"


# How a file is changed.


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number in plain data."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(part, (*path, name))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def at(value: Any, path: Sequence[Any]) -> Any:
    """What is at a path."""
    for name in path:
        value = value[name]
    return value


def put(value: Any, path: Sequence[Any], new: Any) -> Any:
    """A copy with another value at a path."""
    if not path:
        return new
    made = value.copy()
    made[path[0]] = put(value[path[0]], path[1:], new)
    return made


def _number(told: Any, source: Source) -> Any:
    """One number has another magnitude."""
    paths = list(numbers_in(told))
    if not paths:
        return told
    path = source.one_of(paths)
    return put(told, path, _other(at(told, path), source))


def _other(old: float, source: Source) -> Any:
    match source.below(4):
        case 0:
            return source.one_of(WHOLE)
        case 1:
            return source.one_of(REAL)
        case 2 if isinstance(old, int):
            return old + source.one_of((1, -1, 5, -5))
        case _:
            return _times(old, source.one_of(FACTORS))


def _times(old: float, factor: float) -> float:
    try:
        return round(old * factor) if isinstance(old, int) else float(old * factor)
    except OverflowError:
        return HUGE


def _all_numbers(told: Any, source: Source) -> Any:
    """All numbers by one factor: what adds up still does."""
    factor = source.one_of(FACTORS)
    for path in numbers_in(told):
        if path[-1] != "format_version":
            told = put(told, path, _times(at(told, path), factor))
    return told


def _list(told: Any, source: Source) -> Any:
    """A list is longer, shorter, empty, or deep."""

    def lists(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, dict | list):
                if isinstance(part, list):
                    yield (*path, name)
                yield from lists(part, (*path, name))

    paths = list(lists(told))
    if not paths:
        return told
    path = source.one_of(paths)
    old = at(told, path)
    long = old * (500 // max(len(old), 1) + 1)
    deep: Any = []
    for _ in range(source.one_of((1, 100, 250))):
        deep = [deep]
    return put(told, path, source.one_of((old[1:], old * 2, [], long, old[::-1], deep)))


def _text(told: Any, source: Source) -> Any:
    """A text is another one; `_changed` does the same to anything."""
    return put(told, (source.one_of([*told]),), source.one_of(TEXTS))


TOLD: tuple[Callable[[Any, Source], Any], ...] = (
    *(_number, _number, _number, _all_numbers, _list, _text, _changed),
)


def _cells(draft: Signed, source: Source) -> Signed:
    """A cell, a row, a column, or a whole array has odd numbers, or all are larger."""
    if not draft.arrays:
        return draft
    name = source.one_of(sorted(draft.arrays))
    array = draft.arrays[name].copy()
    where: Any = source.one_of((..., 0, (0,) * array.ndim, (..., -1), slice(0, 3)))
    with np.errstate(all="ignore"):
        if source.below(2):
            array[where] = np.asarray(array[where] * float(source.one_of(FACTORS))).astype(
                array.dtype
            )
        elif array.dtype.kind == "i":
            array[where] = source.one_of([n for n in WHOLE if -(2**63) <= n < 2**63])
        else:
            array[where] = np.float64(source.one_of(CELLS)).astype(array.dtype)
    return draft.holding({**draft.arrays, name: array})


def _law(draft: Signed, source: Source) -> Signed:
    """Predictions that could be somebody's, as sure or as far off as they can be."""
    arrays = draft.arrays
    if "log_odds" in arrays:
        odds = source.rng().standard_normal(arrays["log_odds"].shape) * source.one_of((1, 30, 1e3))
        return draft.holding({**arrays, "log_odds": odds.clip(-80, 80).astype(np.float32)})
    if "gate" in arrays and source.below(2):
        gate = source.rng().standard_normal(arrays["gate"].shape) * source.one_of((1, 10, 1e3))
        return draft.holding({**arrays, "gate": gate.clip(-6, 3).astype(np.float32)})
    if {"log_probs", "mean"} & arrays.keys():
        beside = {name: array for name, array in arrays.items() if name == "gate"}
        found = _other_law(draft, source)
        return found.holding({**found.arrays, **beside})
    return _cells(draft, source)


def _form(draft: Signed, source: Source) -> Signed:
    """An array has another type or shape, is missing, or comes twice."""
    if not draft.arrays:
        return draft.holding({"more": np.zeros(3, np.float32)})
    name = source.one_of(sorted(draft.arrays))
    array, others = draft.arrays[name], {k: v for k, v in draft.arrays.items() if k != name}
    with np.errstate(all="ignore"):
        made = source.one_of((array[:-1], array[..., None], array.astype(np.float64), None))
    return draft.holding(others if made is None else {**others, name: np.ascontiguousarray(made)})


def mutated(draft: Signed, source: Source) -> Signed:
    """The same file, changed in one to three ways."""
    for _ in range(1 + source.below(3)):
        way = source.below(12)
        if draft.info and (way < 6 or (not draft.arrays and way < 11)):
            told = source.one_of(TOLD)(draft.info, source)
            draft = replace(draft, info=told if isinstance(told, dict) else {"odd": told})
        elif all(array.size for array in draft.arrays.values()):
            draft = (_cells, _cells, _law, _law, _law, _form)[way % 6](draft, source)
    return draft


# What is done with them.


@dataclass
class Done:
    """What became of the files of a batch."""

    taken: int = 0
    refused: int = 0
    finished: int = 0
    reasons: set[str] = field(default_factory=set)


def attack(made: Field, rng: random.Random, num: int, done: Done) -> None:
    """Give a study many signed files, and finish it with those that it takes in."""
    sources = (Source(rng.randbytes(NUM_BYTES)) for _ in range(num))
    offer(made, (_drawn(made, source) for source in sources), done)
    _finish(made, done, Source(rng.randbytes(NUM_BYTES)))


def offer(made: Field, files: Iterable[tuple[bytes | None, str]], done: Done) -> None:
    """Begin a study again, and give it files by their endings, before an honest one."""
    made.reset()
    folder = made.root / "incoming"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, (content, ending) in enumerate(files):
        if content is not None:
            (folder / f"{number:05}.{ending}").write_bytes(content)
    made.study.admit("Last", site_key("Last").public)
    (folder / "last.safetensors").write_bytes(signed(made, _honest(made, "Last", 77), "Last"))
    answers = [*made.study.add_all(sorted(folder.iterdir()))]
    for answer in answers:
        if isinstance(answer, UploadError):
            _require_line(str(answer))
            done.refused += 1
            done.reasons.add(answer.reason[:40])
        else:
            done.taken += answer is not None
    if isinstance(answers[-1], UploadError):
        raise Broken(f"an honest file was refused behind the others: {answers[-1]}")


def every_number(made: Field, odd: Sequence[Any]) -> Iterator[tuple[bytes | None, str]]:
    """Each kind of file with each odd number in the place of each of its numbers."""
    site, kinds = LIARS[0], {draft.info["kind"]: draft for draft in made.drafts}
    for draft in kinds.values():
        for changed in _each_change(draft, odd):
            yield _content(partial(signed, made, changed, site)), "safetensors"
    for told in _each_number(made.survey, odd):
        yield _statement(told, site), "survey"


def _each_change(draft: Signed, odd: Sequence[Any]) -> Iterator[Signed]:
    for told in _each_number(draft.info, odd):
        yield replace(draft, info=told)
    for name, array in draft.arrays.items():
        for value in CELLS if array.dtype.kind == "f" else (0, -1, 2**62, -(2**63), 2**63 - 1):
            for where in (..., (0,) * array.ndim):
                changed = array.copy()
                with np.errstate(all="ignore"):
                    changed[where] = value
                yield draft.holding({**draft.arrays, name: changed})


def _each_number(told: Any, odd: Sequence[Any]) -> Iterator[Any]:
    places = {}
    for path in numbers_in(told):  # the last one of each list stands for all
        places[tuple("" if isinstance(name, int) else name for name in path)] = path
    for path in places.values():
        for value in odd:
            yield put(told, path, value)


def _drawn(made: Field, source: Source) -> tuple[bytes | None, str]:
    """One file, and how its name ends."""
    site = source.one_of(LIARS)
    if made.survey and source.below(8) == 0:
        told = made.survey | {"site": site, "key": site_key(site).public.hex}
        for _ in range(1 + source.below(2)):
            if isinstance(told, dict) and told:
                told = source.one_of((*TOLD, _number, _number))(told, source)
        return _statement(told, site), "survey"
    draft = mutated(source.one_of(made.drafts), source)
    return _content(lambda: signed(made, draft, site)), "safetensors"


def _content(make: Callable[[], bytes]) -> bytes | None:
    try:
        return make()
    except (ValueError, KeyError, OverflowError, TypeError, RecursionError, PredbayesError):
        return None  # not even a file


def _statement(told: Any, site: str) -> bytes | None:
    """A statement as a file, signed by a site under the kind that it names."""

    def make() -> bytes:
        content = json.dumps(told, indent=1, ensure_ascii=False).encode()
        return content + f"\n{site_key(site).sign('survey', content)}\n".encode()

    return _content(make)


def _require_line(line: str) -> None:
    if printable(line, None) != line or not 0 < len(line) <= MAX_LINE:
        raise Broken(f"no line to show: {line!a}"[:1000])


def _finish(made: Field, done: Done, source: Source) -> None:
    """Finish a study; what its model says is finite, and its probabilities sum to one."""
    openings = []
    if made.plan.opening:
        openings = _openings(made, made.root / "opening")
        told = _opened(made)
        if source.below(2):
            told = _number(told[0], source), told[1]
        openings[0].write_bytes(_opening(made, *told))
    try:
        recorded, result = made.study.finish(openings=openings)
    except StudyError as error:
        _require_line(str(error))
        if made.plan.opening:
            return  # nobody sees which of the sealed words are nonsense
        raise Broken(f"what was taken in stops the study: {error}") from error
    done.finished += 1
    model = CalibratedModel.load(made.study.result_folder(recorded.number) / "model")
    inputs = torch.randn(40, made.plan.num_inputs, generator=torch.Generator().manual_seed(0))
    moments = model.predictive(inputs).moments().double()
    if not bool(moments.isfinite().all()):
        raise Broken("the model predicts what is not finite")
    if made.plan.target.classes and float((moments.sum(1) - 1).abs().max()) > LEAST_SUM:
        raise Broken("the model's probabilities do not sum to one")
    if made.study.result(recorded.number) != result:
        raise Broken("the result cannot be read as it was written")
    status_of(made.study)
    if problems := made.study.verify():
        raise Broken(f"the study does not verify: {problems}")


def _openings(made: Field, path: Path) -> list[Path]:
    return [path] if made.plan.opening else []


def _opened(made: Field) -> tuple[dict[str, Any], bytes]:
    """What the key holder answers for all that is in: its statement and its words."""
    (request,) = request_sums(made.study)
    keeper = Holder(made.root / "now" / "holder")
    for site in request.sites:
        keeper.admit(site, site_key(site).public)
    content = keeper.open(made.plan, request, made.holder)
    shutil.rmtree(made.root / "now" / "holder")
    line, _, rest = content.partition(b"\n")
    return json.loads(line), rest.partition(b"\n")[2]


def _opening(made: Field, told: dict[str, Any], mask: bytes) -> bytes:
    text = json.dumps(told, separators=(",", ":")).encode()
    return text + f"\n{made.holder.signing.sign('opening', text)}\n".encode() + mask
