"""A site's part in a study, for programs: what the commands of `predbayes site` do.

    site = Site("site.toml")
    site.check(Kit.load("kit"), "rows.csv")
    site.train("kit", "rows.csv", "out")
    site.adopt("result", "rows.csv", home="out")

Every act is noted in the site's audit log with its outcome. The module loads no arrays, so a
command that only looks starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from predbayes.errors import DataError, KeyFileError, PlanError, StudyError
from predbayes.system import quoted
from predbayes_study.store.audit import AuditLog
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.wording import bytes_readable, counted

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from predbayes.exchange.upload import Upload
    from predbayes.predictive.families import Predictive
    from predbayes_study.kit.kit import Kit
    from predbayes_study.plan.schema import Plan
    from predbayes_study.result.model import CalibratedModel
    from predbayes_study.result.schema import Scores
    from predbayes_study.result.signed import SignedModel
    from predbayes_study.rules import Finding
    from predbayes_study.site.adopt import Comparison
    from predbayes_study.site.deletion import SiteDeletion
    from predbayes_study.site.policy import Asked
    from predbayes_study.site.release import Approvals
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.site.training import Holdout, Trained
    from predbayes_study.site.witness import Verified
    from predbayes_study.store.audit import Fact
    from predbayes_study.tables.check import SiteCheck
    from predbayes_study.tables.coding import Examined
    from predbayes_study.tables.suggest import Suggestion
    from predbayes_study.trust.signing import PublicKey, SigningKey
    from predbayes_study.trust.statement import StudyStatement

DEFAULT = Path("site.toml")
_WIDTH = 13  # of the words before what a plan asks
HELD_BACK = "held-back-"
"""Before the name of a file that waits for an approval."""


class Site:
    """One site, as its site.toml says.

    Args:
        path: The site.toml; log, approvals and noted heads are beside it.
    """

    def __init__(self, path: str | Path = DEFAULT) -> None:
        self.path = Path(path)

    @cached_property
    def file(self) -> SiteFile:
        """What site.toml says; if there is none, the error says how to get one."""
        if not self.path.exists():
            raise StudyError(
                f"there is no {self.path}; to have one drafted: predbayes site check KIT DATA "
                "--suggest --name NAME"
            )
        return SiteFile.load(self.path)

    @cached_property
    def key(self) -> SigningKey:
        """The site's private key; if there is none, the error says how to make one."""
        from predbayes_study.trust.signing import SigningKey

        if not self.file.key_path.exists():
            raise KeyFileError(
                f"there is no {self.file.key_path}, which signs; make it with predbayes site key "
                f"{quoted(self.file.name)}, and send the new .pub to the coordinator"
            )
        return SigningKey.load(self.file.key_path)

    @property
    def approvals(self) -> Approvals:
        """What people at the site approved."""
        from predbayes_study.site.policy import SitePolicy
        from predbayes_study.site.release import Approvals

        if self.path.exists():
            return Approvals.of(self.file)
        return Approvals(self.path.parent, policy=SitePolicy.of())

    @property
    def log(self) -> AuditLog:
        """The audit log: where site.toml says, or beside it."""
        named = ""
        with suppress(PlanError, StudyError):  # a file that cannot be read is refused elsewhere
            named = self.file.audit
        return AuditLog.at(self.path.parent, named)

    @property
    def option(self) -> str:
        """The option with which a command finds this site."""
        return "" if self.path == DEFAULT else f" --site {quoted(self.path)}"

    def draft(self, plan: Plan, data: Path, name: str | None = None) -> Suggestion:
        """Write a first site.toml from a table, or complete the one that is there."""
        from predbayes.exchange.strict import require_site_name
        from predbayes.files import write_bytes
        from predbayes_study.plan.schema import read_text
        from predbayes_study.tables.suggest import complete, suggest

        with self.log.during("suggest", table=data.name, plan=plan.digest()):
            if self.path.exists():
                drafted = complete(plan, data, read_text(self.path))
            elif name is None:
                raise StudyError("say which site this is: --name NAME, as the study knows it")
            else:
                require_site_name(name)
                drafted = suggest(plan, data, name)
            write_bytes(self.path, drafted.sitefile_text.encode())
        return drafted

    def check(self, kit: Kit, data: Path, *, show_values: bool = False) -> SiteCheck:
        """List what in a table does not fit a plan, and what the site's policy says of it.

        Without a site.toml the table must have the plan's names and units.

        Args:
            kit: The study's kit.
            data: The site's table.
            show_values: Whether findings have lines and exact counts.
        """
        from predbayes.progress import listening
        from predbayes_study.site.policy import Asked, SitePolicy
        from predbayes_study.tables.check import site_problems

        with self.log.during("check", table=data.name, values_shown=show_values) as what:
            what["plan"] = kit.digest
            _ = kit.signed  # or it is refused
            own = self.file if self.path.exists() else SiteFile(format=1, name="site")
            policy, rows = SitePolicy.of(own), _Rows(kit, own)
            least = 0 if show_values else policy.least_cell(kit.plan)
            # Rows of a plan that is refused anyway are not encoded: they may take all memory.
            count = None if policy.problems(Asked.of(kit.plan)) else rows.count_held_out
            with listening([], bar=None):
                checked = site_problems(kit.plan, own, data, least, count)
            checked = _with_policy(checked, rows, least)
            what["errors"] = len(checked.errors)
        return checked

    def train(
        self,
        kit: Path,
        data: Path,
        out: Path,
        learner: str | None = None,
        device: str = "cpu",
        tell: Callable[[str], None] = lambda _: None,
    ) -> Trained:
        """Train once and write the upload; go on if an earlier call was stopped.

        Args:
            kit: The study's kit.
            data: The site's table.
            out: Folder for the upload and its egress page.
            learner: The learner, if the plan lets the site choose.
            device: Where a network trains.
            tell: Called with each line on what is to be trained, before it begins.
        """
        from predbayes.progress import at, listening
        from predbayes_study.kit.kit import Kit
        from predbayes_study.plan.software import is_another_software, software_problem
        from predbayes_study.site.rows import SiteRows
        from predbayes_study.site.training import Training
        from predbayes_study.store.files import RUN_LOCK, locked
        from predbayes_study.tables.mapping import read_site_table

        with self.log.during("train", long=True, table=data.name) as what:
            loaded, own = Kit.load(kit), self.file
            plan, approvals = loaded.plan, self.approvals
            what |= {"plan": loaded.digest, "site": own.name}
            approvals.recall(out)
            _ = loaded.signed  # or it is refused
            approvals.require_plan(loaded, self.option, plan.learner_or(learner))
            with listening([], bar=None):
                rows = SiteRows.to_train(plan, own, read_site_table(plan, own, data))
            training = Training(
                loaded,
                own.name,
                self.key,
                approvals,
                out,
                plan.learner_or(learner),
                device,
                own.allow_networks,
                own.table,
            )
            trained_on, held_out = map(len, rows.split_for(loaded, own.name))
            tell(
                f"{own.name}: {len(rows.targets):,} rows, {trained_on:,} of them to train on, "
                f"learner {training.learner}"
            )
            tell(
                f"rules: {held_out:,} rows held out ({rows.rule(plan)}); learner "
                f"{_chosen(plan, learner)}"
            )
            if is_another_software(plan):
                tell(f"warning: {software_problem(plan)}")
            out.mkdir(parents=True, exist_ok=True)
            # A Flower node may be at work in the same folder, and holds the same lock.
            with locked(out, RUN_LOCK), at(own.name), listening([], bar=None):
                trained = training.run(rows)
            what |= trained.facts()
        return trained

    def approve(
        self, what: Path, by: str, key: Path | None = None, *, revoke: bool = False
    ) -> tuple[bool, Approvable]:
        """Record that somebody approved a plan or a file, or takes it back.

        Returns whether it is new, and what it is of.

        Args:
            what: A kit, for its plan; or a file that would leave.
            by: Name and office of who says so.
            key: The officer's own key, to sign with.
            revoke: Whether an approval is taken back.
        """
        from predbayes_study.site.book import FURTHER, Book
        from predbayes_study.site.book import told as allowed
        from predbayes_study.trust.signing import SigningKey

        act: Literal["approve", "revoke"] = "revoke" if revoke else "approve"
        with self.log.during(act, by=by) as noted:
            approvals = self.approvals
            thing = _approvable(what, approvals)
            noted[thing.kind] = thing.digest
            signer = None if key is None else SigningKey.load(key)
            noted["key"] = None if signer is None else signer.public.fingerprint
            if not revoke:
                approvals.policy.require(thing.asked)
            told: dict[str, Any] = {"act": act, "key": signer, "about": thing.about}
            new = approvals.record(thing.kind, thing.digest, by, **told)
            asks = Book(approvals.books).asks(thing.digest) if thing.kind == "plan" else []
            for ask in asks:
                new |= approvals.record(FURTHER, ask.digest, by, **told)
            noted["further releases"] = len(asks)
            thing = thing._replace(allows=tuple(map(allowed, asks)))
            if revoke:
                thing = thing._replace(taken_back=tuple(approvals.recall()))
                noted["files"] = len(thing.taken_back)
        return new, thing

    def delete(self, out: Path) -> tuple[Path, SiteDeletion]:
        """Delete what `train` left in a folder; return the path of a signed receipt, and it."""
        from predbayes_study.site.deletion import delete_outputs
        from predbayes_study.store.files import RUN_LOCK, locked

        with self.log.during("delete", folder=out.name) as what:
            key = self.key
            if not out.is_dir():
                raise StudyError(f"there is no folder {out}")
            with locked(out, RUN_LOCK):
                path, receipt = delete_outputs(out, self.file.name, key)
            what |= {"site": self.file.name, "files": len(receipt.removed)}
            what["key"] = key.public.fingerprint
        return path, receipt

    def verify(self, paths: Sequence[Path], key: Path | None = None, words: str = "") -> Verified:
        """Check what a coordinator signed, and remember the heads of the ledger that it names.

        A receipt must be for this site and name its key. Without a site.toml nothing is noted.

        Args:
            paths: Kits, results, models, receipts; the site's own upload.
            key: The coordinator's public key, from the coordinator; None: that in the plan.
            words: The plan's fingerprint as it was read out; empty: not compared.
        """
        from predbayes_study.site.witness import verify_files
        from predbayes_study.trust.coordinator import CoordinatorPublicKey

        # Whoever is no site has no log, and is to have no new file.
        is_site = self.path.exists()
        log: AbstractContextManager[dict[str, Fact]] = nullcontext({})
        if is_site:
            log = self.log.during("verify", files=len(paths))
        with log as what:
            public = None if key is None else CoordinatorPublicKey.load(key)
            found = verify_files(paths, public, words.strip().lower())
            what["problems"] = len(found.problems)
            if found.problems or found.key is None:
                raise VerificationError(found.problems)
            what["plan"] = found.statements[0].plan
            for statement in found.statements if is_site else ():
                self._note(statement, found.key.signing)
        return found

    def _note(self, statement: StudyStatement, key: PublicKey) -> None:
        """Remember a statement's head, and make sure that a receipt is this site's."""
        from predbayes_study.site.witness import Heads
        from predbayes_study.trust.signing import PublicKey
        from predbayes_study.trust.statement import Deletion, Receipt

        own = self.file
        if isinstance(statement, Receipt | Deletion) and statement.site != own.name:
            raise StudyError(f"the receipt is for {statement.site}, and this site is {own.name}")
        if isinstance(statement, Receipt):
            public = own.key_path.with_suffix(".pub")  # which needs no passphrase
            if public.exists() or own.key_path.exists():
                mine = PublicKey.load(public) if public.exists() else self.key.public
                if mine.hex != statement.key:
                    raise StudyError(
                        f"the receipt names the key {PublicKey(statement.key).fingerprint}, and "
                        f"this site's is {mine.fingerprint}: another was admitted as {own.name}; "
                        "call the coordinator"
                    )
        Heads(own.books).note(statement, key)

    def evaluate(
        self,
        model: Path,
        data: Path,
        home: Path | None = None,
        out: Path | None = None,
        *,
        everything: bool = False,
    ) -> Evaluated:
        """Score a study's model on the site's rows, those held out or with `everything` all.

        Args:
            model: Folder of a result or of its model.
            data: The site's table.
            home: The folder that `train` wrote, by which the rows are known to be the same.
            out: File for an evaluation that the coordinator may have; held back until approved.
            everything: Whether the model is tried on every row; nothing may leave then.
        """
        from predbayes_study.result.evaluation import bounded_figures
        from predbayes_study.result.scoring import score
        from predbayes_study.site.adopt import evaluated_rows, require_as_it_came

        if out is not None and everything:
            raise StudyError("an evaluation is of held-out rows alone: leave --all or --out out")
        if out is not None and home is None:
            raise StudyError("an evaluation is of a study that this site trained for: give --home")
        upload, path, released = None, None, False
        with self.log.during("evaluate", long=True, table=data.name) as what:
            if out is not None:
                self.approvals.recall(out.parent)
            came, rows = self._read(model, data)
            tried = came.model
            plan, own = tried.plan, self.file
            what |= {"site": own.name, "model": tried.weights_digest()}
            if out is not None:
                require_as_it_came(tried)
                require_place(out, data)
                self.approvals.require_evaluation(plan)
            kept = _kept(home)
            places = evaluated_rows(plan, own.name, rows, kept, everything=everything)
            inputs, targets = rows[places]
            predictive = tried.predictive(inputs)
            if out is not None:
                upload = self._evaluation(came, *rows[rows.one_each(plan, places)])
        with bounded_figures():
            scores = score(plan, predictive, targets)
        assert scores is not None  # there are rows
        if out is not None and upload is not None:
            held_back = out.with_name(HELD_BACK + out.name)
            path, released = self.approvals.release(plan, upload, lambda: self.key, out, held_back)
            self.log.note("release" if released else "hold back", upload=upload.digest())
        return Evaluated(tried, rows, predictive, targets, scores, upload, path, released)

    def adopt(
        self, model: Path, data: Path, home: Path | None = None, out: Path = Path("adopted")
    ) -> Adopted:
        """Fit a study's model to the site's rows, compare it with the site's own, and advise."""
        from predbayes_study.result.evaluation import bounded_figures
        from predbayes_study.result.model import model_folder
        from predbayes_study.result.signed import sign_adoption
        from predbayes_study.site.adopt import adopt

        if out.exists() and out.resolve() == model_folder(model).resolve():
            raise StudyError("--out is the folder of the model; give it another one")
        with self.log.during("adopt", long=True, table=data.name) as what:
            came, rows = self._read(model, data)
            what |= {"site": self.file.name, "model": came.model.weights_digest()}
            key = None if came.statement is None else self.key
            kept = _kept(home)
            with bounded_figures():
                adoption = adopt(came.model, self.file.name, rows, kept)
            adoption.save(out)
            if key is not None:
                sign_adoption(came, out, self.file.name, key)
        return Adopted(came.model, rows, adoption.comparison)

    def _read(self, model: Path, data: Path) -> tuple[SignedModel, SiteRows]:
        """Read a model and the rows to try it on."""
        import torch

        from predbayes_study.payload import payload_of
        from predbayes_study.result.signed import load_signed
        from predbayes_study.site.rows import SiteRows
        from predbayes_study.tables.mapping import read_site_table

        own = self.file
        loaded = load_signed(model, own.allow_networks)
        plan = loaded.model.plan
        torch.set_num_threads(plan.learner.threads)
        table = read_site_table(plan, own, data)
        return loaded, SiteRows.of(plan, table, secret=payload_of(plan).secret(own))

    def _evaluation(
        self,
        came: SignedModel,
        inputs: Tensor,
        targets: Tensor,
    ) -> Upload:
        """What would leave of the model before its level was set, as the site's policy allows."""
        from predbayes_study.payloads.details import having_seen
        from predbayes_study.result.evaluation import evaluation_upload
        from predbayes_study.site.policy import Asked
        from predbayes_study.site.witness import Heads

        own, model, plan = self.file, came.model, came.model.plan
        asked = Asked(leaving=("evaluation",), num_evaluated=len(targets))
        self.approvals.policy.require(asked)
        digest = model.weights_digest()
        said = model.before_level(inputs)
        upload = evaluation_upload(plan, own.name, said, targets, digest, inputs=inputs)
        signed, coordinator = came.statement, plan.coordinator
        if signed is None or coordinator is None:
            return upload
        return having_seen(upload, Heads(own.books).note(signed, coordinator.signing))


