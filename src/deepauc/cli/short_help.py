"""Help that fits a screen of 80 x 24: options that few need are only named there; `--help-all` explains them."""

from __future__ import annotations

import textwrap
from typing import Any

import typer
from typer.core import TyperCommand

RARE = "rarely needed"  # the panel of such options


def rare(help: str, *flags: str, metavar: str | None = None, min: float | None = None) -> Any:
    """An option that `--help` only names."""
    return typer.Option(*flags, metavar=metavar, min=min, rich_help_panel=RARE, help=help)


class ShortHelp(TyperCommand):
    """A command whose `--help` names its rare options without explaining them."""

    whole = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options, rare = [], [], []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(record)
            elif getattr(parameter, "rich_help_panel", None) == RARE and not self.whole:
                rare.append(str(parameter.opts[0]))
            else:
                options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if rare:
            text = f"More options (see --help-all): {', '.join(rare)}."
            for line in textwrap.wrap(text, formatter.width - 2, break_on_hyphens=False):
                formatter.write(f"  {line}\n")


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.command.whole = True  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = typer.Option("--help-all", is_eager=True, callback=_show_all, hidden=True)
