"""Parts of `deepauc study`: studies that are not made of `Study`, and options that do not apply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepauc.cli.console import Output

if TYPE_CHECKING:
    from deepauc.studies.entry import Entry
    from deepauc.studies.study import Study

_ALWAYS = ("file", "name", "runs", "results", "data", "device", "max_minutes", "quiet", "as_json", "help_all")


def refuse_what_does_not_apply(context: typer.Context, entry: Entry) -> None:
    """One line for the options of this call that runs of another kind have no use for."""
    assert entry.own is not None
    taken = (*_ALWAYS, *("options" if name == "settings" else name for name in entry.own.options))
    flags = {p.name: p.opts[0] for p in context.command.params if p.name is not None}
    given = [name for name in flags if _was_given(context, name)]
    if unknown := [flags[name] for name in given if name not in taken]:
        raise ValueError(f"study {entry.name} has no {', '.join(unknown)}: {entry.own.why}")


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
    from deepauc.studies.folds import is_for_choosing

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


def tell_own_status(entry: Entry, cells: list[str], results: Path, output: Output, *, whole: bool) -> Any:
    """How many runs are recorded, of how many; whole: run by run."""
    assert entry.own is not None
    seeds, found = len(entry.own.seeds), entry.own.recorded(results, cells)
    rows = [[name, f"{count} of {seeds}"] for name, count in found.items()]
    if whole:
        output.table(["runs", "recorded"], rows, title=f"{entry.name}: {entry.title}")
    where = entry.own.path(results)
    output.result(f"{entry.name}: recorded runs: {sum(found.values())} of {seeds * len(found)}, in {where}")
    others = entry.own.with_other_settings(results)
    for changes, count in others.items():
        output.result(f"{entry.name}, with {changes}: {count} recorded in {where}")
    by_name = [{"study": name, "final": count, "seeds": seeds} for name, count in found.items()]
    return {"runs": by_name, "other_settings": others}
