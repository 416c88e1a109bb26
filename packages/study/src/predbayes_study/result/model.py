"""The model that a study gives back: raw columns in, calibrated predictions out.

Files in one folder, which nobody needs to trust: numbers and text that cannot run code.

    model.safetensors   the network's weights
    model.json          the plan, the temperature, and the digests of both; the level, if sites set
                        one; of a model that a site adopted also its adjustment
    own.safetensors     of a model that a site adopted by half: the weights of her own network
    model.sig           signed by the coordinator, if the plan names his key: these files, and the
                        study that they are of (`predbayes_study.result.signed`)

The plan is all the preprocessing there is, so a table in the plan's units is enough to predict.
A number outside its plausible range counts as the end of the range; `predbayes_study.tables.coding`
says which ones those are.

A model that was pooled without a label has the level that sites' held-out rows ask for
(`predbayes_study.tasks.echo`).

A site that adopts a model (`predbayes_study.site.adopt`) changes as little of it as fits its rows:

    classes    eta_c = log p_c + b_c, and sum_c b_c = 0
    numbers    mean + s and k var, in standard units
    survival   log odds of every hazard + s

Adopted by half, natural parameters are the mean of these and of the site's own network:

    eta = 1/2 eta_adopted + 1/2 eta_own
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd
import safetensors.torch
import torch
from pydantic import ConfigDict, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

import predbayes
from predbayes.errors import DataError, StudyError, UploadError
from predbayes.exchange.strict import Strict
from predbayes.files import open_regular, remove, write_bytes
from predbayes.learning.local import Network, NetworkPredictor
from predbayes.optional import require
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes_study.plan.models import student_network
from predbayes_study.plan.networks import HOW_TO_ALLOW, require_allowed
from predbayes_study.plan.schema import Plan, Positive, Section, Vector
from predbayes_study.result.accepted import WEIGHTS_FILE
from predbayes_study.tables.coding import Encoder, encode
from predbayes_study.tasks import AnyAdjustment, task_of
from predbayes_study.tasks.echo import ModelLevel
from predbayes_study.tasks.task import Adjustment

HEADER_FILE = "model.json"
OWN_FILE = "own.safetensors"


class OwnHalf(Section):
    """What model.json says of a site's own network."""

    weights_digest: str
    inverse_temperature: Positive


class ModelHeader(Section):
    """What model.json says."""

    format: Literal[1] = 1
    predbayes: str
    number: int
    plan_digest: str
    weights_digest: str
    inverse_temperature: Positive
    plan: Plan
    level: ModelLevel | None = None  # not written where there is none
    adjustment: AnyAdjustment | None = None  # the same
    own: OwnHalf | None = None  # the same