class VerificationError(StudyError):
    """Files that are not as the coordinator signed them; `problems` has a line for each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(f"not as the coordinator signed it ({counted(len(problems), 'problem')})")
        self.problems = problems


class Approvable(NamedTuple):
    """A plan or a file that may be approved."""

    kind: str
    digest: str
    about: dict[str, str]
    made_by: str  # the command that signs it; empty if nothing waits for that
    asked: Asked  # of the site's policy
    allows: tuple[str, ...] = ()  # what was refused until a person allows it
    taken_back: tuple[Path, ...] = ()  # signed files, when it was revoked


def _approvable(path: Path, approvals: Approvals) -> Approvable:
    """Read what is to be approved: a kit, an upload or an attachment; or what was signed here."""
    from predbayes.exchange.upload import Upload
    from predbayes.files import file_digest
    from predbayes_study.attachments import kind_named, kind_of
    from predbayes_study.kit.kit import Kit
    from predbayes_study.payload import EVALUATION
    from predbayes_study.payloads.details import read_header
    from predbayes_study.site.policy import Asked
    from predbayes_study.trust.sealed import is_sealed

    if path.is_dir():
        kit = Kit.load(path)
        plan, digest = kit.plan, kit.digest
        _ = kit.signed  # or it is refused
        about = {"plan": digest, "leaves": plan.sent, "network": plan.model.module}
        return Approvable("plan", digest, about, "", Asked.of(plan))
    if attached := kind_of(path):
        sent = kind_named(attached).read(path)
        about = {"plan": sent.plan, "leaves": attached}
        made_by = "" if sent.is_signed else attached  # the command has the kind's name
        return Approvable(attached, sent.digest, about, made_by, Asked(leaving=(attached,)))
    if is_sealed(path):
        released = approvals.released(file_digest(path))
        if released is None:
            raise StudyError(
                f"{path.name} was not encrypted here, or was altered: give held-back.safetensors"
            )
        about = {"plan": released.plan, "leaves": ", ".join(released.kinds)}
        asked = Asked(leaving=released.kinds)
        return Approvable(released.what, released.digest, about, "", asked)
    header = read_header(path)
    kind = header.info.kind
    made_by = "evaluate" if kind == EVALUATION else "train"
    return Approvable(
        "upload",
        Upload.load(path, header).digest(),
        {"plan": header.info.plan, "leaves": kind},
        made_by if header.signature is None else "",
        Asked.of_file(kind),
    )


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model on a site's rows, and what of it may leave."""

    model: CalibratedModel
    rows: SiteRows
    predictive: Predictive
    targets: Tensor  # of the rows that it was tried on
    scores: Scores
    upload: Upload | None
    path: Path | None  # of the upload, signed or held back
    released: bool


