"""Groups of commands that other distributions and extras add to, loaded when they are asked for.

    [project.entry-points."predbayes.commands"]
    experiment = "predbayes_lab.commands:experiments"

names a typer app, or a function, that becomes `predbayes experiment`. Extras of the study name
theirs in `Extra.commands`. What is known without them is run without looking for them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import typer
import typer.core

from predbayes_study import extra as finder

ENTRY_POINTS = "predbayes.commands"
"""The group of the entry points; a name may have a group before it, as in `site audit`."""


class Group(typer.core.TyperGroup):
    """A group with its own commands, and after them those that are installed beside it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(_added(ctx).keys() - {*own})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import the module of one from elsewhere."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        load = _added(ctx).get(cmd_name)
        return None if load is None else _as_command(cmd_name, load())


def _added(ctx: click.Context) -> dict[str, Callable[[], Any]]:
    """What others add to the group of a context: name -> function that imports it."""
    group = _path(ctx)
    return {path.split()[-1]: load for path, load in _everything() if path.split()[:-1] == group}


def _path(ctx: click.Context) -> list[str]:
    return [] if ctx.parent is None else [*_path(ctx.parent), str(ctx.info_name)]


def _everything() -> Iterator[tuple[str, Callable[[], Any]]]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if finder.exists(point.module):
            yield point.name, point.load
    for name, extra, reference in finder.added("commands"):
        yield name, partial(extra.load, reference)


def _as_command(name: str, found: Any) -> click.Command:
    """Return a typer app or a function as the command that it is below an app like ours."""
    root = typer.Typer(add_completion=False, rich_markup_mode=None)
    root.callback()(lambda: None)  # or a single command would be the app itself
    if isinstance(found, typer.Typer):
        root.add_typer(found, name=name)
    else:
        root.command(name)(found)
    group = typer.main.get_command(root)
    assert isinstance(group, click.Group)
    return group.commands[name]
