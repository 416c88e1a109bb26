"""What an experiment is: a TOML file with settings, axes and methods.

The axes span cells, such as datasets times heterogeneities; each method runs in each cell with
each seed. The more special setting wins: those of the file, then of the cell, then of the
overrides whose `where` holds in the cell, then of the method's own `set`, then of the overrides
for that method, then of its `grid`, then of the command line:

    [axes]
    "data.name" = ["wine", "bike"]

    [[override]]
    where = { "data.name" = "bike" }        # a value, or a list of values
    set = { "sampler.step-size" = 0.5 }

    [methods.fedavg]
    set = { "optimizer.lr" = 0.01 }
    grid = { "optimizer.lr" = [0.1, 0.01] }        # one variant for each value: a grid search
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from predbayes.errors import ExperimentError, no_such
from predbayes.learning.distill import PAPER_DISTILLATION
from predbayes.learning.local import OptimizerSettings
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes_lab.data.registry import lookup
from predbayes_lab.decode import (
    convert,
    decode,
    encode,
    get_dotted,
    hints,
    parse_assignment,
    read_toml,
    require_known,
    with_dotted,
)
from predbayes_lab.records import split_label

BY_CLASS = ("label-skew", "label-skew-released", "dirichlet")  # not for a regression
PARTITIONS = ("homogeneous", *BY_CLASS, "sorted", "groups")
_FIT = OptimizerSettings()


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The dataset, and how it is prepared.

    ``name`` may be an import string of a function (`predbayes_lab.datasets`).
    """

    name: str
    variant: Literal["default", "released", "features"] = "default"


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The way in which rows are dealt to sites."""

    kind: str = "homogeneous"
    num_clients: int = 5
    heterogeneity: float = 0.0  # the paper's h
    concentration: float = 0.5  # of the Dirichlet

    def __post_init__(self) -> None:
        require_known("partition", [self.kind], PARTITIONS)


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """The coordinator's rows: a random part of the training rows, some or all of them labelled.

    ``num_rows`` of that part are used; sites have the same rows whatever it is. Another ``draw``
    labels other rows of it. Reference rows that fit the sites badly are of half the ``classes``, or
    of another dataset, ``population``, whose labels mean nothing.
    """

    fraction: float = 0.2
    num_labels: int | None = None
    num_rows: int | None = None
    draw: int = 0
    classes: Literal["all", "half"] = "all"
    population: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ExperimentError(f"fraction must be between 0 and 1, not {self.fraction}")
        if self.population and self.num_labels != 0:
            raise ExperimentError("reference.population asks for reference.num-labels = 0")


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network of sites and student: the paper's, or one of your own.

    ``kind`` may be an import string of a function of (input shape, number of outputs).
    """

    kind: str = "mlp"
    hidden: tuple[int, ...] = (100, 100)
    noise: Literal["learned", "released"] = "learned"  # of a regression
    balanced: bool = False  # of sites: classes as if they were equally frequent


