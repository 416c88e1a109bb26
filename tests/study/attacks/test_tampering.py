"""A forged, replayed, altered, dropped or reordered anything is found by somebody's verify.

Three studies with one coordinator: two of one kit, one of another. Of each, the coordinator has the
folder, and a site has kit, receipt, result, model and its own upload. Whoever changes anything in
one place is found by `study verify` of the coordinator, who asks for the heads that sites noted, or
by `site verify` of a site, or by either run by a stranger who has no more than the public key.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predbayes.errors import PredbayesError
from predbayes_study.coordinator.study import Study
from predbayes_study.payloads.details import having_seen, save_signed
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.site.witness import verify_files
from predbayes_study.store.ledger import Ledger
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import Receipt, Signed
from tests.study.world import World, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


COORDINATOR = CoordinatorKey.generate()
PUBLIC = COORDINATOR.public
SITE = "Alpha"
HELD = ("kit", "result", "model", "upload.safetensors", "evaluation.safetensors", "receipt")
"""What the site has; the folder of the study is beside it."""

NAMES = ("one", "same kit", "other kit")
_NO_ARTEFACTS = {".lock", ".lock-audit", ".key-path", "audit.jsonl"}


@dataclass(frozen=True)
class Holdings:
    """All that there is of a study, at the coordinator and at one site."""

    root: Path
    words: str  # of the plan, as they were read out

    @property
    def study(self) -> Study:
        return Study(self.root / "study")

    def files(self) -> list[Path]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path for path in found if path.name not in _NO_ARTEFACTS)

    def found(self, noted: str) -> list[str]:
        """What everybody's verify says.

        Args:
            noted: The head in the site's receipt, as the site wrote it down.
        """
        return [*self._coordinator(noted), *self._site()]

    def _coordinator(self, noted: str) -> list[str]:
        try:
            return self.study.verify(key=PUBLIC, contains=[noted])
        except PredbayesError as error:
            return [str(error)]

    def _site(self) -> list[str]:
        try:
            paths = [self.root / name for name in HELD]
            return list(verify_files(paths, PUBLIC, self.words).problems)
        except PredbayesError as error:
            return [str(error)]


def conduct(world: World, name: str, root: Path) -> Holdings:
    """A study with everything in it: a withdrawal, two results, an evaluation, a receipt."""
    study = world.begin(name, sites=(SITE, "Beta", "Gamma"), added=(SITE, "Beta", "Gamma"))
    study.finish()
    study.withdraw("Gamma")
    number = study.finish()[0].number
    plan, weights = world.kit.plan, study.state().results[-1].model
    rows = world.kit.inputs[:40]
    targets = (rows[:, 0] > 0).long()
    tried = world.predictions(SITE)[:40]
    evaluation = having_seen(evaluation_upload(plan, SITE, tried, targets, weights), world.seen)
    save_signed(evaluation, root / "evaluation.safetensors", world.key(SITE))
    study.add(world.sealed(root / "evaluation.safetensors"))
    (root / "evaluation.sealed").unlink()
    (root / "receipt").write_bytes(study.receipt(SITE))
    shutil.copytree(study.folder / "kit", root / "kit")
    shutil.copytree(study.result_folder(number), root / "result")
    shutil.copytree(study.result_folder(number) / "model", root / "model")
    shutil.copyfile(world.signed(SITE), root / "upload.safetensors")
    shutil.copytree(study.folder, root / "study")
    return Holdings(root, world.kit.fingerprint)


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    keys = {site: SigningKey.generate() for site in (SITE, "Beta", "Gamma")}
    worlds = [
        make_world(
            tmp_path_factory.mktemp("world"),
            method="mixture",
            coordinator=COORDINATOR,
            unlabelled=number,
        )
        for number in (50, 51)
    ]
    made = {}
    for name, world in zip(NAMES, (worlds[0], worlds[0], worlds[1]), strict=True):
        world.keys = keys
        made[name] = conduct(world, name, tmp_path_factory.mktemp(name.replace(" ", "-")))
    return made


@pytest.fixture(scope="module")
def noted(studies):
    """The head that the site wrote down, by study."""
    return {name: receipt(holdings).head for name, holdings in studies.items()}


def receipt(holdings: Holdings) -> Receipt:
    return Signed.read(holdings.root / "receipt", Receipt).checked(PUBLIC.signing)


def test_nothing_is_found_where_nothing_was_changed(studies, noted):
    assert studies["one"].found(noted["one"]) == []


PLACES = [
    *HELD,
    "study",
    *(f"study/{name}" for name in ("kit", "uploads", "results", "ledger.jsonl")),
]
PLACES += [f"study/results/{number}" for number in (1, 2)]
PLACES += [f"study/results/2/{name}" for name in ("model", "result.json", "result.sig")]
PLACES += ["study/kit/kit.sig", "kit/kit.sig", "result/result.sig", "model/model.sig"]


@pytest.mark.parametrize("other", NAMES[1:])
@pytest.mark.parametrize("place", PLACES)
def test_a_swap_with_another_study_is_found(studies, noted, other, place):
    """Files and folders of one study in the place of another's."""
    theirs = studies[other].root / place
    assert found_after(studies["one"], noted["one"], place, lambda path: _copy(theirs, path))


