"""Shards: a tree of them gives what one study gives, to the bit, and takes nothing in twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from predbayes.errors import KeyFileError, PoolError, StudyError, UploadError
from predbayes.exact import ExactSum, Grid
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.upload import Upload
from predbayes.files import file_digest
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import CLASS_MIXTURE, PredictiveSum
from predbayes.study.coordinator import shard as shard_module
from predbayes.study.coordinator.state import State
from predbayes.study.coordinator.study import Study
from predbayes.study.result.merged import Merged
from predbayes.study.result.shardsum import ShardSum
from predbayes.study.site.witness import verify_files
from tests.study.world import SITES, World, make_world

SIX = (*SITES, "Zeta")
OPEN = "encrypt = false"
RULES = "max_weight = 3.0"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(
        tmp_path_factory.mktemp("shards"),
        coordinator=CoordinatorKey.generate(),
        upload=OPEN,
        rules=RULES,
        gate="[gate]",
    )


@pytest.fixture
def study(world, tmp_path):
    return world.begin(f"study {tmp_path.name}", ())


class Field:
    """Shards of one study, each in a folder of its own."""

    def __init__(self, world: World, study: Study, folder: Path) -> None:
        self.world, self.study, self.folder = world, study, folder

    def shard(self, name: str, sites=(), sums=()) -> Study:
        """A shard with some uploads and sums in it."""
        path = self.folder / f"{name}.key"
        CoordinatorKey.generate().save(path)
        made = Study.shard(self.folder / name, name, self.study.folder / "kit", path)
        self.fill(made, sites, sums)
        return made

    def fill(self, taker: Study, sites=(), sums=()) -> None:
        world = self.world
        taker.admit_all({site: world.key(site).public for site in sites})
        answers = list(taker.add_all([world.file(site) for site in sites]))
        assert not any(isinstance(answer, UploadError) for answer in answers), answers
        for path in sums:
            name = path.stem
            taker.admit(name, CoordinatorKey.load(self.folder / f"{name}.key").public.signing)
            assert taker.merge(path) is not None

    def sum(self, name: str, sites=(), sums=(), **options) -> Path:
        """The signed sum of such a shard."""
        out = self.folder / f"{name}.sum"
        self.shard(name, sites, sums).sum(out, **options)
        return out

    def tree(self, tree, name: str = "top") -> Path:
        """The sum of a nested list of sites."""
        sites = [node for node in tree if isinstance(node, str)]
        below = [node for node in tree if not isinstance(node, str)]
        sums = [self.tree(node, f"{name}-{number}") for number, node in enumerate(below)]
        return self.sum(name, sites, sums)


@pytest.fixture
def field(world, study, tmp_path):
    return Field(world, study, tmp_path)


def read(path: Path, world: World) -> ShardSum:
    return ShardSum.from_upload(world.kit.plan, Upload.load(path))


def digits(found: ShardSum) -> dict[str, torch.Tensor]:
    return dict(found.total.written().arrays)


def same(one: ShardSum, two: ShardSum) -> bool:
    first, second = digits(one), digits(two)
    return (one.members, first.keys()) == (two.members, second.keys()) and all(
        torch.equal(first[name], second[name]) for name in first
    )


A, B, C, D, E, F = SIX
TREES = (
    [[A, B, C], [D, E, F]],
    [[F], [E], [D, C], B, A],
    [[[A, [B]], C], [[D], [[E], F]]],
)


@pytest.mark.parametrize("tree", TREES)
def test_every_tree_gives_the_bits_and_the_root_of_one_shard(world, field, tree):
    whole, top = field.sum("whole", SIX), field.tree(tree)
    assert same(read(whole, world), read(top, world))
    roots = {Upload.load(path).info.sum.root for path in (whole, top)}
    assert len(roots) == 1
    assert len(digits(read(top, world))) > 4


def test_for_a_regression_too(tmp_path):
    world = make_world(tmp_path / "w", regression=True)
    study = world.begin()
    field = Field(world, study, tmp_path)
    assert same(read(field.sum("whole", SIX), world), read(field.tree(TREES[2]), world))


def test_withdrawing_by_subtraction_gives_the_bits_of_the_shard_without_the_site(
    world, field, monkeypatch
):
    monkeypatch.setattr(shard_module, "PACK", 2)
    north = field.shard("north", SIX)
    with_all = read_sum(north, field.folder / "all.sum", world)
    assert len(list((north.folder / ".parts").iterdir())) == 1
    north.withdraw(C)
    # Nothing is read again: what is left was a subtraction.
    monkeypatch.setattr(shard_module, "fold_here", None)
    without = read_sum(north, field.folder / "less.sum", world, fold=nothing)
    monkeypatch.undo()
    never = read(field.sum("never", [site for site in SIX if site != C]), world)
    assert same(without, never)
    assert not same(with_all, never)
    assert north.verify() == []


def read_sum(shard: Study, out: Path, world: World, **options) -> ShardSum:
    shard.sum(out, **options)
    return read(out, world)


def nothing(study, packs, most_rows):
    assert not packs
    return ()


def test_a_killed_sum_goes_on_where_it_was(world, field, monkeypatch):
    monkeypatch.setattr(shard_module, "PACK", 2)
    north, read_again = field.shard("north", SIX), []

    def killed(study, packs, most_rows):
        yield from shard_module.fold_here(study, packs[:2], most_rows)
        raise KeyboardInterrupt

    def counting(study, packs, most_rows):
        read_again.extend(accepted.site for pack in packs for accepted in pack)
        return shard_module.fold_here(study, packs, most_rows)

    with pytest.raises(KeyboardInterrupt):
        north.sum(field.folder / "n.sum", fold=killed)
    assert not (field.folder / "n.sum").exists()
    found = read_sum(north, field.folder / "n.sum", world, fold=counting)
    assert len(read_again) == 2
    assert same(found, read(field.sum("whole", SIX), world))


def test_an_altered_or_foreign_part_is_not_used(world, field, tmp_path):
    north = field.shard("north", SIX)
    first = read_sum(north, tmp_path / "a.sum", world)
    (part,) = (north.folder / ".parts").iterdir()
    content = bytearray(part.read_bytes())
    content[-9] ^= 1
    part.write_bytes(content)
    assert same(read_sum(north, tmp_path / "b.sum", world), first)
    (part,) = (north.folder / ".parts").iterdir()
    upload = Upload.load(part)
    upload.save(part, SigningKey.generate())
    assert same(read_sum(north, tmp_path / "c.sum", world), first)


def test_deleting_takes_the_part_with_it(field):
    north = field.shard("north", SIX)
    north.sum(field.folder / "n.sum")
    north.delete(A)
    assert list((north.folder / ".parts").iterdir()) == []
    with pytest.raises(StudyError, match="the upload of Alpha is deleted"):
        north.sum(field.folder / "n.sum")


@pytest.fixture(scope="module")
def both(world, tmp_path_factory):
    """The same six uploads in one study, and in two shards and a single upload."""
    single = world.begin("single", ())
    Field(world, single, tmp_path_factory.mktemp("single")).fill(single, SIX)
    parted = world.begin("parted", ())
    field = Field(world, parted, tmp_path_factory.mktemp("parted"))
    sums = [field.sum("north", [A, D]), field.tree([[B], [F], C], "south")]
    field.fill(parted, [E], sums)
    return single, single.finish()[1], parted, parted.finish()[1]


class TestFinish:
    def test_pool_model_and_scores_are_those_of_one_study_to_the_bit(self, both):
        single, one, parted, two = both
        assert one.pool == two.pool
        assert (one.pooled, one.mixture, one.student) == (two.pooled, two.mixture, two.student)
        assert (one.risks, one.reliability) == (two.risks, two.reliability)
        name = "results/1/model/model.safetensors"
        assert file_digest(single.folder / name) == file_digest(parted.folder / name)

    def test_what_needs_single_uploads_is_said_by_name(self, both):
        _, one, parted, two = both
        assert (len(one.sites), [site.site for site in two.sites]) == (6, [E])
        assert two.num_sites == 6
        assert one.shards == ()
        assert '"shards"' not in one.model_dump_json()
        assert two.cautions[0].startswith("Sites that came in sums of shards: 5.")
        folder = parted.result_folder(1)
        page, public = ((folder / f"report{end}.html").read_text() for end in ("", "-public"))
        assert "north" in page
        assert "6 sites" in public
        assert "north" not in public
        assert "Sites that came in sums of shards: 5." in public

    def test_it_verifies_rebuilds_and_is_exported(self, both, tmp_path):
        _, _, parted, two = both
        assert parted.verify(rebuild=True) == []
        assert parted.finish()[0].number == two.number == 1
        assert parted.state().current is not None
        parted.export(tmp_path / "crate")
        assert Study(tmp_path / "crate").verify() == []

    def test_sums_alone_make_a_result(self, world, tmp_path):
        study = world.begin(f"alone {tmp_path.name}", ())
        field = Field(world, study, tmp_path)
        field.fill(study, (), [field.sum("north", SIX)])
        result = study.finish()[1]
        assert (result.sites, result.num_sites) == ((), 6)
        page = (study.result_folder(1) / "report.html").read_text()
        assert "No site was looked at" in page


class TestRows:
    """A site counts for no more than the plan allows, with all sites at hand."""

    @pytest.fixture
    def greedy(self, world, monkeypatch):
        made = World.upload

        def upload(self, site, *more):
            found = made(self, site, *more)
            if site != A:
                return found
            info = found.info.model_copy(update={"num_rows": 1000})
            return Upload(info, found.arrays)

        monkeypatch.setattr(World, "upload", upload)

    @pytest.mark.usefixtures("greedy")
    def test_a_sum_with_another_limit_is_refused_and_made_again(self, world, study, field):
        north = field.shard("north", [A, B, C])
        north.sum(field.folder / "north.sum")
        field.fill(study, [D, E, F], [field.folder / "north.sum"])
        line = "Alpha counts for 1,000 rows in the sum of north, and for 315 with all sites at hand"
        with pytest.raises(StudyError, match=line) as refused:
            study.finish()
        assert str(refused.value).endswith("--most-rows 315")
        north.sum(field.folder / "north.sum", most_rows=315)
        study.merge(field.folder / "north.sum")
        merged = Merged.of(study.state().sums_in_order, study.read_sum)
        merged.require_limit(315)
        uploads = north.state().uploads.values()
        folded = ShardSum.of(world.kit.plan, uploads, north.read, 315)
        assert merged.total.weight("moments") == folded.total.weight("moments") == 315 + 104 + 105

    @pytest.mark.usefixtures("greedy")
    def test_shards_of_shards_count_alike(self, field):
        low = field.sum("low", [A, B])
        with pytest.raises(StudyError, match="Alpha counts for 1,000 rows in the sum, and for 300"):
            field.sum("high", [C], [low], most_rows=300)


class TestRefusals:
    def refuses(self, taker: Study, path: Path, why: str) -> None:
        before = taker.ledger.path.read_bytes()
        with pytest.raises(UploadError, match=why) as refused:
            taker.merge(path)
        assert "\n" not in str(refused.value)
        assert taker.ledger.path.read_bytes() == before
        assert taker.verify() == []

    def admit(self, field, name: str) -> None:
        key = CoordinatorKey.load(field.folder / f"{name}.key").public.signing
        field.study.admit(name, key)

    def test_the_same_sum_counts_once(self, study, field):
        path = field.sum("north", [A, B])
        field.fill(study, (), [path])
        assert study.merge(path) is None
        assert study.state().num_in == 2

    def test_overlaps(self, study, field):
        field.fill(study, [C], [field.sum("north", [A, B])])
        for name, sites, why in (
            ("south", [B, D], "Beta is in the study already, in the sum of north"),
            ("east", [C, D], "Gamma is in the study already, with an upload of its own"),
        ):
            path = field.sum(name, sites)
            self.admit(field, name)
            self.refuses(study, path, why)
        study.admit(A, field.world.key(A).public)
        with pytest.raises(UploadError, match="Alpha is in the study already, in the sum of nor"):
            study.add(field.world.file(A))

    def test_a_shard_does_not_speak_for_a_site_that_the_study_knows(self, study, field):
        path = field.sum("north", [A, B])
        self.admit(field, "north")
        study.admit(A, SigningKey.generate().public)
        self.refuses(study, path, "Alpha is admitted here with another key, or name")

    def test_who_has_withdrawn_does_not_come_back_in_a_sum(self, study, field):
        field.fill(study, [A])
        path = field.sum("north", [A, B])
        study.withdraw(A)
        self.admit(field, "north")
        self.refuses(study, path, "Alpha has withdrawn")

    def test_who_withdraws_at_the_shard_is_out_after_its_newer_sum(self, study, field):
        north, path = field.shard("north", [A, B, C]), field.folder / "north.sum"
        north.sum(path)
        old = path.read_bytes()
        field.fill(study, (), [path])
        with pytest.raises(StudyError, match="Alpha is in the sum of north: it withdraws there"):
            study.withdraw(A)
        north.withdraw(A)
        north.sum(path)
        study.merge(path)
        assert study.state().num_in == 2
        assert len(list((study.folder / "uploads").iterdir())) == 1
        (field.folder / "old.sum").write_bytes(old)
        self.refuses(study, field.folder / "old.sum", "north has sent a newer sum")

    def test_a_shard_withdraws_like_a_site(self, study, field):
        field.fill(study, (), [field.sum("north", [A, B])])
        study.withdraw("north")
        assert study.state().num_in == 0
        assert list((study.folder / "uploads").iterdir()) == []
        assert study.verify() == []

    def test_strangers_and_other_plans(self, world, study, field, tmp_path):
        path = field.sum("north", [A, B])
        self.refuses(study, path, "no admitted site 'north'")
        study.admit("north", SigningKey.generate().public)
        self.refuses(study, path, "not signed with the key that north was admitted with")
        second = world.begin(f"second {tmp_path.name}", ())
        world.seen = study.kit.head
        second.admit("north", CoordinatorKey.load(tmp_path / "north.key").public.signing)
        with pytest.raises(UploadError, match="made for another study"):
            second.merge(path)
        other = make_world(tmp_path / "other", coordinator=world.coordinator, upload=OPEN)
        third = other.begin()
        third.admit("north", CoordinatorKey.load(tmp_path / "north.key").public.signing)
        with pytest.raises(UploadError, match="made for another plan"):
            third.merge(path)

    def test_uploads_and_sums_are_not_taken_for_each_other(self, world, study, field):
        path = field.sum("north", [A])
        field.fill(study, [B])
        self.admit(field, "north")
        with pytest.raises(UploadError, match="it is the sum of a shard; add it with `pred"):
            study.add(path)
        self.refuses(study, world.file(B), "it holds predictions; a sum was asked for")

    def test_a_part_is_no_sum(self, study, field):
        north = field.shard("north", [A, B])
        north.sum(field.folder / "north.sum")
        self.admit(field, "north")
        (part,) = (north.folder / ".parts").iterdir()
        content = part.read_bytes()
        (field.folder / "part.sum").write_bytes(content)
        # It names no study; and where no study has a key it says that it is a part.
        self.refuses(study, field.folder / "part.sum", "it names no study")

    def test_a_part_is_no_sum_without_a_key_of_the_coordinator_either(self, tmp_path):
        world = make_world(tmp_path / "w")
        field = Field(world, world.begin(sites=()), tmp_path)
        north = field.shard("north", [A, B])
        north.sum(tmp_path / "north.sum")
        self.admit(field, "north")
        (part,) = (north.folder / ".parts").iterdir()
        self.refuses(field.study, part, "it is a part that a shard keeps")

    def test_any_flipped_byte_is_refused(self, study, field):
        path = field.sum("north", [A, B])
        self.admit(field, "north")
        content = path.read_bytes()
        for place in range(3, len(content), len(content) // 16):
            altered = bytearray(content)
            altered[place] ^= 4
            (field.folder / "x.sum").write_bytes(altered)
            with pytest.raises(UploadError):
                study.merge(field.folder / "x.sum")
        assert study.merge(path) is not None

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda f: f["value/natural"].add_(2**40), "not carried over"),
            (lambda f: f["value/natural"][0].add_(2), "no sum of probabilities"),
            (lambda f: f["value/moments"][0].add_(9), "no sum of probabilities"),
            (lambda f: f["weight/moments"][0].add_(1), "weights are not those of its uploads"),
            (lambda f: f["member/rows"].add_(1), "do not have the rows that it states"),
            (lambda f: f["member/key"][0].copy_(f["member/key"][1]), "some twice"),
            (lambda f: f["member/digest"].copy_(f["member/digest"].flip(0)), "not in order"),
            (lambda f: f["member/key"][0].add_(1), "its root is not that of its 2 uploads"),
            (lambda f: f.pop("value/moments"), "one grid for each array"),
            (lambda f: f.update(more=torch.zeros(1)), "not those of a sum of this plan"),
        ],
    )
    def test_what_a_shard_signed_but_no_uploads_add_up_to(self, study, field, change, why):
        path = field.sum("north", [A, B])
        self.admit(field, "north")
        upload = Upload.load(path)
        arrays = {name: array.clone() for name, array in upload.arrays.items()}
        change(arrays)
        self.signed(field, Upload(upload.info, arrays))
        self.refuses(study, path, why)

    def test_another_grid(self, study, field):
        path = field.sum("north", [A, B])
        self.admit(field, "north")
        upload = Upload.load(path)
        told = json.loads(upload.info.model_dump_json())
        told["sum"]["grids"]["value/natural"]["bits"] = 20
        info = type(upload.info).model_validate_json(json.dumps(told))
        self.signed(field, Upload(info, upload.arrays))
        self.refuses(study, path, "added up on another grid")

    def signed(self, field, upload: Upload) -> None:
        key = CoordinatorKey.load(field.folder / "north.key").signing
        upload.save(field.folder / "north.sum", key)


def test_digits_are_read_on_their_own_grid_alone():
    grid = Grid(7, -1, 4)
    total = ExactSum.of(torch.rand(7, 4, 2, dtype=torch.float64), grid)
    again = ExactSum.zero(grid, (4, 2)).read(total.digits, grid.written)
    assert torch.equal(again.add_(total).take_away_(total).digits, total.digits)
    for other in (Grid(7, 0, 5), Grid(7, -1, 5), Grid(6, -1, 4)):
        with pytest.raises(PoolError, match="another grid"):
            ExactSum.zero(grid, (4, 2)).read(total.digits, other.written)


def test_a_term_that_nobody_left_can_contribute_to_is_not_written():
    predictive = Categorical(torch.tensor([[0.2, 0.8]]).log())
    counts, terms = torch.tensor([3.0, 4.0]), (CLASS_MIXTURE,)
    counting = PredictiveSum.of(predictive, 7, class_rows=counts, terms=terms)
    silent = PredictiveSum.of(predictive, 5, terms=terms)
    left, alone = (counting + silent).take_away_(counting).written(), silent.written()
    assert left.arrays.keys() == alone.arrays.keys() == left.grids.keys()
    assert all(torch.equal(left.arrays[name], alone.arrays[name]) for name in alone.arrays)
    assert (left.lacking, left.num_clients) == (alone.lacking, 1)


class TestReceipts:
    def test_a_site_is_shown_that_it_is_in_a_sum_of_sums(self, world, study, field, tmp_path):
        path = field.tree([[[A], B], C], "north")
        field.fill(study, [D], [path])
        out = tmp_path / "Alpha.receipt"
        out.write_bytes(study.receipt(A))
        found = verify_files([study.folder / "kit", out, world.file(A)])
        assert found.problems == ()
        (receipt,) = (one for one in found.statements if one.kind == "receipt")
        assert receipt.upload == world.upload(A).digest()
        assert receipt.proof.head in study.state().heads
        assert not receipt.proof.proves(B, world.upload(B).digest())

    def test_a_shard_gives_receipts_of_its_own(self, world, field, tmp_path):
        north = field.shard("north", [A, B])
        out = tmp_path / "Alpha.receipt"
        out.write_bytes(north.receipt(A))
        key = CoordinatorKey.load(tmp_path / "north.key").public
        assert verify_files([out], key).problems == ()


class TestKeys:
    def test_a_shard_that_opens_sealed_uploads_does_not_sign_as_the_coordinator(self, tmp_path):
        coordinator = CoordinatorKey.generate()
        world = make_world(tmp_path / "w", coordinator=coordinator, upload="keep_sealed = true")
        study = world.begin(sites=())
        key = CoordinatorKey.generate()
        key.save(tmp_path / "shut.key")
        with pytest.raises(KeyFileError, match="study key --opens"):
            Study.shard(tmp_path / "shut", "shut", study.folder / "kit", tmp_path / "shut.key")
        CoordinatorKey(key.signing, coordinator.encryption).save(tmp_path / "north.key")
        args = tmp_path / "north", "north", study.folder / "kit", tmp_path / "north.key"
        north = Study.shard(*args)
        north.admit(A, world.key(A).public)
        north.add(world.file(A))
        north.sum(tmp_path / "north.sum")
        study.admit("north", key.public.signing)
        assert study.merge(tmp_path / "north.sum").count == 1
        assert study.verify() == north.verify() == []
        assert key.signing.public.hex != coordinator.signing.public.hex

    def test_it_is_no_study_and_a_study_is_none(self, study, field):
        north = field.shard("north", [A, B])
        with pytest.raises(StudyError, match="north is a shard without labels"):
            north.finish()
        with pytest.raises(StudyError, match="is no shard"):
            study.sum(field.folder / "x.sum")
        with pytest.raises(StudyError, match="has no upload yet"):
            field.shard("empty").sum(field.folder / "x.sum")

    def test_the_state_comes_back_from_a_checkpoint(self, study, field, monkeypatch):
        monkeypatch.setattr("predbayes.study.coordinator.step.MANY", 1)
        field.fill(study, [C], [field.sum("north", [A, B])])
        state = study.state()
        assert state.resumed
        assert dict(state.sums.items()) == dict(State.of(study.ledger.read()).sums)
        north = Study(field.folder / "north").state()
        assert (north.resumed, north.shard) == (True, "north")

    def test_a_plan_of_weights_has_no_shards(self, tmp_path):
        world = make_world(tmp_path / "w", kind="weights")
        CoordinatorKey.generate().save(tmp_path / "north.key")
        with pytest.raises(StudyError, match="the plan asks for weights"):
            Study.shard(tmp_path / "n", "n", world.kit.folder, tmp_path / "north.key")