@dataclass(frozen=True, slots=True)
class StudentSettings:
    """Differences of a student from the sites' networks; by default none, as in the paper.

    ``recalibrate`` tunes one temperature of the student on the labelled reference rows.
    """

    hidden: tuple[int, ...] | None = None  # widths of an MLP; None: as the sites'
    recalibrate: bool = False


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """Members of a deep ensemble."""

    size: int = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run depends on besides method and seed."""

    data: DataSettings
    partition: PartitionSettings = PartitionSettings()
    reference: ReferenceSettings = ReferenceSettings()
    network: NetworkSettings = NetworkSettings()
    sampler: SamplerSettings = PRESETS["paper"]
    optimizer: OptimizerSettings = _FIT
    ensemble: EnsembleSettings = EnsembleSettings()
    distillation: OptimizerSettings = PAPER_DISTILLATION
    student: StudentSettings = StudentSettings()
    evaluate: Literal["test", "validation"] = "test"

    def __post_init__(self) -> None:
        if self.student.hidden is not None and self.network.kind != "mlp":
            raise ExperimentError(
                f"student.hidden is for network.kind = 'mlp', not {self.network.kind!r}"
            )

    @classmethod
    def decode(cls, tables: Mapping[str, Any]) -> Self:
        """Decode the resolved tables of a config."""
        require_known("setting", tables, _SETTINGS)
        sampler = dict(tables.get("sampler", {}))
        preset = sampler.pop("preset", "paper")
        require_known("preset", [str(preset)], PRESETS)
        bases = {part.name: part.default for part in fields(cls)}
        bases |= {"data": None, "sampler": PRESETS[preset]}
        given, types = {"evaluate": "test", **tables, "sampler": sampler}, dict(hints(Settings))
        evaluate = convert(types.pop("evaluate"), given["evaluate"], "evaluate")
        parts = {n: decode(part, given.get(n, {}), n, bases[n]) for n, part in types.items()}
        return cls(**parts, evaluate=evaluate)

    @property
    def student_network(self) -> NetworkSettings:
        """The network to distil into: the sites', or one of other widths."""
        if self.student.hidden is None:
            return self.network
        return replace(self.network, hidden=self.student.hidden)


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """One line of a table.

    Args:
        method: A name of `predbayes_lab.methods.METHODS`, or an import string of your own;
            by default the label.
        learner: ``sampler``, ``optimizer``, ``ensemble``, an estimator by its name in a plan, or an
            import string of a scikit-learn estimator; by default the method's own.
        student: Whether to distil the result; the student is scored under "LABEL student".
        num_rounds: Rounds of communication.
        options: Arguments of the method.
        set: Settings of this method alone, by dotted key; "options.NAME" is an argument.
        grid: Values to try, by dotted key.
    """

    method: str = ""
    learner: str = ""
    student: bool = False
    num_rounds: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise ExperimentError(f"num-rounds must be at least 1, not {self.num_rounds}")
        for key, values in self.grid.items():
            if not values:
                raise ExperimentError(f"the grid of {key!r} has no values")

    def variants(self, label: str) -> Iterator[tuple[str, MethodSettings]]:
        """Return one method for each combination of the grid's values, or the method itself."""
        for values in itertools.product(*self.grid.values()):
            chosen = dict(zip(self.grid, values, strict=True))
            if not chosen:
                yield label, self
                continue
            name = ",".join(_short(key, value) for key, value in chosen.items())
            single = {key: [value] for key, value in chosen.items()}
            yield f"{label}[{name}]", replace(self, method=self.method or label, grid=single)


@dataclass(frozen=True, slots=True)
class Override:
    """Settings that hold in some cells, for all methods or some."""

    where: dict[str, Any]
    set: dict[str, Any]
    methods: tuple[str, ...] = ()  # labels; all if empty

    def holds(self, tables: Mapping[str, Any], label: str) -> bool:
        """Say whether it applies to a method under these settings."""
        if self.methods and split_label(label)[0] not in self.methods:
            return False
        return all(get_dotted(tables, key) in _as_list(value) for key, value in self.where.items())


@dataclass(frozen=True, slots=True)
class Experiment:
    """A config, checked."""

    name: str
    title: str
    seeds: tuple[int, ...]
    axes: dict[str, list[Any]]
    overrides: tuple[Override, ...]
    methods: dict[str, MethodSettings]
    tables: dict[str, Any]  # the settings as written
    last: dict[str, Any]  # settings of the command line, which hold everywhere

    def cells(self) -> list[dict[str, Any]]:
        """List every combination of the axes' values."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]

    def settings(self, cell: Mapping[str, Any], label: str) -> Settings:
        """Return the settings of a method in a cell."""
        settings: dict[str, Any] = {}
        for key, value in self._assigned(cell, label):
            if not key.startswith(_OPTIONS):
                settings.pop(key, None)  # the last place counts: a whole table may stand between
                settings[key] = value
        return Settings.decode(_with_all(self.tables, settings))

    def method(self, cell: Mapping[str, Any], label: str) -> MethodSettings:
        """Return a method with the options that it has in a cell."""
        given = {
            key.removeprefix(_OPTIONS): value
            for key, value in self._assigned(cell, label)
            if key.startswith(_OPTIONS)
        }
        method = self.methods[label]
        return replace(
            method, method=method.method or label, options=method.options | given, set={}, grid={}
        )

    def _decoded(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a cell before any override, defaults included."""
        given = {key: v for key, v in {**cell, **self.last}.items() if not key.startswith(_OPTIONS)}
        return resolved(Settings.decode(_with_all(self.tables, given)))

    def _assigned(self, cell: Mapping[str, Any], label: str) -> list[tuple[str, Any]]:
        """Keys and values in the order in which they are set."""
        here = self._decoded(cell) if self.overrides else {}
        held = [override for override in self.overrides if override.holds(here, label)]
        steps = [cell, *(override.set for override in held if not override.methods)]
        method = self.methods[label]
        steps += [method.set, *(override.set for override in held if override.methods)]
        steps += [{key: values[0] for key, values in method.grid.items()}, self.last]
        return [item for step in steps for item in step.items()]


_OPTIONS = "options."
_MAX_SEEDS = 10_000
_SEVERAL_ROUNDS = ("fedavg", "fedprox", "fedyogi", "fedpa")
_SETTINGS = tuple(part.name for part in fields(Settings))
_KEYS = ("title", "seeds", "axes", "override", "methods", *_SETTINGS)