def test_an_older_state_in_the_place_of_the_newer_is_found(studies, noted):
    one, holdings = "one", studies["one"]
    lines = (holdings.root / "study" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(1, len(lines)):
        older = b"".join(lines[:number])
        assert found_after(
            holdings,
            noted[one],
            "study/ledger.jsonl",
            lambda path, old=older: path.write_bytes(old),
        ), number
    first = holdings.root / "study" / "results" / "1"
    assert found_after(holdings, noted[one], "study/results/2", lambda path: _copy(first, path))
    first = first / "model"
    assert found_after(holdings, noted[one], "result/model", lambda path: _copy(first, path))


@pytest.mark.parametrize("key", [None, SigningKey.generate(), COORDINATOR.signing])
@pytest.mark.parametrize("dropped", [3, 7])
def test_a_ledger_that_was_written_anew_is_found(studies, noted, key, dropped):
    """Without an entry: by whoever can write in the folder, and by the coordinator himself.

    Entry 3 admits a site, entry 7 takes in an upload. Only what the site wrote down tells that the
    coordinator has signed two ledgers.
    """

    def rewrite(path):
        for entry in entries:
            if entry.number != dropped:
                Ledger(path).append(entry.step, entry.data, entry.at, key=key)

    entries = studies["one"].study.ledger.entries()
    found = found_after(studies["one"], noted["one"], "study/ledger.jsonl", rewrite)
    told = f"the ledger does not contain {noted['one']}: it is another, or was cut"
    assert found if dropped == 7 or key is not COORDINATOR.signing else told in found


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_change_of_any_byte_of_any_file_is_found(studies, noted, data):
    holdings = studies["one"]
    path = data.draw(st.sampled_from(holdings.files()))
    content = path.read_bytes()
    altered = data.draw(st.one_of(bytes_altered(content), lines_altered(content)))
    if altered == content:  # two equal lines changed places
        return
    place = path.relative_to(holdings.root).as_posix()
    assert found_after(holdings, noted["one"], place, lambda path: path.write_bytes(altered))


def test_a_file_that_is_gone_or_new_is_found(studies, noted):
    holdings = studies["one"]
    for path in holdings.files():
        place = path.relative_to(holdings.root).as_posix()
        assert found_after(holdings, noted["one"], place, lambda path: None), place
    for folder in ("study", "study/uploads", "study/results/1", "kit", "result", "model"):
        new = holdings.root / folder / "new"
        new.write_text("new")
        assert holdings.found(noted["one"]), folder
        new.unlink()


def found_after(holdings, noted, place, change):
    """What is found with a place changed, which is as before afterwards."""
    path = holdings.root / place
    kept = holdings.root.parent / f"{holdings.root.name}-kept"
    path.rename(kept)
    try:
        change(path)
        return holdings.found(noted)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        kept.rename(path)


@st.composite
def bytes_altered(draw, content):
    """A byte flipped, put in or taken out, or the end cut off."""
    at = draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[at] ^ 1 << draw(st.integers(0, 7))])
    new = draw(st.binary(min_size=1, max_size=1))
    return draw(
        st.sampled_from(
            [
                content[:at] + flipped + content[at + 1 :],
                content[:at] + new + content[at:],
                content[:at] + content[at + 1 :],
                content[:at],
            ]
        )
    )


@st.composite
def lines_altered(draw, content):
    """A line dropped or given twice, or two in another order."""
    lines = content.splitlines(keepends=True)
    numbers = st.integers(0, len(lines) - 1)
    one, other = draw(numbers), draw(numbers)
    swapped = list(lines)
    swapped[one], swapped[other] = lines[other], lines[one]
    dropped = lines[:one] + lines[one + 1 :]
    return b"".join(draw(st.sampled_from([swapped, dropped, [*lines[: one + 1], *lines[one:]]])))


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