class _Origin(Strict):
    """The part of model.json that every format has."""

    model_config = ConfigDict(extra="ignore")

    format: int
    predbayes: str


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """A study's network with its plan; ``number`` is that of the result it belongs to."""

    plan: Plan
    predictor: NetworkPredictor
    number: int = 1
    level: ModelLevel | None = None  # that sites' held-out rows gave it
    adjustment: Adjustment | None = None  # of the site that adopted it
    own: NetworkPredictor | None = None  # that site's, if it adopted by half

    def __post_init__(self) -> None:
        if self.own is not None and self.adjustment is None:
            raise StudyError("half of the model is a site's own, and it has no adjustment of hers")
        if self.adjustment is not None and not self.adjustment.fits(self.plan):
            raise StudyError("the adjustment is not of the plan's target")
        if self.level is not None and not self.level.fits(self.plan):
            raise StudyError("the level is not of the plan's target")

    def save(self, folder: str | Path) -> None:
        """Write the two files; equal models give equal bytes."""
        folder = Path(folder)
        weights, own = _weights(self.predictor), None
        if self.own is not None:
            own_weights = _weights(self.own)
            own = OwnHalf(
                weights_digest=hashlib.sha256(own_weights).hexdigest(),
                inverse_temperature=self.own.inverse_temperature,
            )
        # Where the reference rows lay on the coordinator's disk is nobody's business.
        reference = self.plan.reference.model_copy(update={"file": ""})
        header = ModelHeader(
            predbayes=predbayes.__version__,
            number=self.number,
            plan_digest=self.plan.digest(),
            weights_digest=hashlib.sha256(weights).hexdigest(),
            inverse_temperature=self.predictor.inverse_temperature,
            plan=self.plan.model_copy(update={"reference": reference}),
            level=self.level,
            adjustment=cast("AnyAdjustment | None", self.adjustment),
            own=own,
        )
        optional = ("level", "adjustment", "own")
        left_out = {name for name in optional if getattr(header, name) is None}
        text = header.model_dump_json(indent=2, exclude=left_out)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / WEIGHTS_FILE, weights)
        if own is not None:
            write_bytes(folder / OWN_FILE, own_weights)
        write_bytes(folder / HEADER_FILE, text.encode() + b"\n")
        if own is None:
            remove(folder / OWN_FILE)  # of an earlier adoption

    @classmethod
    def load(cls, folder: str | Path, allow_networks: Collection[str] = ()) -> CalibratedModel:
        """Read and check the two files.

        Args:
            folder: Where they are.
            allow_networks: Names of networks of a consortium's own. Such a network is code: it is
                imported only if it is among these, and installed as the plan says.
        """
        folder = Path(folder)
        header = read_header(folder / HEADER_FILE)
        return cls.of(header, lambda name: _read(folder / name), allow_networks)

    @classmethod
    def of(
        cls,
        header: ModelHeader,
        content: Callable[[str], bytes],
        allow_networks: Collection[str] = (),
    ) -> CalibratedModel:
        """Make a model of the contents of its files.

        Args:
            header: What model.json says.
            content: Returns what is in a file of weights, by its name.
            allow_networks: As for `load`.
        """
        require_allowed(header.plan, allow_networks, HOW_TO_ALLOW)
        network = student_network(header.plan)
        told, own = header.own, None
        predictor = _network_of(WEIGHTS_FILE, content(WEIGHTS_FILE), header, network)
        if told is not None:
            own = _network_of(OWN_FILE, content(OWN_FILE), told, network)
        return cls(header.plan, predictor, header.number, header.level, header.adjustment, own)

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weights' file, which an adopted model shares."""
        return hashlib.sha256(_weights(self.predictor)).hexdigest()

    def predictive(self, inputs: Tensor) -> Predictive:
        """Predict from network inputs, (N, plan.num_inputs); numbers are in standard units."""
        predictive = self.predictor.predict(inputs)
        own = None if self.own is None else self.own.predict(inputs)
        return _adjusted(predictive, self.level, self.adjustment, own)

    def before_level(self, inputs: Tensor) -> Predictive:
        """Predict as the pool did: what sites evaluate, and what promised coverage rests on."""
        return self.predictor.predict(inputs)

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Return the network inputs of a table in the plan's units."""
        return encode(self.plan, frame, outside="clip")

    def predict(self, frame: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
        """Predict for a table in the plan's units, one row for each of its rows.

        Of a class the probabilities, ``probability_<class>``, and the likeliest, ``predicted``;
        of a number `predbayes_study.tasks.numbers.NUMBERS`; of a time to an event the probability
        to be without it at the end of each interval, ``survival_<time>``, and the ``median`` time,
        empty if it is after the last.

        Args:
            frame: At least the plan's columns, as read by `predbayes_study.tables.coding`.
            level: Probability of the interval from ``low`` to ``high``.
        """
        return self.told(self.encode(frame), frame.index, level)

    def told(self, inputs: Tensor, index: pd.Index, level: float = 0.95) -> pd.DataFrame:
        """Return the predictions of `predict` for network inputs, with the index of their rows."""
        described = describe(self.plan, self.predictive(inputs), level)
        return pd.DataFrame(task_of(self.plan).columns(self.plan, described), index=index)

    def export_onnx(self, path: Path, level: float = 0.95) -> None:
        """Write one ONNX file from codes to what `predict` says.

        Its input ``codes`` is (rows, columns) in float64, in the plan's order: numbers in the
        plan's units, categories as their index (their number for any other word), NaN for what is
        missing. Its outputs are ``probabilities`` (rows, classes), or ``target_mean`` and so on
        for each of `NUMBERS`, (rows,) each, or ``survival`` (rows, intervals) and ``median``
        (rows,), in float32. The columns, categories and classes are in
        the file's metadata. Vectors are inputs of their own, by the names of their columns:
        (rows, size) in float32; their code is 0, or NaN for none.
        """
        require("onnxscript", "core[onnx]")
        module = _Deployed(self, level).eval()
        vectors, rows = self.plan.vectors, {0: torch.export.Dim("rows")}
        codes = torch.zeros(2, len(self.plan.columns), dtype=torch.float64)
        values = [torch.zeros(2, column.size) for column in vectors.values()]
        with _quiet():
            program = torch.onnx.export(
                module,
                (codes, *values),
                dynamo=True,
                verbose=False,
                input_names=["codes", *vectors],
                output_names=module.outputs,
                dynamic_shapes=(rows, (rows,) * len(vectors)) if vectors else (rows,),
            )
        proto = cast("Any", program).model_proto
        _strip(proto)
        require("onnx", "core[onnx]").helper.set_model_props(proto, self._metadata(level))
        write_bytes(path, proto.SerializeToString(deterministic=True))

    def _metadata(self, level: float) -> dict[str, str]:
        plan = self.plan
        entries = {
            "columns": {name: column.model_dump() for name, column in plan.columns.items()},
            "target": plan.target.model_dump(),
            "study": plan.name,
            "plan_digest": plan.digest(),
            "number": self.number,
            "predbayes": predbayes.__version__,
        }
        if task_of(plan).is_scaled:
            entries["level"] = level
        if self.level is not None:
            entries["model_level"] = self.level.model_dump()
        if self.adjustment is not None:
            entries["adjustment"] = self.adjustment.model_dump()
        return {name: e if isinstance(e, str) else json.dumps(e) for name, e in entries.items()}


def halved(adopted: Predictive, own: Predictive) -> Predictive:
    """Half of each, in natural parameters.

    Examples:
        >>> from predbayes.predictive.families import Categorical
        >>> even = Categorical.from_moments(torch.tensor([[0.5, 0.5]]))
        >>> sure = Categorical.from_moments(torch.tensor([[0.9, 0.1]]))
        >>> halved(even, sure).moments()  # odds of 3, the root of 9
        tensor([[0.7500, 0.2500]])
    """
    return type(adopted).from_natural(0.5 * adopted.natural() + 0.5 * own.natural())


def _adjusted(
    predictive: Predictive,
    level: ModelLevel | None,
    adjustment: Adjustment | None,
    own: Predictive | None,
) -> Predictive:
    if level is not None:
        predictive = level.apply(predictive)
    if adjustment is not None:
        predictive = adjustment.apply(predictive)
    return predictive if own is None else halved(predictive, own)


def _weights(predictor: NetworkPredictor) -> bytes:
    arrays = predictor.samples.arrays()
    return safetensors.torch.save({name: a.contiguous() for name, a in arrays.items()})


def model_folder(path: Path) -> Path:
    """Return the folder itself, or the model in the folder of a result."""
    for folder in (path, path / "model"):
        if (folder / HEADER_FILE).is_file():
            return folder
    raise StudyError(f"there is no {HEADER_FILE} in {path}; give the folder of a study's result")


def plan_of(folder: Path) -> Plan:
    """Return the plan of a model, whose weights are not read."""
    return read_header(folder / HEADER_FILE).plan


def describe(plan: Plan, predictive: Predictive, level: float) -> dict[str, Tensor]:
    """Return what a user is told, in float64, as the plan's task has it (`Task.describe`)."""
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, not {level:g}")
    return task_of(plan).describe(plan, predictive, level)


class _Deployed(nn.Module):
    """All of a model as one module: codes in, what a user is told out."""

    least: Tensor  # (columns,)
    greatest: Tensor  # (columns,)

    def __init__(self, model: CalibratedModel, level: float) -> None:
        super().__init__()
        self.plan, self.level = model.plan, level
        self.level_of_model, self.adjustment = model.level, model.adjustment
        self.encoder = Encoder(model.plan)
        self.common = _Networks(model.predictor)
        self.own = None if model.own is None else _Networks(model.own)
        for name, bound in zip(("least", "greatest"), _bounds(model.plan), strict=True):
            self.register_buffer(name, torch.tensor(bound, dtype=torch.float64))

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` returns."""
        return list(task_of(self.plan).outputs)

    def forward(self, codes: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        # Comparisons leave NaN, which is missing, as it is.
        codes = torch.where(codes < self.least, self.least, codes)
        codes = torch.where(codes > self.greatest, self.greatest, codes)
        inputs = self.encoder(codes, *vectors)
        own = None if self.own is None else self.own(inputs)
        common = self.common(inputs)
        predictive = _adjusted(common, self.level_of_model, self.adjustment, own)
        return tuple(v.float() for v in describe(self.plan, predictive, self.level).values())


class _Networks(nn.Module):
    """The networks of a predictor's samples: inputs in, their predictive out."""

    def __init__(self, predictor: NetworkPredictor) -> None:
        super().__init__()
        self.likelihood = predictor.network.likelihood
        self.inverse_temperature = predictor.inverse_temperature
        self.nets = nn.ModuleList()
        for index in range(len(predictor.samples)):
            net = predictor.network.create(torch.Generator())
            predictor.samples.load_into(net, index)
            self.nets.append(net.eval())

    def forward(self, inputs: Tensor) -> Predictive:
        outputs = torch.stack([net(inputs) for net in self.nets])
        predictive = self.likelihood.predictive(outputs)
        return predictive.from_natural(self.inverse_temperature * predictive.natural())


def _bounds(plan: Plan) -> tuple[list[float], list[float]]:
    free = (-math.inf, math.inf)
    ranges = [free if isinstance(c, Vector) else c.range or free for c in plan.columns.values()]
    return [least for least, _ in ranges], [greatest for _, greatest in ranges]


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about its own workings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _strip(proto: Any) -> None:
    """Remove the exporter's stack traces, which name files on this machine."""
    graph = proto.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    for part in (graph, *graph.node, *graph.initializer, *values):
        del part.metadata_props[:]


def read_header(path: Path) -> ModelHeader:
    """Read and check model.json; weights are not read."""
    return header_of(_read(path), path.name)


def header_of(text: bytes, name: str = HEADER_FILE) -> ModelHeader:
    """Check the content of a model.json, which has this name."""
    try:
        origin = _Origin.model_validate_json(text)
    except ValidationError as error:
        raise StudyError(f"{name} does not describe a model of predbayes") from error
    if origin.format != 1:
        raise StudyError(
            f"{name} has format {origin.format}, which predbayes {predbayes.__version__} "
            f"does not know; install predbayes {origin.predbayes[:20]} or newer"
        )
    try:
        header = ModelHeader.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or name
        raise StudyError(f"{name} was altered: {where}: {problem['msg']}") from error
    if header.plan.frozen is None:
        raise StudyError(f"{name} has the draft of a plan, and no study gives such a model")
    if header.plan.digest() != header.plan_digest:
        raise StudyError(f"{name} was altered: its plan does not have the digest it gives")
    return header


def _network_of(
    name: str, weights: bytes, told: ModelHeader | OwnHalf, network: Network
) -> NetworkPredictor:
    samples = _samples_of(name, weights, told.weights_digest, network)
    return NetworkPredictor(network, samples, inverse_temperature=told.inverse_temperature)


def _samples_of(name: str, weights: bytes, digest: str, network: Network) -> WeightSamples:
    if hashlib.sha256(weights).hexdigest() != digest:
        raise StudyError(f"{name} was altered: its digest is not that in {HEADER_FILE}")
    try:
        samples = WeightSamples.from_arrays(safetensors.torch.load(weights))
        # Shapes alone, whatever size the plan's network claims to have.
        with torch.device("meta"):
            samples.require_of(network.likelihood.attach(network.build()))
    except (SafetensorError, UploadError) as error:
        raise StudyError(f"{name} does not hold the plan's network: {error}") from error
    if not all(bool(array.isfinite().all()) for array in samples.arrays().values()):
        raise StudyError(f"{name} has weights that are not finite")
    return samples


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror}") from error
