"""The demo's third part: what a newcomer does with a table of images, from png and csv to the report."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepauc.cli.console import Output

if TYPE_CHECKING:
    from deepauc.data.export import Exported
    from deepauc.metrics.intervals import Estimate
    from deepauc.pipeline.cross_validation import CrossValidation
    from deepauc.pipeline.outcome import Outcome
    from deepauc.training.config import Settings

TABLE_FOLDER, RUN_FOLDER = "digits-table", "first-run"
MARK = "  # by deepauc demo"  # a comment to the shell; tells the demo's own run from a user's
PARTS = ("validation", "test")
KEPT = (
    "The last network is kept unless it is worse on validation; the test part is not used for this. Both parts hold "
    "few positives: read the intervals before the ranking."
)
_NAMES = {"cross-entropy": "CE", "AUC-M": "AUC-M"}
# All that a run and its report leave behind: a run folder with any other file in it is not removed.
_RUN_FILES = ("run.json", "DONE", "bundle.json", "history.csv", "scores.csv", "trivial.json", "report.*", ".*.part")
_WEIGHTS = ("model.safetensors", "checkpoint.safetensors", "stage-?.safetensors")


@dataclass(frozen=True, kw_only=True)
class FirstRunSettings:
    """Shorter than the plan's own epochs, so that the demo ends soon; None leaves the network to the plan."""

    seed: int = 0
    epochs: int = 12  # of each stage
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """A finished run with AUC by stage and part."""

    settings: FirstRunSettings
    command: str
    auc: dict[str, dict[str, Estimate[float]]]
    kept: str
    counts: dict[str, dict[str, int]]
    table: Path
    report: Path


def require_replaceable(folder: Path) -> None:
    """Refuse a run folder that the demo did not make, or that holds a file that is not a run's."""
    remedy = "Move it away, or choose another --out; nothing was changed."
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is not a folder of the demo. {remedy}")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _command_of(folder).endswith(MARK):
        raise ValueError(f"{folder} was not made by the demo. {remedy}")
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and not _is_of_a_run(path.relative_to(folder)):
            raise ValueError(f"{path} was not made by the demo. {remedy}")


def run_first(out: Path, table: Exported, settings: FirstRunSettings, output: Output) -> FirstRun:
    """`deepauc train` on the table into OUT/first-run, in place of an earlier demo's; an unfinished one goes on."""
    from deepauc.cli.training_run import run_training
    from deepauc.training.config import DataSettings, Settings
    from deepauc.training.plan.inputs import PlanOptions
    from deepauc.training.run.folder import RunFolder

    folder = out / RUN_FOLDER
    full = Settings(
        seed=settings.seed,
        data=DataSettings(
            table=str(table.table),
            image_column=table.image_column,
            label_columns=table.label_columns,
            split_column=table.split_column,
        ),
        plan=PlanOptions(epochs=settings.epochs, model=settings.model),
    )
    command = _command(full, folder)
    require_replaceable(folder)
    if folder.exists() and (RunFolder(folder).done or _command_of(folder) != command + MARK):
        shutil.rmtree(folder)
    output.say(f"$ {command}\n")
    # where only results or JSON were asked for, the demo says them itself
    inner = _Silent(as_json=True) if output.quiet or output.as_json else output
    outcome = run_training(full, out=folder, device="cpu", output=inner, command=command + MARK)
    return _result(full, settings, command, outcome)


def header() -> list[str]:
    """The names over `rows`."""
    return ["stage", *(f"{part} AUC" for part in PARTS), "network kept"]


def rows(result: FirstRun) -> list[list[str]]:
    """A stage a row: AUC with DeLong's interval."""
    from deepauc.text_tables import auc_text

    return [
        [
            stage,
            *(auc_text(float(auc[part].value), float(auc[part].low), float(auc[part].high)) for part in PARTS),
            "yes" if stage == result.kept else "",
        ]
        for stage, auc in result.auc.items()
    ]


