"""The engine: a run folder, resumed to the bit wherever it was stopped; two stages; guards and bad ends."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.metrics.recalibration import recalibration_from_dict
from deepauc.models.build import MLPSpec, SmallCNNSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.training.engine import loop, trainer
from deepauc.training.engine.loop import train
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.interrupt import TrainingStopped, fitting_batch, stopped_at
from deepauc.training.schedule import Cosine, Cyclic, Steps
from tests.training.watched import Killed, ctrl_c_at, killed_at_checkpoint

MODEL = SmallCNNSpec(widths=(4, 8))


def ce(**options):
    return Stage(
        **{"objective": CrossEntropy(), "optimizer": SGDSpec(lr=0.05), "epochs": 2, "batch_size": 16, **options}
    )


def auc(**options):
    defaults = {"objective": AUCMargin(), "optimizer": PESGSpec(lr=0.1), "epochs": 3, "batch_size": 16}
    return Stage(**{**defaults, "positives_per_batch": 4, "reset_classifier": True, **options})


def two_stage(**options):
    second = auc(schedule=Steps(milestones=(2,)), augment=Augment(crop_padding=1), ema=0.9, gradient_clip=5.0)
    return Recipe(model=MODEL, stages=(ce(), second), **options)


def files(run):
    return {p.name: p.read_bytes() for p in sorted(run.path.iterdir()) if p.name != "run.json"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"objective": Focal()}, "PESG needs an AUC objective with a, b and alpha, not Focal"),
        ({"objective": AUCMargin(margin=(0.5, 1.0))}, "margin has 2 values for 1 labels"),
        ({"objective": CrossEntropy(), "optimizer": PDSCASpec()}, "PDSCA needs an AUC objective"),
    ],
)
def test_a_stage_that_cannot_begin_is_refused_before_the_first_one(image_task, tmp_path, second, message):
    recipe = Recipe(model=MODEL, stages=(ce(), auc(**second)))
    with pytest.raises(ValueError, match=message):
        train(recipe, image_task, seed=0, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_leaves_its_folder_and_learns(image_task, tmp_path):
    recipe = Recipe(model=MODEL, stages=(ce(epochs=15), auc(epochs=15)), test_curve=True, alpha_curve=True)
    run = train(recipe, image_task, seed=0, run_dir=tmp_path / "run")
    assert {p.name for p in run.path.iterdir()} == {
        *("run.json", "history.csv", "scores.csv", "model.safetensors", "bundle.json", "DONE"),
        *("test_curve.csv", "alpha.csv"),
    }
    assert run.auc("test")["spot"].value > 0.9
    assert run.auc("test")["spot"].low < run.auc("test")["spot"].value
    scores, labels = run.scores("validation")
    assert (labels == image_task.labels[96:128]).all()
    assert scores.min() < 0  # raw output, not the bounded scores of training
    with (run.path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "part", "group", "label", "score"]
    assert len(rows) == 160
    last = run.history[-1]
    assert {"A_M", "gap", "a", "b", "alpha", "alpha_zero_share", "validation_auc", "validation_low"} <= set(last)
    record = run.record.plain
    assert record["recipe"]["stages"][1]["objective"]["type"] == "AUCMargin"
    assert {"commit", "numerics", "versions", "hardware", "identity"} <= set(record)
    assert record["identity"]["data"] == image_task.data_hash()
    bundle = Bundle.load(run.path)
    negatives = scores[labels == 0]
    assert (negatives < bundle.thresholds["spot"]["specificity 0.9"]).mean() >= 0.9
    probability = recalibration_from_dict(bundle.calibration["spot"]).apply(scores)
    assert probability.mean() == pytest.approx(labels.mean(), abs=0.05)


def test_same_seed_same_run_and_another_seed_another(image_task, tmp_path):
    one, two = (train(two_stage(), image_task, seed=1, run_dir=tmp_path / n) for n in "ab")
    assert files(one) == files(two)
    other = train(two_stage(), image_task, seed=2, run_dir=tmp_path / "c")
    assert files(other)["scores.csv"] != files(one)["scores.csv"]


@pytest.mark.parametrize("moment", range(1, 6))
def test_killed_at_any_checkpoint_it_resumes_to_the_bit(image_task, tmp_path, moment):
    whole = train(two_stage(), image_task, seed=1, run_dir=tmp_path / "whole")
    with pytest.raises(Killed), killed_at_checkpoint(moment):
        train(two_stage(), image_task, seed=1, run_dir=tmp_path / "killed")
    assert not (tmp_path / "killed" / "DONE").exists()
    resumed = train(two_stage(), image_task, seed=1, run_dir=tmp_path / "killed")
    assert files(resumed) == files(whole)


def test_what_was_begun_on_a_gpu_can_be_finished_on_a_cpu(image_task, tmp_path, monkeypatch):
    """A GPU's checkpoint has its engine's options in the optimizer's groups, the learning rate as a tensor."""
    recipe = Recipe(model=MODEL, stages=(ce(optimizer=AdamWSpec(lr=0.01)),))
    whole = train(recipe, image_task, seed=1, run_dir=tmp_path / "whole")
    save = trainer.save_state

    def save_as_a_gpu_does_then_die(path, state):
        for group in state["optimizer"]["param_groups"]:
            group |= {"capturable": True, "lr": torch.tensor(0.01)}
        save(path, state)
        raise Killed

    monkeypatch.setattr(trainer, "save_state", save_as_a_gpu_does_then_die)
    with pytest.raises(Killed):
        train(recipe, image_task, seed=1, run_dir=tmp_path / "begun")
    monkeypatch.setattr(trainer, "save_state", save)
    assert files(train(recipe, image_task, seed=1, run_dir=tmp_path / "begun")) == files(whole)