def load_experiment(
    source: str, *, assignments: Sequence[str] = (), methods: Sequence[str] = ()
) -> Experiment:
    """Load a shipped config by name, or a TOML file, with settings from the command line.

    Args:
        source: A name that `shipped` lists, or a path.
        assignments: ``key=value``; a value for an axis leaves that value of it only.
        methods: Labels to keep; all if empty.
    """
    path = find_config(source)
    tables = read_toml(path)
    require_known("key", tables, _KEYS, f"{path.name}: ")
    axes, last = dict(tables.get("axes", {})), {}
    for text in assignments:
        key, value = parse_assignment(text)
        if key in axes:
            axes[key] = _as_list(value)
        else:
            last[key] = value
    experiment = Experiment(
        name=path.stem,
        title=tables.get("title", path.stem),
        seeds=_seeds(tables.get("seeds", 1)),
        axes=axes,
        overrides=tuple(decode(Override, o, "override") for o in tables.get("override", [])),
        methods=_methods(tables.get("methods", {}), methods),
        tables={key: tables[key] for key in _SETTINGS if key in tables},
        last=last,
    )
    _check(experiment, list(tables.get("methods", {})))
    return experiment


def shipped() -> dict[str, Path]:
    """List the configs that come with the package, by name."""
    folder = Path(str(resources.files("predbayes_lab") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds as given on the command line.

    Examples:
        >>> parse_seeds("0-2,7")
        (0, 1, 2, 7)
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not 0 <= last - first < _MAX_SEEDS:
            raise ExperimentError(f"seeds are given like 0-9 or 0,3,5, not {text!r}")
        seeds += range(first, last + 1)
    return tuple(seeds)


def resolved(settings: Settings) -> dict[str, Any]:
    """Return settings as plain tables."""
    parts = {name: getattr(settings, name) for name in _SETTINGS}
    return {name: part if isinstance(part, str) else encode(part) for name, part in parts.items()}


def find_config(source: str) -> Path:
    """Find the file of a shipped config, or a file of one's own."""
    if source in shipped():
        return shipped()[source]
    path = Path(source)
    if path.is_file():
        return path
    if path.suffix == ".toml":
        raise ExperimentError(f"there is no file {source}")
    raise ExperimentError(no_such("experiment", source, shipped()))


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and value > 0:
        return tuple(range(value))
    if isinstance(value, list) and value and all(isinstance(seed, int) for seed in value):
        return tuple(value)
    raise ExperimentError(f"seeds must be a number of seeds or a list of them, not {value!r}")


def _methods(tables: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, MethodSettings]:
    if not tables:
        raise ExperimentError("the config has no methods; give it a table [methods.NAME]")
    require_known("method", wanted, tables)
    return {
        name: variant
        for label, table in tables.items()
        if not wanted or label in wanted
        for name, variant in decode(MethodSettings, table, f"methods.{label}").variants(label)
    }


def _check(experiment: Experiment, known: Sequence[str]) -> None:
    """Decode every cell of every method, so that a mistake shows before the first run."""
    for axis, values in experiment.axes.items():
        if not isinstance(values, list) or not values:
            raise ExperimentError(f"axis {axis!r} needs a list of values, not {values!r}")
    for label in experiment.methods:
        for cell in experiment.cells():
            name = experiment.settings(cell, label).data.name
            if ":" not in name:  # one's own is imported when it is read
                lookup(name)
        method = experiment.method(experiment.cells()[0], label)
        one_round = ":" not in method.method and method.method not in _SEVERAL_ROUNDS
        if method.num_rounds > 1 and one_round:
            raise ExperimentError(
                f"methods.{label}: {method.method} is run in one round; "
                f"{', '.join(_SEVERAL_ROUNDS)} go on from the last round's model"
            )
    keys = _dotted(experiment._decoded(experiment.cells()[0]))
    for override in experiment.overrides:
        require_known("setting", override.where, keys, "override: ")
        require_known("method", override.methods, known, "override: ")


def _dotted(tables: Mapping[str, Any]) -> list[str]:
    """Every key of nested tables, as overrides name it."""
    keys = []
    for part, table in tables.items():
        keys += [f"{part}.{name}" for name in table] if isinstance(table, Mapping) else [part]
    return keys


def _short(key: str, value: Any) -> str:
    """A value of a grid in a label; of a whole table, its keys."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return f"{key}={value}"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _with_all(tables: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(tables)
    for key, value in values.items():
        result = with_dotted(result, key, value)
    return result