@dataclass(frozen=True, slots=True)
class Adopted:
    """A model that was fitted to a site's rows, and how it compares."""

    model: CalibratedModel
    rows: SiteRows
    comparison: Comparison


def require_place(out: Path, data: Path) -> None:
    """Refuse what cannot be written before any work is done."""
    if not out.absolute().parent.is_dir():
        raise DataError(f"there is no folder {out.absolute().parent}")
    if out.is_dir() or (out.exists() and data.exists() and out.samefile(data)):
        raise DataError(f"--out would overwrite {out}; give it another name")


def _kept(home: Path | None) -> Holdout | None:
    from predbayes_study.site.training import Holdout

    return None if home is None else Holdout.load(home)


def _chosen(plan: Plan, given: str | None) -> str:
    """Say who chooses the learner."""
    from predbayes.learning.named import AUTO

    if plan.learner_or(given) == AUTO:
        return "chosen by cross-validation on the rows to train on"
    if given:
        return "as you chose"
    if plan.learner.name == "any":
        return "the plan's network, as you chose no other with --learner"
    return "as the plan says"


@dataclass(slots=True)
class _Rows:
    """The rows that `train` would see; encoded once, as large tables take a while."""

    kit: Kit
    own: SiteFile
    inputs: Tensor | None = None  # of a table that fits
    trained: tuple[Tensor, Tensor] | None = None  # inputs and targets that are not held out
    people: Tensor | None = None  # whose these are, where it is known

    def count_held_out(self, frame: pd.DataFrame, examined: Examined) -> int:
        """Return how many of them are held out."""
        from predbayes_study.payload import payload_of
        from predbayes_study.site.rows import SiteRows

        plan = self.kit.plan
        secret = payload_of(plan).secret(self.own, may_make=False)
        rows = SiteRows.of(plan, frame, examined, secret=secret)
        # The blind spot changes which rows are trained on, not their number, and takes a while.
        trained, held_out = rows.split(plan, self.own.name)
        self.inputs, self.trained = rows.inputs, rows[trained]
        self.people = rows.patients_of(trained)
        return len(held_out)

    def why_refused(self, least: int) -> str:
        """Return why nothing about the rows may leave, if that is so."""
        from predbayes_study.payload import payload_of

        if self.trained is None:
            return ""
        plan = self.kit.plan
        return payload_of(plan).why_refused(plan, self.trained, least, self.people)