def test_ctrl_c_in_the_middle_of_an_epoch_saves_and_resumes_to_the_bit(image_task, tmp_path):
    whole = train(two_stage(), image_task, seed=1, run_dir=tmp_path / "whole")
    for wanted in (2, 9, 12, 17):  # inside epochs, and the last step of one
        folder = tmp_path / str(wanted)
        with pytest.raises(KeyboardInterrupt, match="the same command"):
            train(two_stage(), image_task, seed=1, run_dir=folder, progress=ctrl_c_at(wanted))
        assert (folder / "checkpoint.safetensors").exists()
        assert files(train(two_stage(), image_task, seed=1, run_dir=folder)) == files(whole)


def test_saving_on_the_way_changes_nothing(image_task, tmp_path, monkeypatch):
    whole = train(two_stage(), image_task, seed=1, run_dir=tmp_path / "a")
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", -1)
    assert files(train(two_stage(), image_task, seed=1, run_dir=tmp_path / "b")) == files(whole)


def test_a_finished_folder_is_returned_and_another_run_refused(image_task, tmp_path):
    run = train(two_stage(), image_task, seed=1, run_dir=tmp_path / "a")
    before = files(run)
    assert files(train(two_stage(), image_task, seed=1, run_dir=tmp_path / "a")) == before
    with pytest.raises(ValueError, match="different seed"):
        train(two_stage(), image_task, seed=2, run_dir=tmp_path / "a")
    with pytest.raises(ValueError, match="different recipe"):
        train(two_stage(guard=True), image_task, seed=1, run_dir=tmp_path / "a")
    flipped = image_task.with_labels(1 - image_task.labels)
    with pytest.raises(ValueError, match="different data"):
        train(two_stage(), flipped, seed=1, run_dir=tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty"):
        train(two_stage(), image_task, seed=1, run_dir=tmp_path / "mine")


def test_the_global_generator_is_left_alone(image_task, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(Recipe(model=MODEL, stages=(ce(epochs=1),)), image_task, seed=1, run_dir=tmp_path / "a")
    assert torch.equal(before, torch.get_rng_state())


def test_second_stage_starts_from_the_first_with_a_fresh_classifier(image_task, tmp_path, monkeypatch):
    seen = {}
    reset = trainer.reset_classifier

    def watch(model, *, seed):
        seen["before"] = {k: v.clone() for k, v in model.state_dict().items()}
        reset(model, seed=seed)
        seen["after"] = {k: v.clone() for k, v in model.state_dict().items()}

    monkeypatch.setattr(trainer, "reset_classifier", watch)
    train(two_stage(), image_task, seed=1, run_dir=tmp_path / "a")
    first = train(Recipe(model=MODEL, stages=(ce(),)), image_task, seed=1, run_dir=tmp_path / "b")
    from safetensors.torch import load_file

    alone = load_file(first.path / "model.safetensors")
    changed = [k for k in alone if not torch.equal(seen["before"][k], seen["after"][k])]
    assert all(torch.equal(alone[k], seen["before"][k]) for k in alone)
    assert sorted(k.rsplit(".", 1)[1] for k in changed) in (["bias", "weight"], ["weight"])


def test_a_stage_can_start_from_another_run(image_task, tmp_path):
    first = train(Recipe(model=MODEL, stages=(ce(epochs=8),)), image_task, seed=1, run_dir=tmp_path / "a")
    onwards = auc(epochs=1, reset_classifier=False, start_from=str(first.path), optimizer=PESGSpec(lr=1e-6))
    second = train(Recipe(model=MODEL, stages=(onwards,)), image_task, seed=9, run_dir=tmp_path / "b")
    both = np.corrcoef(second.scores("test")[0], first.scores("test")[0])[0, 1]
    assert both > 0.99  # the weights hardly move; only the statistics of batch normalisation do


def test_a_zero_reference_on_trained_weights_warns(image_task, tmp_path):
    zero = {"optimizer": PESGSpec(reference="zero"), "epochs": 1, "iterations": None, "reset_classifier": False}
    first = train(Recipe(model=MODEL, stages=(auc(**zero),)), image_task, seed=0, run_dir=tmp_path / "first")
    for name, stages in (
        ("later", (ce(epochs=1), auc(**zero))),
        ("from", (auc(**zero, start_from=str(first.path)),)),
    ):
        with pytest.warns(UserWarning, match="starts from trained weights, and reference='zero' pulls them towards 0"):
            train(Recipe(model=MODEL, stages=stages), image_task, seed=0, run_dir=tmp_path / name)


@pytest.mark.parametrize(
    ("objective", "optimizer", "options"),
    [
        (CrossEntropy(label_smoothing=0.1), AdamSpec(lr=1e-3), {"schedule": Cosine(warmup=3)}),
        (Focal(), AdamWSpec(), {"schedule": Cyclic(period=2), "precision": "bfloat16"}),
        (AUCSquare(), PESGSpec(), {"bound": "l2"}),
        (AUCMargin(margin=0.5), SGDSpec(momentum=0.0), {"bound": "rms"}),
        (PairwiseAUC(), SGDSpec(lr=0.01), {"bound": "none", "accumulate": 4}),
        (AUCMargin(soft_labels=True), PESGSpec(momentum=0.5), {"augment": Augment(mixup=0.4, crop_padding=1)}),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_every_objective_optimizer_and_schedule(
    image_task, multilabel_task, tmp_path, objective, optimizer, options, several
):
    stage = Stage(objective=objective, optimizer=optimizer, iterations=13, batch_size=16, **options)
    task = multilabel_task if several else image_task
    run = train(Recipe(model=MODEL, stages=(stage,)), task, seed=1, run_dir=tmp_path / "a")
    assert len(run.auc("test")) == task.num_labels
    assert run.history[-1]["iteration"] == "13"
    assert len(run.history) == 3  # six steps an epoch; the last is cut short
    assert np.isfinite(run.scores("test")[0]).all()


def test_features_instead_of_images(tmp_path):
    from deepauc.data.task import ArrayInputs, Task

    generator = np.random.default_rng(0)
    labels = (generator.random(200) < 0.3).astype(np.float32)
    features = generator.normal(size=(200, 5)).astype(np.float32) * 1000 + labels[:, None] * 1500
    parts = {"train": np.arange(150), "test": np.arange(150, 200)}
    task = Task(name="f", kind="binary", source=ArrayInputs(features), labels=labels, label_names=("y",), parts=parts)
    run = train(Recipe(model=MLPSpec(hidden=(8,)), stages=(auc(epochs=10, reset_classifier=False),)), task, seed=0,
                run_dir=tmp_path / "a")  # fmt: skip
    assert run.auc("test")["y"].value > 0.9


def test_numbers_have_no_augmentation(tmp_path):
    from deepauc.data.task import ArrayInputs, Task

    features = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    task = Task(name="f", kind="binary", source=ArrayInputs(features), labels=np.arange(40) % 3 == 0,
                label_names=("y",), parts={"train": np.arange(40)})  # fmt: skip
    recipe = Recipe(model=MLPSpec(hidden=(8,)), stages=(auc(reset_classifier=False, augment=Augment()),))
    with pytest.raises(ValueError, match="augment changes images, and this task has numbers"):
        train(recipe, task, seed=0, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_of_any_scale_are_standardised_and_constant_ones_left_alone():
    from deepauc.data.task import ArrayInputs, Task

    scales = np.array([1e-12, 1e-9, 1.0, 1e9])
    features = np.random.default_rng(0).normal(size=(200, 4)) * scales + 3 * scales
    features = np.hstack([features, np.zeros((200, 1)), np.full((200, 1), 0.1), np.full((200, 1), 1e-9)])
    labels = np.arange(200, dtype=np.float32) % 2
    task = Task(name="f", kind="binary", source=ArrayInputs(features), labels=labels, label_names=("y",),
                parts={"train": np.arange(200)})  # fmt: skip
    std = Preprocessing.of(task).std
    assert std[:4] == pytest.approx(features[:, :4].std(0), rel=1e-5)
    assert std[4:] == (1.0, 1.0, 1.0)


def test_early_stop_and_best_epoch(image_task, tmp_path):
    stage = ce(epochs=60, patience=3, keep="best", optimizer=SGDSpec(lr=0.05))
    run = train(Recipe(model=MODEL, stages=(stage,)), image_task, seed=1, run_dir=tmp_path / "a")
    aucs = [float(row["validation_auc"]) for row in run.history]
    assert len(aucs) < 60
    assert len(aucs) - 1 - aucs.index(max(aucs)) == 3
    assert run.auc("validation")["spot"].value == pytest.approx(max(aucs))


def test_guard_keeps_the_better_stage(image_task, tmp_path):
    ruined = auc(epochs=1, iterations=None, optimizer=PESGSpec(lr=1e-5), reset_classifier=True)
    recipe = Recipe(model=MODEL, stages=(ce(epochs=15), ruined), guard=True)
    run = train(recipe, image_task, seed=1, run_dir=tmp_path / "a")
    guard = run.record.plain["results"]["guard"]
    assert guard["winner"] == 0
    assert guard["validation_auc"]["0"] > guard["validation_auc"]["1"]
    assert guard["last_minus_stage"]["0"]["difference"] < 0
    assert run.auc("validation")["spot"].value == pytest.approx(guard["validation_auc"]["0"])
    alone = train(Recipe(model=MODEL, stages=(ce(epochs=15),)), image_task, seed=1, run_dir=tmp_path / "b")
    assert (run.scores("test")[0] == alone.scores("test")[0]).all()


@pytest.mark.parametrize("bound", ["sigmoid", "l2"])
@pytest.mark.parametrize("objective", [AUCMargin(margin=0.5), PairwiseAUC(), CrossEntropy()])
def test_accumulated_gradients_are_those_of_the_whole_batch(bound, objective):
    from deepauc.training.engine.step import Batch, backward_whole_batch

    torch.manual_seed(0)
    inputs = torch.randn(12, 6)
    labels = (torch.arange(12) < 4).float().unsqueeze(1)
    gradients = []
    for pieces in (1, 3):
        model = build_model(
            MLPSpec(hidden=(8,)), in_channels=6, num_outputs=1, seed=0
        )  # nothing works across the batch
        stage = ce(objective=objective, bound=bound, accumulate=pieces, batch_size=12)
        loss = objective.build(prior=(1 / 3,))
        value, scores = backward_whole_batch(model, Batch(inputs, labels), loss, stage)
        gradients.append([value, scores, *(p.grad for p in [*model.parameters(), *loss.parameters()])])
    for one, three in zip(*gradients, strict=True):
        torch.testing.assert_close(one, three)


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_rows(image_task, tmp_path):
    wild = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=1e6), epochs=3, batch_size=16, bound="none")
    with pytest.raises(TrainingStopped, match=r"stopped at step \d+.*sigmoid"):
        train(Recipe(model=MODEL, stages=(ce(epochs=1), wild)), image_task, seed=1, run_dir=tmp_path / "a")
    told = json.loads((tmp_path / "a" / "stopped.json").read_text())
    assert len(told["rows"]) == 16
    assert (tmp_path / "a" / "checkpoint.safetensors").exists()


MPS_OUT_OF_MEMORY = "MPS backend out of memory (MPS allocated: 9.0 GB). Tried to allocate 1 GB on private pool."


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(MPS_OUT_OF_MEMORY)])
def test_out_of_memory_names_a_batch_that_fits(image_task, tmp_path, monkeypatch, error):
    real = loop.backward_whole_batch

    def hungry(model, batch, *rest):
        if len(batch.inputs) > 5:
            raise error
        return real(model, batch, *rest)

    monkeypatch.setattr(loop, "backward_whole_batch", hungry)
    monkeypatch.setattr("deepauc.training.run.interrupt.fitting_batch", lambda model, inputs: 4)
    with pytest.raises(TrainingStopped, match="batch_size=4, or accumulate=4"):
        train(Recipe(model=MODEL, stages=(ce(),)), image_task, seed=1, run_dir=tmp_path / "a")


@pytest.mark.parametrize(("batch", "fits"), [(100, 12), (50, 6), (128, 5), (7, 3)])
def test_out_of_memory_names_pieces_that_a_stage_takes(monkeypatch, batch, fits):
    monkeypatch.setattr("deepauc.training.run.interrupt.fitting_batch", lambda model, inputs: fits)
    with (
        pytest.raises(TrainingStopped) as stopped,
        stopped_at(0, np.arange(batch), None, torch.nn.Linear(1, 1), torch.zeros(batch, 1)),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    named = re.search(r"batch_size=(\d+), or accumulate=(\d+)", str(stopped.value))
    assert int(named[1]) == fits
    stage = ce(batch_size=batch, accumulate=int(named[2]))
    assert stage.batch_size / stage.accumulate <= fits


def test_fitting_batch_is_found_by_trying():
    class Picky(torch.nn.Linear):
        def forward(self, x):
            if len(x) > 5:
                raise torch.OutOfMemoryError("too much")
            return super().forward(x)

    assert fitting_batch(Picky(3, 1), torch.zeros(40, 3)) == 5
    assert fitting_batch(Picky(3, 1), torch.zeros(1, 3)) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ce(epochs=None),
        lambda: ce(iterations=5),
        lambda: ce(batch_size=0),
        lambda: ce(bound="tanh"),
        lambda: ce(ema=1.0),
        lambda: ce(accumulate=3),
        lambda: ce(precision="float8"),
        lambda: ce(gradient_clip=0.0),
        lambda: auc(augment=Augment(mixup=0.2)),
        lambda: Recipe(model=MODEL, stages=()),
        lambda: Recipe(model=MODEL, stages=(ce(),), guard=True),
        lambda: replace(ce(), patience=0),
    ],
)
def test_bad_recipes_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_pesg_needs_an_auc_objective(image_task, tmp_path):
    with pytest.raises(ValueError, match="use SGD"):
        train(Recipe(model=MODEL, stages=(ce(optimizer=PESGSpec()),)), image_task, seed=0, run_dir=tmp_path / "a")


