"""Write one small file of every format into `tests/study/formats/files`, with what it says.

    python -m tests.study.formats.make

Run it when a format gets another number, and commit what is written beside what is there: the name
of a file has the number of its format, so files of earlier numbers stay and are still read. Nothing
of it is real. The keys are of nobody's: `coordinator.key` opens the sealed file, and nothing else.
`said.json` has the headline of each file by `tests.study.formats.registry`, as it was when written.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import predbayes as pb
from benchmarks.by_commands import run_quietly
from predbayes_study.extras.sealed.masking import opening_of, requests_of, summed_masks
from predbayes_study.site.deletion import delete_outputs
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.extras.sealed.test_masking import FORM, PLAN, sent, words_of
from tests.study.formats.registry import FILES, FORMATS, LIKEWISE
from tests.study.invented import DRAFT, table
from tests.study.world import SITES, make_world


def write_study(folder: Path) -> None:
    """A study of five sites with a result: plan, kit, labels, uploads, ledger, receipt, model."""
    world = make_world(folder / "world", coordinator=CoordinatorKey.generate())
    study = world.begin()
    sealed = [world.file(site) for site in SITES]
    for path in sealed:
        study.add(path)
    study.finish()
    shutil.copytree(study.folder / "kit", FILES / "kit-1")
    shutil.copytree(study.folder / "results" / "1" / "model", FILES / "model-1")
    copied = {
        study.folder / "labels.json": "labels-1.json",
        study.folder / "ledger.jsonl": "ledger-1.jsonl",
        study.folder / "results" / "1" / "result.json": "result-1.json",
        world.root / "Alpha.safetensors": "upload-1.safetensors",
        sealed[0]: "sealed-1.sealed",
        world.root / "coordinator.key": "coordinator.key",
    }
    for source, name in copied.items():
        shutil.copyfile(source, FILES / name)
    (FILES / "receipt-1.receipt").write_bytes(study.receipt("Alpha"))
    (FILES / "site-1.toml").write_bytes(b'format = 1\nname = "Alpha"\n')
    (folder / "out").mkdir()
    (folder / "out" / "Alpha.safetensors").write_bytes(b"handed over")
    path, _ = delete_outputs(folder / "out", "Alpha", world.key("Alpha"))
    shutil.copyfile(path, FILES / "deletion-1.deletion")


def write_survey(folder: Path) -> None:
    """The survey of an invented table."""
    (folder / "draft.toml").write_text(DRAFT, "utf-8")
    (folder / "site.toml").write_text('format = 1\nname = "Split"\n', "utf-8")
    table("Split").to_csv(folder / "rows.csv", index=False)
    run_quietly(folder, ["site", "key", "Split"])
    run_quietly(folder, ["site", "survey", "draft.toml", "rows.csv", "--out", "Split.survey"])
    shutil.copyfile(folder / "Split.survey", FILES / "survey-1.survey")


def write_sealed_sums() -> None:
    """What passes between a coordinator and a key holder."""
    holder = CoordinatorKey.generate()
    to = [holder.public.encryption]
    sites = {name: sent(name, words_of(number), holders=to) for number, name in enumerate("ab")}
    (request,) = requests_of(PLAN, sites.values(), to)
    (FILES / "request-1.json").write_bytes(request.model_dump_json().encode())
    opening = opening_of(request, summed_masks(request, holder, FORM.size), holder.signing)
    (FILES / "opening-1.opening").write_bytes(opening)


def write_estimator() -> None:
    """A fitted estimator: estimator.json, and the saved result beside it."""
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(30, 2)) for name in "ab"}
    sites = {name: (x, np.where(x[:, 0] > 0, "yes", "no")) for name, x in rows.items()}
    model = pb.FederatedClassifier("logistic-regression", random_state=0)
    model.fit(sites, rng.normal(size=(40, 2))).save(FILES / "estimator-1")


def main() -> None:
    """Write what is not there yet: a file of an earlier number is never made again."""
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(temporary, "kept")
        if FILES.exists():
            shutil.copytree(FILES, kept)
            shutil.rmtree(FILES)
        FILES.mkdir()
        write_study(Path(temporary))
        survey = Path(temporary, "survey")
        survey.mkdir()
        write_survey(survey)
        write_sealed_sums()
        write_estimator()
        if kept.exists():
            shutil.copytree(kept, FILES, dirs_exist_ok=True)
    said = {name: read(FILES / name) for name, (_, read) in FORMATS.items()}
    said |= {f"{name}, beside": read(FILES / name) for name, (_, read) in LIKEWISE.items()}
    text = json.dumps(said, indent=1, ensure_ascii=False, sort_keys=True)
    (FILES / "said.json").write_bytes(f"{text}\n".encode())


if __name__ == "__main__":
    main()
