"""What a study does with a kind of upload is in the file of its payload, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predbayes.errors import UploadError
from predbayes.exchange.upload import spec_of
from predbayes_study.extra import load, names
from predbayes_study.payload import payload_named, payload_of, upload_bytes
from tests.study.world import make_world

ROOT = Path(__file__).parents[2] / "packages"
BRANCH = re.compile(
    r"""info\.kind\b|\.sent\ (==|!=)|\bEVALUATION\b|\bsections(\.get\(|\[)
    |["'](masked|moments|private)["']""",
    re.VERBOSE,
)
TAG = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
ASKS = re.compile(
    r"""(?=.*\bif\b)(?=.*\b(kind|sent|promise|privacy|payload|moments|sums|masked|seals)\b)
    |.*(\.sections|num_summed)\b""",
    re.VERBOSE | re.DOTALL,
)

PLACES = {  # where a branch on a kind of upload is, and why
    "study/coordinator/intake.py": "an evaluation may come in place of the plan's upload",
    "study/coordinator/step.py": "the ledger has a step of its own for evaluations",
    "study/site/site.py": "`site evaluate` signs evaluations",
    "study/site/policy.py": "limits bind evaluations and surveys too, which are of no plan's kind",
    "study/site/release.py": "a policy is asked of an evaluation without its plan",
    "study/report/unlabelled.py": "a result says how it was pooled, without its plan",
    "study/report/egress.py": "it refuses to show an upload of another kind than the plan's",
    "study/result/influence.py": "names of a pool's terms",
    "flower/server.py": "a node answers with an upload, and never with an evaluation",
}


def test_no_other_file_branches_on_a_kind_of_upload():
    found = set()
    for name in ("study", "flower"):
        source = ROOT / name / "src" / f"predbayes_{name}"
        for path in source.rglob("*.py"):
            inside = path.relative_to(source).as_posix()
            own = inside == "payload.py" or inside.startswith(("payloads/", "extras/"))
            if not own and BRANCH.search(path.read_text("utf-8")):
                found.add(f"{name}/{inside}")
    assert found == PLACES.keys()


def test_no_template_branches_on_a_kind_of_upload_or_on_an_extra():
    source = ROOT / "study" / "src" / "predbayes_study"
    for path in (*source.rglob("*.j2"), *source.rglob("*.toml")):
        text = path.read_text("utf-8")
        if "extras" not in path.relative_to(source).parts:
            asked = [tag for tag in TAG.findall(text) if ASKS.match(tag) or BRANCH.search(tag)]
            assert set(asked) <= {"{{ info.kind }}"}, path  # which is shown


def test_what_an_extra_words_otherwise_is_in_some_page():
    """A block that no page has would never be shown, and nothing would say so."""
    source = ROOT / "study" / "src" / "predbayes_study"

    def blocks(*paths):
        return {name for path in paths for name in re.findall(r"{% block (\w+)", path.read_text())}

    usual = blocks(*(source / "report" / "templates").glob("*.j2"))
    for kind in names("payloads"):
        (path,) = source.glob(f"extras/*/templates/{load('payloads', kind).words}")
        assert blocks(path)
        assert blocks(path) <= usual


@pytest.mark.parametrize("gate", ["", "[gate]\n"])
@pytest.mark.parametrize("regression", [False, True])
def test_a_payload_names_the_arrays_that_it_makes(gate, regression, tmp_path):
    world = make_world(tmp_path, regression=regression, gate=gate)
    plan, upload = world.kit.plan, world.upload("Alpha")
    payload = payload_of(plan)
    assert payload.kind == upload.info.kind == plan.sent
    assert payload.arrays(plan) == {name: spec_of(a) for name, a in upload.arrays.items()}
    assert payload.meanings(plan, 10).keys() >= upload.arrays.keys()
    assert upload_bytes(plan) == sum(array.nbytes for array in upload.arrays.values())


def test_a_kind_that_no_extra_adds_is_refused():
    with pytest.raises(UploadError, match="weights"):
        payload_named("weights")