@pytest.mark.parametrize(("name", "asked"), [("keep='best'", {"keep": "best"}), ("patience", {"patience": 2})])
def test_what_goes_by_validation_needs_that_part(image_task, tmp_path, name, asked):
    alone = image_task.with_parts({"train": image_task.part("train")})
    with pytest.raises(ValueError, match=f"{name} goes by the validation AUC.*give it one"):
        train(Recipe(model=MODEL, stages=(ce(**asked),)), alone, seed=0, run_dir=tmp_path / "a", device="cpu")
    with pytest.raises(ValueError, match="guard goes by the validation AUC"):
        train(replace(two_stage(), guard=True), alone, seed=0, run_dir=tmp_path / "a", device="cpu")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("asked", [{"keep": "best"}, {"patience": 2}])
def test_choosing_by_a_validation_part_of_one_class_is_refused(image_task, tmp_path, asked):
    """Every epoch's AUC would be NaN, and the first epoch the best of them."""
    negatives = np.flatnonzero(image_task.labels == 0)[:10]
    others = np.setdiff1d(np.arange(len(image_task)), negatives)
    one_class = image_task.with_parts({"train": others, "validation": negatives})
    with pytest.raises(ValueError, match="no label of the task has positives and negatives in its validation part"):
        train(Recipe(model=MODEL, stages=(ce(**asked),)), one_class, seed=0, run_dir=tmp_path / "a", device="cpu")
    assert not (tmp_path / "a").exists()
    train(Recipe(model=MODEL, stages=(ce(),)), one_class, seed=0, run_dir=tmp_path / "a", device="cpu")  # none chosen
