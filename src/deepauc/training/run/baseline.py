"""The baseline stage of a finished run, the earliest with scores, as a run of its own: what later ones have to beat."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch

from deepauc.data.task import Task
from deepauc.training.engine.loop import chosen_device
from deepauc.training.plain import recipe_hash, to_plain
from deepauc.training.run.bundle import Bundle, load_weights, save_weights
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.operating import fitted_on_validation
from deepauc.training.run.record import Results
from deepauc.training.run.run import Run, aucs_of, finished
from deepauc.training.run.scores import write_run_scores

FOLDER = "baseline"


def baseline_run(run: Run, task: Task, *, device: str | torch.device | None = None) -> Run | None:
    """`RUN/baseline`: the baseline stage as a run of its own, by the weights the guard kept; None without.

    Stages on views that come before it are part of it. Its identity is that of such a run: same data, same seed, the
    recipe cut after that stage.
    """
    record = run.record
    recipe = record.recipe()
    number = next((i for i, stage in enumerate(recipe.stages) if not stage.on_views), len(recipe.stages))
    weights = RunFolder(run.path).stage_path(number)
    if number >= len(recipe.stages) - 1 or not weights.exists():
        return None
    alone = replace(recipe, stages=recipe.stages[: number + 1], guard=False, keep_stages=False)
    identity = replace(record.identity, recipe=recipe_hash(alone))
    kept = record.changed(identity=asdict(identity), recipe=to_plain(alone), results=None, plan=None, sha256=None)
    folder = RunFolder.claim(run.path / FOLDER, identity, kept.plain)
    if folder.done:
        return Run(folder.path)
    target = chosen_device(device)
    bundle = Bundle.load(run.path)
    model = bundle.network(run.path).to(target)
    load_weights(weights, model)
    if record.kept_stage == number:  # the run's own network, which has scored these rows
        scores = {part: run.scores(part)[0].reshape(-1, task.num_labels) for part in task.parts}
    else:
        scores = bundle.scores(model, task, target, made=run.stage_scores.get(number))
    save_weights(folder.model_path, model)
    write_run_scores(folder.path, task, scores)
    folder.write_rows("history.csv", [row for row in run.history if int(row["stage"]) <= number])
    replace(bundle, **fitted_on_validation(task, scores)).save(folder.path)
    return finished(folder, Results(auc=aucs_of(task, scores)))
