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

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from predbayes.errors import StudyError
from predbayes.files import file_digest, write_bytes
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import RESULT_FILE, WEIGHTS_FILE
from predbayes_study.result.model import (
    HEADER_FILE,
    OWN_FILE,
    CalibratedModel,
    ModelHeader,
    header_of,
    model_folder,
)
from predbayes_study.result.schema import Result
from predbayes_study.trust.signing import PublicKey, SigningKey
from predbayes_study.trust.statement import (
    ADOPTED_SIGNATURE,
    MODEL_SIGNATURE,
    RESULT_SIGNATURE,
    Adoption,
    FilesStatement,
    Folder,
    Signed,
)

SIGNED_HEADER = "model-signed.json"


@dataclass(frozen=True, slots=True)
class SignedModel:
    """A model with all that was read of it, once, and that is as it was signed."""

    model: CalibratedModel
    files: Folder  # of the model
    result: Folder | None  # of the result that it was given by; None if it was given alone
    statement: FilesStatement | None  # None if the plan names no key of the coordinator
    adoption: Adoption | None = None  # who adjusted it


def load_signed(
    folder: Path, allow_networks: Collection[str] = (), own: PublicKey | None = None
) -> SignedModel:
    """Read a model; refuse one that is not as it was signed.

    Of the folder of a result all files are compared, of that of a model the model's.

    Args:
        folder: Of a result or of its model.
        allow_networks: Names of networks of a consortium's own.
        own: The key of the site here: an adjustment that another key signed is refused.
    """
    inside = model_folder(folder).relative_to(folder).as_posix()
    names = [HEADER_FILE, WEIGHTS_FILE, OWN_FILE, SIGNED_HEADER, MODEL_SIGNATURE, ADOPTED_SIGNATURE]
    if inside == ".":
        files, result = Folder.read(folder, names), None
    else:
        wanted = [f"{inside}/{name}" for name in names]
        result = Folder.read(folder, [*wanted, RESULT_FILE, RESULT_SIGNATURE])
        files = result.inner(inside)
    header = header_of(files.content(HEADER_FILE))
    adoption, statement, named = None, None, header.plan.coordinator
    if named is not None and header.adjustment is None:
        if result is not None:
            _checked(result, header.plan, "result", RESULT_SIGNATURE)
        statement = _checked(files, header.plan, "model", MODEL_SIGNATURE)
    elif named is not None:
        adoption = _adoption(files, header)
        if own is not None and adoption.key != own.hex:
            raise StudyError(
                f"the adjustment in {folder} is signed with the key "
                f"{PublicKey(adoption.key).fingerprint}, and this site's is {own.fingerprint}: "
                "adopt the study's model here"
            )
    model = CalibratedModel.of(header, files.content, allow_networks)
    return SignedModel(model, files, result, statement, adoption)


def _checked(
    folder: Folder, plan: Plan, kind: Literal["model", "result"], name: str
) -> FilesStatement:
    """Return what the coordinator signed of a folder, all of which must be as he signed it."""
    statement = _statement(folder, plan, kind, name)
    for problem in statement.problems(folder, name):
        raise StudyError(
            f"{folder.path}: {problem}; get it anew from the coordinator, or take out what is not "
            "of the study"
        )
    return statement


def signed_result(found: SignedModel) -> Result:
    """Read the result that a model is of; refuse one that is not as it was signed."""
    model, folder = found.model, found.result
    if folder is None:
        beside = found.files.path.parent
        contents = {
            name: (beside / name).read_bytes()
            for name in (RESULT_FILE, RESULT_SIGNATURE)
            if (beside / name).is_file()
        }
        folder = Folder(beside, {}, contents)
    path = folder.path / RESULT_FILE
    if RESULT_FILE not in folder.contents:
        raise StudyError(
            f"there is no {RESULT_FILE} beside {found.files.path}, which says what is promised; "
            "give the folder of a study's result"
        )
    content = folder.content(RESULT_FILE)
    try:
        result = Result.model_validate_json(content, strict=False)
    except ValidationError as error:
        raise StudyError(f"{path} cannot be read as a study's result") from error
    if (result.plan_digest, result.number) != (model.plan.digest(), model.number):
        raise StudyError(f"{path} is not of the model beside it")
    if model.plan.coordinator is not None:
        statement = _statement(folder, model.plan, "result", RESULT_SIGNATURE)
        if statement.files.get(RESULT_FILE) != hashlib.sha256(content).hexdigest():
            raise StudyError(f"{path} is not as the coordinator signed it")
        # Of two studies of one kit a result of the same number may lie here.
        came = _statement(found.files, model.plan, "model", MODEL_SIGNATURE)
        files = found.files.digests
        header = HEADER_FILE if found.adoption is None else SIGNED_HEADER
        of_model = {HEADER_FILE: files[header], WEIGHTS_FILE: files[WEIGHTS_FILE]}
        signed = {n: statement.files.get(f"model/{n}") for n in of_model}
        if (statement.study, signed) != (came.study, of_model):
            raise StudyError(f"{path} is of another study than the model beside it")
    return result


def _adoption(folder: Folder, header: ModelHeader) -> Adoption:
    """Return who adjusted an adopted model.

    One that is not, but for its adjustment, as the coordinator signed it is refused, and so is an
    adjustment that nobody signed.
    """
    if ADOPTED_SIGNATURE not in folder.contents:
        raise StudyError(
            f"the adjustment in {folder.path} is signed by nobody; adopt the study's model again"
        )
    came = _statement(folder, header.plan, "model", MODEL_SIGNATURE)
    for name, path in ((HEADER_FILE, SIGNED_HEADER), (WEIGHTS_FILE, WEIGHTS_FILE)):
        if path not in folder.digests or came.files.get(name) != folder.digests[path]:
            raise StudyError(f"{folder.path}: {path} is not as the coordinator signed it")
    theirs, ours = (
        one.model_dump(exclude={"adjustment", "own", "predbayes"})
        for one in (header_of(folder.content(SIGNED_HEADER), SIGNED_HEADER), header)
    )
    if theirs != ours:
        raise StudyError(f"{folder.path}: {HEADER_FILE} differs from {SIGNED_HEADER}")
    says = came.model_dump(include={"plan", "study", "head", "number"})
    signed = Signed.parse(Adoption, folder.content(ADOPTED_SIGNATURE), ADOPTED_SIGNATURE)
    return signed.checked(**says, model=folder.digests[HEADER_FILE])


def sign_adoption(came: SignedModel, folder: Path, site: str, key: SigningKey) -> None:
    """Sign the adjustment of a model, in a new folder, to the model as it came."""
    statement = came.statement
    if statement is None:
        return
    write_bytes(folder / SIGNED_HEADER, came.files.content(HEADER_FILE))
    write_bytes(folder / MODEL_SIGNATURE, came.files.content(MODEL_SIGNATURE))
    adoption = Adoption(
        **statement.model_dump(include={"plan", "study", "head", "number"}),
        site=site,
        key=key.public.hex,
        model=file_digest(folder / HEADER_FILE),
    )
    write_bytes(folder / ADOPTED_SIGNATURE, Signed.of(adoption, key).file())


def _statement(
    folder: Folder, plan: Plan, kind: Literal["model", "result"], name: str
) -> FilesStatement:
    assert plan.coordinator is not None  # or nothing is signed
    signature = Signed.parse(FilesStatement, folder.content(name), name)
    return signature.checked(plan.coordinator.signing, kind=kind, plan=plan.digest())
