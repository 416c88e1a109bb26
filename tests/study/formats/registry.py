"""Every format of a file that leaves the computer it was made on, or is kept: reader and headline.

A headline is what a person would check a file by: numbers, names and digests, as JSON has them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

import predbayes as pb
from predbayes.exchange.upload import Upload
from predbayes_study.coordinator.state import State
from predbayes_study.extras.sealed.masking import read_opening, read_request
from predbayes_study.extras.survey.surveyfile import read_survey
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Result
from predbayes_study.site.deletion import SiteDeletion
from predbayes_study.store.ledger import Ledger
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.sealed import unseal
from predbayes_study.trust.statement import Receipt, Signed

FILES = Path(__file__).with_name("files")
Headline = Any


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def _upload(path: Path) -> Headline:
    upload = Upload.load(path)
    arrays = {name: [list(a.shape), _digest(a)] for name, a in sorted(upload.arrays.items())}
    return [upload.info.site, upload.info.kind, upload.info.num_rows, arrays]


def _sealed(path: Path) -> Headline:
    key = CoordinatorKey.load(FILES / "coordinator.key")
    with tempfile.TemporaryDirectory() as private:
        plain = Path(private, "plain")
        envelope = unseal(path, plain, key.encryption, Kit.load(FILES / "kit-1").digest)
        return [envelope.site, _upload(plain)]


def _kit(path: Path) -> Headline:
    kit = Kit.load(path)
    return [kit.plan.name, kit.digest, kit.fingerprint, list(kit.inputs.shape), _digest(kit.inputs)]


def _labels(path: Path) -> Headline:
    labels = Labels.load(path, Kit.load(FILES / "kit-1"))
    return [len(labels.order), len(labels.evaluate_targets), _digest(labels.order)]


def _ledger(path: Path) -> Headline:
    ledger = Ledger(path)
    state = State.of(ledger.read())
    return [sorted(state.uploads), sorted(state.keys), len(state.results)]


def _result(path: Path) -> Headline:
    result = Result.model_validate_json(path.read_bytes(), strict=False)
    return [result.number, result.study, [site.site for site in result.sites], result.scored_on]


def _model(path: Path) -> Headline:
    model = CalibratedModel.load(path)
    return [model.number, model.plan.name, len(model.plan.columns)]


def _receipt(path: Path) -> Headline:
    key = Kit.load(FILES / "kit-1").plan.coordinator
    assert key is not None
    told = Signed.read(path, Receipt).checked(key.signing)
    return [told.kind, told.site, told.number, told.head]


def _site(path: Path) -> Headline:
    return SiteFile.load(path).name


def _survey(path: Path) -> Headline:
    survey, is_signed = read_survey(path)
    return [survey.digest(), is_signed, sorted(survey.columns)]


def _request(path: Path) -> Headline:
    return sorted(read_request(path).sites)


def _opening(path: Path) -> Headline:
    size = json.loads(path.read_bytes().partition(b"\n")[0])["size"]
    told, mask = read_opening(path, size)
    return [sorted(told.sites), told.size, _digest(mask)]


def _estimator(path: Path) -> Headline:
    model = pb.FederatedClassifier.load(path)
    inputs = [[0.5, -0.25], [-1.0, 0.5]]
    return [list(model.classes_), model.n_features_in_, list(model.predict(inputs))]


def _saved(path: Path) -> Headline:
    result = pb.load(path)
    return [sorted(result.account.sites), list(result.predictive.natural().shape)]


def _deletion(path: Path) -> Headline:
    told = SiteDeletion.model_validate_json(path.read_bytes().partition(b"\n")[0])
    return [told.site, told.removed]


FORMATS: dict[str, tuple[str, Callable[[Path], Headline]]] = {
    "kit-1": ("predbayes_study.plan.schema:Plan", _kit),
    "labels-1.json": ("predbayes_study.kit.kit:_Contents", _labels),
    "ledger-1.jsonl": ("", _ledger),
    "upload-1.safetensors": ("predbayes.exchange.header:UploadInfo", _upload),
    "sealed-1.sealed": ("predbayes_study.trust.sealed:MAGIC", _sealed),
    "receipt-1.receipt": ("predbayes_study.trust.statement:Statement", _receipt),
    "result-1.json": ("predbayes_study.result.schema:Result", _result),
    "model-1": ("predbayes_study.result.model:ModelHeader", _model),
    "site-1.toml": ("predbayes_study.tables.sitefile:SiteFile", _site),
    "survey-1.survey": ("predbayes_study.extras.survey.surveyfile:Survey", _survey),
    "request-1.json": ("predbayes_study.extras.sealed.masking:Request", _request),
    "opening-1.opening": ("predbayes_study.extras.sealed.masking:Opening", _opening),
    "deletion-1.deletion": ("predbayes_study.site.deletion:SiteDeletion", _deletion),
    "estimator-1": ("predbayes.api.estimators:EstimatorRecord", _estimator),
}
"""File or folder: where the code has its number (nowhere: it has none), and how it is read."""

LIKEWISE = {"estimator-1": ("predbayes.api.saved:ResultRecord", _saved)}
"""What is in a folder beside it."""

MADE_AGAIN = {"predbayes_study.extras.audit.leakage:AttackResult"}
"""Formats of files that stay where they were made, and are made again by whoever lacks them."""
