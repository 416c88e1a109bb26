"""Is a model as it was signed, and whose is each part of it?

    model.safetensors, model.json    the coordinator's: signed in model.sig, if the plan names a key
    an adjustment, own.safetensors   the site's that adopted the model

So in the folder of an adopted model, if the plan names the coordinator's key, there are besides

    model-signed.json   model.json as the coordinator signed it
    model.sig           his signature, of that and of the weights
    adopted.sig         the site's signature of model.json, with the site's name and key

Of an adopted model the weights are as signed, model.json is the signed one but for the adjustment
and the digest of the site's own half, and those are signed with the key that adopted.sig names.
Whether this key is the site's, the site knows, which has it. Nobody else can know it from these
files alone, so whoever else predicts with such a model is told whose name and key it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from predbayes.errors import StudyError
from predbayes.files import file_digest, write_bytes
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import RESULT_FILE, WEIGHTS_FILE
from predbayes_study.result.model import HEADER_FILE, CalibratedModel, plan_of, read_header
from predbayes_study.result.schema import Result
from predbayes_study.trust.signing import PublicKey, SigningKey
from predbayes_study.trust.statement import (
    ADOPTED_SIGNATURE,
    MODEL_SIGNATURE,
    RESULT_SIGNATURE,
    Adoption,
    FilesStatement,
    Signed,
)

SIGNED_HEADER = "model-signed.json"


def signed_model(folder: Path) -> FilesStatement | None:
    """Return what the coordinator signed of a model; None if the plan names no key of his.

    A model that is not as it was signed is refused.
    """
    plan = plan_of(folder)
    if plan.coordinator is None:
        return None
    statement = _statement(folder, plan)
    for problem in statement.problems(folder, MODEL_SIGNATURE):
        raise StudyError(f"{folder}: {problem}")
    return statement


def load_signed(
    folder: Path, allow_networks: Collection[str] = (), own: PublicKey | None = None
) -> CalibratedModel:
    """Load a model; refuse one that is not as it was signed.

    Args:
        folder: Of the model.
        allow_networks: Names of networks of a consortium's own.
        own: The key of the site here: an adjustment that another key signed is refused.
    """
    model = CalibratedModel.load(folder, allow_networks)
    if model.adjustment is None:
        signed_model(folder)
        return model
    adoption = adoption_of(folder)
    if adoption is not None and own is not None and adoption.key != own.hex:
        raise StudyError(
            f"the adjustment in {folder} is signed with the key "
            f"{PublicKey(adoption.key).fingerprint}, and this site's is {own.fingerprint}: adopt "
            "the study's model here"
        )
    return model


def signed_result(model: Path) -> Result:
    """Read the result that a model's folder is in; refuse one that is not as it was signed."""
    path, header = model.parent / RESULT_FILE, read_header(model / HEADER_FILE)
    if not path.is_file():
        raise StudyError(
            f"there is no {RESULT_FILE} beside {model}, which says what is promised; give the "
            "folder of a study's result"
        )
    try:
        result = Result.model_validate_json(path.read_bytes(), strict=False)
    except (OSError, ValidationError) as error:
        raise StudyError(f"{path} cannot be read as a study's result") from error
    if (result.plan_digest, result.number) != (header.plan_digest, header.number):
        raise StudyError(f"{path} is not of the model beside it")
    if (coordinator := header.plan.coordinator) is not None:
        signature = Signed.read(model.parent / RESULT_SIGNATURE, FilesStatement)
        statement = signature.checked(coordinator.signing, kind="result", plan=header.plan_digest)
        if statement.files.get(RESULT_FILE) != file_digest(path):
            raise StudyError(f"{path} is not as the coordinator signed it")
    return result


def adoption_of(folder: Path) -> Adoption | None:
    """Return who adjusted an adopted model; None if the plan names no coordinator's key.

    One that is not, but for its adjustment, as the coordinator signed it is refused, and so is an
    adjustment that nobody signed.
    """
    plan = plan_of(folder)
    if plan.coordinator is None:
        return None
    if not (folder / ADOPTED_SIGNATURE).exists():
        raise StudyError(
            f"the adjustment in {folder} is signed by nobody; adopt the study's model again"
        )
    came = _statement(folder, plan)
    for name, path in ((HEADER_FILE, SIGNED_HEADER), (WEIGHTS_FILE, WEIGHTS_FILE)):
        if not (folder / path).is_file() or came.files.get(name) != file_digest(folder / path):
            raise StudyError(f"{folder}: {path} is not as the coordinator signed it")
    theirs, ours = (
        read_header(folder / name).model_dump(exclude={"adjustment", "own", "predbayes"})
        for name in (SIGNED_HEADER, HEADER_FILE)
    )
    if theirs != ours:
        raise StudyError(f"{folder}: {HEADER_FILE} differs from {SIGNED_HEADER}")
    says = came.model_dump(include={"plan", "study", "head", "number"})
    model = file_digest(folder / HEADER_FILE)
    return Signed.read(folder / ADOPTED_SIGNATURE, Adoption).checked(**says, model=model)


def sign_adoption(came: Path, folder: Path, site: str, key: SigningKey) -> None:
    """Sign the adjustment of a model that was adopted from the folder in which it came."""
    statement = signed_model(came)
    if statement is None:
        return
    shutil.copyfile(came / HEADER_FILE, folder / SIGNED_HEADER)
    shutil.copyfile(came / MODEL_SIGNATURE, folder / MODEL_SIGNATURE)
    adoption = Adoption(
        **statement.model_dump(include={"plan", "study", "head", "number"}),
        site=site,
        key=key.public.hex,
        model=file_digest(folder / HEADER_FILE),
    )
    write_bytes(folder / ADOPTED_SIGNATURE, Signed.of(adoption, key).file())


def _statement(folder: Path, plan: Plan) -> FilesStatement:
    assert plan.coordinator is not None  # or nothing is signed
    signature = Signed.read(folder / MODEL_SIGNATURE, FilesStatement)
    return signature.checked(plan.coordinator.signing, kind="model", plan=plan.digest())
