"""Training, its baseline and its last stage: no network scores a part twice, and what is written is the same."""

import hashlib

import pytest

from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.reporting.evaluation.kept_stage import score_last_stage
from deepauc.training.engine.loop import train
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run import bundle
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.run import Run


def recipe(*, last_lr):
    """last_lr: 0 leaves the last stage's fresh classifier as it is, which is then not kept."""
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=6, batch_size=16)
    last = Stage(
        objective=AUCMargin(), optimizer=PESGSpec(lr=last_lr), epochs=3, batch_size=16, positives_per_batch=4,
        reset_classifier=last_lr == 0,
    )  # fmt: skip
    return Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(first, last), guard=True)


@pytest.fixture
def scored(monkeypatch):
    """(network, rows) of everything that is scored for good."""
    found = []

    def digest(model):
        return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()

    def by_trainer(trainer, part, *, final=False, scores=Trainer.scores):
        if final:
            found.append((digest(trainer.model), part))
        return scores(trainer, part, final=final)

    def by_bundle(model, task, rows, *rest, score=bundle.score_copies, **options):
        (part,) = (name for name in task.parts if task.labelled(name).tolist() == rows.tolist())
        found.append((digest(model), part))
        return score(model, task, rows, *rest, **options)

    monkeypatch.setattr(Trainer, "scores", by_trainer)
    monkeypatch.setattr(bundle, "score_copies", by_bundle)
    return found


def written(folder):
    paths = [folder / name / "scores.csv" for name in (".", "baseline", "last-stage")]
    return [path.read_bytes() if path.exists() else None for path in paths]


@pytest.mark.parametrize(("last_lr", "kept"), [(0, 0), (0.1, 1)])
def test_every_part_is_scored_once_by_every_network(image_task, tmp_path, scored, last_lr, kept):
    run = train(recipe(last_lr=last_lr), image_task, seed=0, run_dir=tmp_path / "run")
    assert run.record.kept_stage == kept
    assert baseline_run(run, image_task) is not None
    assert (score_last_stage(run, image_task) is None) == (kept == 1)
    assert len(scored) == len(set(scored)) == 2 * 3  # two networks, three parts
    made = written(run.path)
    for name in ("baseline", "last-stage"):  # as after a kill between training and its report
        for path in (run.path / name).glob("*"):
            path.unlink()
    again = Run(run.path)
    assert not again.stage_scores
    baseline_run(again, image_task)
    score_last_stage(again, image_task)
    assert written(run.path) == made
