"""A second sealed plan that differs from the first by a word: what the coordinator gets of it.

The same sites train under both plans on the same rows. Training depends on seed, site and rows, so
a site sends the same terms twice, under other masks. The coordinator asks the one honest holder for
the sum of all four sites of the first plan, and of three of them of the second.
"""

from __future__ import annotations

import json

import pytest
import torch

from predbayes.exchange.upload import Upload
from predbayes_study import Kit
from predbayes_study.extras.sealed.masking import WORDS, read_opening
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.kit.kit import freeze
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from tests.study.cli.consortium import Consortium
from tests.study.cli.test_moments import patients
from tests.study.cli.test_sealed_sums import PLAN, PRIVACY, reference_rows
from tests.study.commands import predbayes

SITES = ("east", "north", "south", "west")


def train(runs, site, number):
    return predbayes(
        *("site", "train", runs.home / f"kit{number}", "patients.csv", "--out", f"out{number}"),
        cwd=runs.root / site,
    )


def begin_again(runs, number, left_out=(), refused=True):
    """Begin a study of the plan with another description; return what sites were told."""
    plan, kit = runs.home / f"plan{number}.toml", runs.home / f"kit{number}"
    text = (runs.home / "plan.toml").read_text()
    plan.write_text(text.replace('"for a test"', f'"for a test, corrected {number}"'))
    # The same order of reference rows, so that words can be subtracted.
    labels = json.loads((runs.home / "kit-labels.json").read_text())
    freeze(plan, kit, salt=bytes.fromhex(labels["salt"]))
    named = ("--study", f"study{number}")
    runs("coordinator", "study", "init", kit, "--labels", f"kit{number}-labels.json", *named)
    told = []
    for site in SITES:
        public = runs.root / site / f"{site}.pub"
        runs("coordinator", "study", "admit", site, public, *named)
        done = train(runs, site, number)
        if done.code:
            told.append(done.err)
            runs(site, "site", "approve", kit, "--by", "B. Officer")
            done = train(runs, site, number)
        assert done.code == 0, done.err
        if site not in left_out:
            path = runs.root / site / f"out{number}" / f"{site}.safetensors"
            runs("coordinator", "study", "add", path, *named)
    runs("coordinator", "study", "request", *named, "--out", f"requests{number}")
    return told


def ask(runs, number):
    """Ask the holder for the sum of a later plan."""
    request = runs.home / f"requests{number}" / "holder-1.request"
    kit, opening = runs.home / f"kit{number}", f"sum{number}.opening"
    line = ("holder", "open", kit, request, "--out", opening)
    return predbayes(*line, cwd=runs.root / "trustee")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    runs = Consortium(tmp_path_factory.mktemp("sealed"), ("trustee",))
    runs.begin(PLAN, PRIVACY, reference_rows())
    for number, site in enumerate(SITES):
        runs.join(site, patients(400 + 37 * number, seed=number))
    runs("coordinator", "study", "request")
    runs.opened()
    return runs


@pytest.fixture(scope="module")
def fewer(runs):
    """What sites were told of a second plan; the coordinator leaves one of them out."""
    return begin_again(runs, 2, left_out=("west",))


@pytest.fixture(scope="module")
def same(runs, fewer):
    """What sites were told of a third plan, with all of them."""
    return begin_again(runs, 3)


def difference(runs, number, sites):
    """The sum of the first plan less that of a later one."""
    plan = Kit.load(runs.home / "kit").plan
    form = plan.section(Sealed).form(plan)

    def opened(out, names, opening):
        sent = (Upload.load(runs.root / site / out / f"{site}.safetensors") for site in names)
        total = sum(upload.arrays[WORDS] for upload in sent)
        return total - read_opening(runs.root / "trustee" / opening, form.size)[1]

    words = opened("out", SITES, "sum.opening")
    words = words - opened(f"out{number}", sites, f"sum{number}.opening")
    split = torch.split(words, [part.size for part in form.parts])
    return {
        part.name: (some.double() * 2.0**part.exponent).view(part.shape)
        for part, some in zip(form.parts, split, strict=True)
    }


def secret(runs, site):
    """The log p that the masks hide."""
    kit = Kit.load(runs.home / "kit")
    own = SiteFile.load(runs.root / site / "site.toml")
    rows = SiteRows.of(kit.plan, read_site_table(kit.plan, own, own.folder / "patients.csv"))
    from predbayes_study.payloads.predictions import Predictions

    upload, _ = Job(kit, site, rows, "logistic-regression").run(Predictions())
    return upload.predictive().log_probs.double()


def test_two_plans_do_not_open_one_site(runs, fewer):
    done = ask(runs, 2)
    if done.code == 0:  # then its predictions are in the difference, to the last digits
        found = difference(runs, 2, SITES[:3])["natural"]
        wrong = float((found - secret(runs, "west")).abs().max())
        pytest.fail(f"west alone was opened: log p to {wrong:.1e}")
    assert (done.code, done.err.count("\n")) == (2, 1)
    for word in ("west", "'sealed'", Kit.load(runs.home / "kit").digest[:16]):
        assert word in done.err


def test_each_site_asked_a_person_before_the_second_plan(fewer, same):
    assert len(fewer) == len(same) == len(SITES)
    for line in (*fewer, *same):
        assert line.count("\n") == 1
        assert "'sealed'" in line
        assert "predbayes site approve" in line


def test_the_same_sites_under_another_plan_drew_anew_and_the_holder_counts(runs, same):
    """No table changed, and yet the difference is not nothing: a model is fitted anew."""
    done = ask(runs, 3)
    assert done.code == 0, done.err
    assert "plan number 2 of these sites" in done.out
    assert bool(difference(runs, 3, SITES)["natural"].any())
    again = ask(runs, 3)
    assert (again.code, "plan number 2 of these sites" in again.out) == (0, True)
