"""The candidates of a run with one split, judged on its validation part: each stage's network and trivial baselines."""

from __future__ import annotations

from deepauc.pipeline.candidates import short_name
from deepauc.pipeline.trivial_baselines import RECORD, trivial_seconds
from deepauc.reporting.evaluation.kept_stage import auc_intervals
from deepauc.training.run.baseline import FOLDER as BASELINE
from deepauc.training.run.fold_record import BoardRow
from deepauc.training.run.run import LAST_STAGE, Run
from deepauc.training.trivial import FOLDER as TRIVIAL


def one_split_board(run: Run) -> tuple[BoardRow, ...]:
    """From files alone; the part is validation, since the test part chooses nothing."""
    record = run.record
    scored = [number for number, stage in enumerate(record.stages) if stage.views == 1]
    first, last, kept = scored[0], scored[-1], record.kept_stage
    seconds = record.results.seconds or 0.0

    def name(stage: int) -> str:
        return "_".join(short_name(record.stages[number].objective) for number in scored if number <= stage)

    folders = {kept: run.path}
    if first != kept and (run.path / BASELINE).is_dir():
        folders[first] = run.path / BASELINE
    if last != kept and (run.path / LAST_STAGE).is_dir():
        folders[last] = run.path / LAST_STAGE
    found = [
        BoardRow(candidate=name(stage), label=label, auc=auc, seconds=seconds, kept=stage == kept, trivial=False)
        for stage, folder in sorted(folders.items())
        for label, auc in auc_intervals(folder, record.task.labels).get("validation", {}).items()
    ]
    for place in sorted((run.path / TRIVIAL).glob(f"*/{RECORD}")):
        baseline = place.parent
        seconds = trivial_seconds(baseline.parent, baseline.name)
        found += [
            BoardRow(candidate=baseline.name, label=label, auc=auc, seconds=seconds, kept=False, trivial=True)
            for label, auc in auc_intervals(baseline, record.task.labels).get("validation", {}).items()
        ]
    return tuple(found)
