"""The `deepauc` command: joins the commands, each in its own file; turns bad input into one line and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deepauc.cli.compare import compare
from deepauc.cli.console import harmless, speak_of_anything, stdout_is_open
from deepauc.cli.data import app as data_app
from deepauc.cli.demo import demo
from deepauc.cli.evaluate import evaluate
from deepauc.cli.export import export
from deepauc.cli.predict import predict
from deepauc.cli.report import report
from deepauc.cli.serve import serve
from deepauc.cli.short_help import ShortHelp
from deepauc.cli.study import app as study_app
from deepauc.cli.train import TrainCommand, train


@dataclass
class Invocation:
    """What `run` has to know of a call after it has failed."""

    debug: bool = False


ClickException: type[Exception] = typer.BadParameter.__mro__[2]
"""Base of all usage errors. Not click's own: newer releases of typer carry a copy of click inside."""


@contextmanager
def _answered() -> Iterator[None]:
    """Ctrl-C and a closed stdout: typer would turn them into exit codes 130 and 1 without a word."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("deepauc: interrupted.", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        if stdout_is_open():
            raise
        raise typer.Exit(0) from None


class Commands(TyperGroup):
    """All commands."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _answered():  # --help and --version
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _answered():
            return super().invoke(ctx)


# Plain help: it reads the same in a terminal, a pipe and a screen reader, and does not wait for rich.
app = typer.Typer(
    name="deepauc",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"deepauc {version('deepauc')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def deepauc(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Deep AUC maximisation for imbalanced classification."""
    context.ensure_object(Invocation).debug = debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(demo)
app.command(cls=TrainCommand)(train)
app.command(cls=ShortHelp)(predict)
app.command()(export)
app.command(cls=ShortHelp)(evaluate)
app.command(cls=ShortHelp)(compare)
app.command(cls=ShortHelp)(report)
app.command()(serve)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exit code 0, 2 with one line for bad input, 130 when interrupted; --debug shows the traceback."""
    invocation = Invocation()
    speak_of_anything()
    try:
        # standalone_mode=False: errors come here, where all of them get the same treatment
        code = app(list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False, obj=invocation)
    except ClickException as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if "extra argument" in message and _command_of(error) in ("train", "predict"):
            message += ": name the table with --table."
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands without a command: its help, as it is
            typer.echo(message)
            code = 2
        else:
            code = _refuse(message, error, invocation)
    except OSError as error:
        message = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
        code = _refuse(message, error, invocation)
    except ValueError as error:
        code = _refuse(str(error), error, invocation)
    except MemoryError as error:
        code = _refuse(f"there is not enough memory: {error}", error, invocation)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("deepauc: interrupted.", err=True)
        code = 130
    stdout_is_open()  # before the interpreter finds out, and complains
    sys.exit(code or 0)


def _command_of(error: Exception) -> str | None:
    return getattr(getattr(error, "ctx", None), "info_name", None)


def _refuse(message: str, error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        import traceback

        traceback.print_exception(error)
    else:
        typer.echo(f"deepauc: {harmless(' '.join(message.split())) or type(error).__name__}", err=True)
    return 2


if __name__ == "__main__":
    run()
