"""A result in a folder, and back: safetensors and JSON, nothing pickled.

    result.json             the account, the network's description, temperature and scaling
    weights.safetensors     the network's weight samples
    reference.safetensors   the predictive on the reference rows

`Network.mlp` and `Network.cnn` are built again from their description. A network of one's own is
code, which a folder does not carry: give it to `load`. Where it can be imported its name is written
down; `load` imports it only with ``trust=True``, because importing runs code.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from predbayes.api.result import Account, Result
from predbayes.api.scaling import Scaling
from predbayes.errors import DataError
from predbayes.exchange.strict import Strict, bounded
from predbayes.files import write_bytes
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import Network, NetworkPredictor
from predbayes.learning.nets import cnn, mlp
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import isolated

Made = TypeVar("Made")

RESULT_FILE, WEIGHTS_FILE, REFERENCE_FILE = (
    "result.json",
    "weights.safetensors",
    "reference.safetensors",
)
_BUILT_IN: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn}
_LIKELIHOODS: dict[str, Any] = {kind.__name__: kind for kind in (Softmax, LearnedNoise, FixedNoise)}


_Plain = Annotated[Any, AfterValidator(bounded)]


class NetworkRecord(Strict):
    """A network as far as it can be described."""

    build: str  # mlp, cnn, `module:name` of what can be imported, or nothing
    arguments: list[_Plain]
    options: dict[str, _Plain]
    likelihood: str  # one of ours, or nothing
    likelihood_options: dict[str, _Plain]
    inverse_temperature: float


class ResultRecord(Strict):
    """The content of result.json."""

    format_version: Literal[1] = 1
    account: Account
    network: NetworkRecord | None
    scaling: dict[str, float | list[float]]


def save(result: Result[Any], folder: Path) -> None:
    """Write a result into a folder; its JSON comes last, so a half-written folder has none."""
    model = result.model
    if model is not None and not isinstance(model, NetworkPredictor):
        raise DataError(
            f"a {type(model).__name__} cannot be saved without running code to read it; save "
            "the result of pb.Distilled(method, student=network)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # As the network has it, before it is scaled.
    kept: Any = result.kept or dataclasses.replace(result, scaling=Scaling()).predictive
    fields = {f.name: getattr(kept, f.name) for f in dataclasses.fields(kept)}
    arrays = {name: value.contiguous() for name, value in fields.items() if value is not None}
    save_file(arrays, folder / REFERENCE_FILE)
    if model is not None:
        model.samples.save(folder / WEIGHTS_FILE)
    scaling = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(result.scaling).items()
    }
    record = ResultRecord(
        account=result.account,
        network=None if model is None else _describe(model),
        scaling=scaling,
    )
    write_bytes(folder / RESULT_FILE, f"{record.model_dump_json(indent=2)}\n".encode())


def load(
    folder: str | Path,
    network: Network | Callable[[], nn.Module] | None = None,
    *,
    trust: bool = False,
    device: str = "cpu",
) -> Result[None]:
    """Read a result that was saved; it predicts the same bits.

    Args:
        folder: What `Result.save` wrote.
        network: The network, or the function that builds its module, where it is one's own.
        trust: Import the network by the name that was written down.
        device: Where to predict.
    """
    folder = Path(folder)
    record = _read(folder)
    scaling = _made(
        Scaling,
        **{n: tuple(v) if isinstance(v, list) else v for n, v in record.scaling.items()},
    )
    model = None
    if record.network is not None:
        model = NetworkPredictor(
            _network(record.network, network, trust=trust),
            WeightSamples.load(folder / WEIGHTS_FILE),
            device,
            record.network.inverse_temperature,
        )
        model.samples.require_of(model.network.create(torch.Generator()))
    path = folder / REFERENCE_FILE
    try:
        arrays = load_file(path)
        predictive = (Categorical if "log_probs" in arrays else Gaussian)(**arrays)
    except (OSError, SafetensorError, TypeError) as error:
        raise DataError(f"{path} does not hold a predictive: {error}") from error
    return Result(None, record.account, model, scaling, predictive)


def _read(folder: Path) -> ResultRecord:
    path = folder / RESULT_FILE
    try:
        return ResultRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {RESULT_FILE}; give a folder that a result was saved in"
        ) from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise DataError(f"{path} is not a saved result: {where}: {problem['msg']}") from error


def _describe(model: NetworkPredictor) -> NetworkRecord:
    build: Any = model.network.build
    likelihood = model.network.likelihood
    function, arguments, options = build, [], {}
    if isinstance(build, partial) and build.func in _BUILT_IN.values():
        function, arguments, options = build.func, list(build.args), build.keywords
    known = isinstance(likelihood, tuple(_LIKELIHOODS.values()))
    return NetworkRecord(
        build=_name(function),
        arguments=arguments,
        options=options,
        likelihood=type(likelihood).__name__ if known else "",
        likelihood_options=dataclasses.asdict(likelihood) if known else {},  # type: ignore[call-overload]
        inverse_temperature=model.inverse_temperature,
    )


def _name(function: Any) -> str:
    """The name of a built-in network, `module:name` of what can be imported, or nothing."""
    for name, built_in in _BUILT_IN.items():
        if function is built_in:
            return name
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    importable = module != "__main__" and name.isidentifier()
    return f"{module}:{name}" if importable else ""


def _network(record: NetworkRecord, given: Any, *, trust: bool) -> Network:
    if isinstance(given, Network):
        return given
    if record.likelihood not in _LIKELIHOODS:
        raise DataError("the result's network has a likelihood of its own; give load a pb.Network")
    likelihood: Likelihood = _made(_LIKELIHOODS[record.likelihood], **record.likelihood_options)
    if given is not None:
        return Network(given, likelihood)
    if record.build in _BUILT_IN:
        built_in = partial(_BUILT_IN[record.build], *record.arguments, **record.options)
        with isolated(torch.Generator()):
            _made(built_in)
        return Network(built_in, likelihood)
    if not record.build or not trust:
        known = f", or trust=True to import {record.build}" if record.build else ""
        raise DataError(
            f"its network is code of its own; give pb.load(folder, build){known}: build() makes "
            "the torch module"
        )
    module, _, name = record.build.partition(":")
    try:
        return Network(getattr(importlib.import_module(module), name), likelihood)
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"the result's network {record.build} cannot be imported: {error}"
        ) from error


def _made(build: Callable[..., Made], **options: Any) -> Made:
    """Return what a description builds; refuse one that a damaged file has made senseless."""
    try:
        return build(**options)
    except (TypeError, ValueError, RuntimeError) as error:
        name = getattr(getattr(build, "func", build), "__name__", "")
        reason = str(error).partition("\n")[0]
        raise DataError(f"{RESULT_FILE} describes a {name} that cannot be: {reason}") from error