def _with_policy(checked: SiteCheck, rows: _Rows, least: int) -> SiteCheck:
    """Add what the site's policy says of the plan, its code and its reference rows."""
    from predbayes_study.plan.networks import network_problem
    from predbayes_study.plan.software import is_another_software, software_problem
    from predbayes_study.rules import error, warning
    from predbayes_study.site.overlap import near_findings
    from predbayes_study.site.policy import Asked, SitePolicy

    kit, own = rows.kit, rows.own
    plan, policy, told = kit.plan, SitePolicy.of(own), ""
    near: list[Finding] = []
    problems = [network_problem(plan, own.allow_networks)]
    if not checked.errors and rows.inputs is not None:
        told, near = near_findings(policy, kit, rows.inputs, least)
        problems += policy.problems(Asked.of(plan, num_rows=len(rows.inputs)))
        problems.append(rows.why_refused(policy.least_cell(plan)))
    else:
        problems += policy.problems(Asked.of(plan))
    findings = [*map(error, filter(None, problems)), *near, *checked.findings]
    findings.sort(key=lambda finding: finding.severity)
    software = software_problem(plan)
    if is_another_software(plan):
        findings.append(warning(software))
        software = ""
    summary = (*checked.summary, *filter(None, (told, software)))
    return replace(checked, findings=tuple(findings), summary=summary)