def section(result: FirstRun, out: Path) -> str:
    """The part of a markdown report."""
    from deepauc.text_tables import markdown_table

    table, report = (path.relative_to(out).as_posix() for path in (result.table, result.report))
    counts = [[part, str(n["positives"]), str(n["negatives"])] for part, n in result.counts.items()]
    return "\n".join(
        [
            f"This is what you would do with your own images. Each row of [{table}]({table}) names a PNG file, its "
            "label (1: classes 5 to 9, reduced to 10 %) and its part.",
            "",
            markdown_table(["part", "positives", "negatives"], counts),
            "",
            f"The demo ran this command. For a table of your own, change paths and column names, and leave out "
            f"`--epochs {result.settings.epochs}`, which only keeps the demo short.",
            "",
            f"```\n{result.command}\n```",
            "",
            "The same from Python, without the short `--epochs`; the model then scores new tables:",
            "",
            f"```python\n{python_call(result.table)}\n```",
            "",
            "AUC with DeLong's 95 % interval:",
            "",
            markdown_table(header(), rows(result)),
            "",
            KEPT,
            "",
            f"The report with curves, operating points and calibration: [{report}]({report}).",
        ]
    )


def record(result: FirstRun, out: Path) -> dict[str, Any]:
    """Everything as plain numbers; paths relative to the demo's folder."""
    return {
        "settings": asdict(result.settings),
        "command": result.command,
        "table": result.table.relative_to(out).as_posix(),
        "report": result.report.relative_to(out).as_posix(),
        "counts": result.counts,
        "auc": {stage: {part: asdict(e) for part, e in auc.items()} for stage, auc in result.auc.items()},
        "kept": result.kept,
    }


def python_call(table: Path) -> str:
    """The call of `fit` on the demo's table."""
    return (
        "import deepauc\n\n"
        f'model = deepauc.fit("{table.as_posix()}", image="file", label="target", split="split", out="runs/first")\n'
        "print(model.leaderboard)\n"
        'model.predict("new.csv")'
    )


class _Silent(Output):
    """Says nothing, and prints no record either."""

    def record(self, record: dict[str, Any]) -> None:
        pass


def _command(settings: Settings, folder: Path) -> str:
    data, plan = settings.data, settings.plan
    words = ["deepauc", "train", "--table", str(data.table), "--image-column", str(data.image_column)]
    words += [word for column in data.label_columns for word in ("--label-column", column)]
    words += ["--split-column", str(data.split_column), "--out", str(folder), "--epochs", str(plan.epochs)]
    words += ["--model", plan.model] if plan.model else []
    words += ["--seed", str(settings.seed)] if settings.seed else []
    return shlex.join([*words, "--device", "cpu"])


def _result(full: Settings, settings: FirstRunSettings, command: str, outcome: Outcome | CrossValidation) -> FirstRun:
    """Both stages on validation and test, as the run has scored them."""
    from deepauc.pipeline.outcome import Outcome
    from deepauc.training.run.scores import read_run_scores

    assert isinstance(outcome, Outcome)  # the table names its parts, so there are no folds
    folder, networks = outcome.run.path, sorted(outcome.networks, key=lambda network: network.stage)
    (label,) = outcome.run.record.task.labels
    scores = read_run_scores(folder)
    labels = {part: scores.part(part).labels for part in scores.part_names}
    return FirstRun(
        settings=settings,
        command=command,
        auc={_NAMES[one.objective]: {part: one.auc[part][label] for part in PARTS} for one in networks},
        kept=_NAMES[outcome.kept.objective],
        counts={p: {"positives": int((y == 1).sum()), "negatives": int((y == 0).sum())} for p, y in labels.items()},
        table=Path(str(full.data.table)),
        report=folder / "report.html",
    )


def _command_of(folder: Path) -> str:
    """By which its run was trained; nothing where no record can be read."""
    from deepauc.training.run.folder import RunFolder

    try:
        return RunFolder(folder).record().command
    except ValueError:
        return ""


def _is_of_a_run(path: Path) -> bool:
    match path.parts:
        case ("report-figures", name):
            return name.endswith((".png", ".part"))
        case (_,) | ("baseline" | "last-stage", _) | ("trivial", _, _):
            return any(Path(path.name).match(pattern) for pattern in (*_RUN_FILES, *_WEIGHTS))
        case _:
            return False
