"""`predbayes site`: a site's commands, from a check of its table to its adopted model."""

from __future__ import annotations

import typer

from predbayes_study.cli import site_check, site_model, site_train, site_verify
from predbayes_study.cli.group import Group

app = typer.Typer(
    cls=Group,
    help="Take part: check, approve, train, verify, adopt.",
    no_args_is_help=True,
    suggest_commands=False,
)
app.command("key")(site_train.key_command)
app.command("check")(site_check.check_command)
app.command("approve")(site_train.approve_command)
app.command("revoke")(site_train.revoke_command)
app.command("train")(site_train.train_command)
app.command("delete")(site_train.delete_command)
app.command("verify")(site_verify.verify_command)
app.command("evaluate")(site_model.evaluate_command)
app.command("adopt")(site_model.adopt_command)
