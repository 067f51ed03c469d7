"""Parts of `deepauc study`: options that do not apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deepauc.studies.study import Study

_ALWAYS = ("file", "name", "runs", "results", "data", "quiet", "as_json", "help_all")


def refuse_what_does_not_apply(context: typer.Context, name: str) -> None:
    """One line for the options of this call that a whole run has no use for."""
    given = [p for p in context.command.params if p.name is not None and _was_given(context, p.name)]
    if unknown := [p.opts[0] for p in given if p.name not in _ALWAYS]:
        raise ValueError(f"study {name} has no {', '.join(unknown)}: it is run whole, in this process, on a CPU.")


def refuse_without_cluster(context: typer.Context) -> None:
    """Options of a cluster's tasks mean nothing elsewhere."""
    flags = {p.name: p.opts[0] for p in context.command.params if p.name in ("task_gpus", "task_cpus", "retries")}
    if given := [flag for name, flag in flags.items() if name and _was_given(context, name)]:
        raise ValueError(f"{', '.join(given)}: these options need --cluster.")


def refuse_without_effect(
    chosen: Sequence[Study],
    parents: Sequence[Study],
    *,
    configs: int | None,
    tune_epochs: int | None,
    tune_sets: int | None,
    seeds: str | None,
    curves: bool,
) -> None:
    """Options of tuning or of final runs, where these studies have none."""
    from deepauc.names import counted
    from deepauc.studies.sources import is_for_choosing

    tuning = {"--tune-epochs": tune_epochs, "--tune-sets": tune_sets}
    given = [flag for flag, value in {"--configs": configs, **tuning}.items() if value is not None]
    tuned = [one for one in (*chosen, *parents) if one.tuned]
    if given and not tuned:
        raise ValueError(f"{', '.join(given)}: nothing is tuned in these cells. Leave it out, or name other --cells.")
    if configs == 1 and len(given) > 1:
        raise ValueError(f"--configs 1 leaves nothing to tune: leave out {', '.join(given[1:])}, or allow 2.")
    most = max((len(one.tuning_seeds) for one in tuned), default=0)
    if tune_sets is not None and tune_sets > most:
        raise ValueError(
            f"--tune-sets {tune_sets}: these cells have at most {counted(most, 'training set')} to tune on."
        )
    final = [flag for flag, value in {"--seeds": seeds is not None, "--curves": curves}.items() if value]
    if final and all(is_for_choosing(one.task) for one in chosen):
        raise ValueError(
            f"{', '.join(final)}: these cells only choose a setting and have no final runs. Leave it out, or name "
            "other --cells."
        )


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