def asked(plan: Plan) -> Iterator[str]:
    """Yield what a plan asks of a site, in a few lines."""
    from predbayes.learning.named import AUTO
    from predbayes_study.payload import payload_of, upload_bytes
    from predbayes_study.plan.models import sampler_settings
    from predbayes_study.tasks.choice import MOST_ROWS

    epochs = f"{sampler_settings(plan).num_epochs} times over your rows"
    learner = plan.learner.name
    if learner == "network":
        learner = f"the plan's network, {epochs}, or more often if they are few"
    elif learner == "any":
        learner = f"a model of your choice: auto, {', '.join(plan.learner_names)}"
    elif learner == AUTO:
        learner = (
            f"what serves your rows best of {', '.join(plan.tried)}: each is tried five times on "
            f"at most {MOST_ROWS:,} of them"
        )
    size = bytes_readable(upload_bytes(plan), places=0)
    release = "after somebody here approves it" if plan.upload.release == "manual" else "at once"
    lines = {
        "leaves": f"{payload_of(plan).in_words(plan)}, about {size}, in one signed file, {release}",
        "stays": "your table; every row of it",
        "trained": learner,
        "network": _network(plan),
        "promised": "" if plan.promise is None else plan.promise.text,
        "held out": f"{plan.learner.holdout:.0%} of your rows, never trained on",
    }
    yield f"the study {plan.name!r} asks of this site:"
    for key, value in lines.items():
        if value:
            yield f"  {key:<{_WIDTH}}{value}"


def _network(plan: Plan) -> str:
    """Name a network of the consortium's own, because it is code that is to run here."""
    if plan.frozen is None or plan.frozen.network is None:
        return ""
    agreed = plan.frozen.network
    return (
        f"{plan.model.module}: code of {agreed.distribution} {agreed.version}, files "
        f"{agreed.digest[:16]}, {agreed.parameters:,} parameters"
    )
