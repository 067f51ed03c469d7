"""A contrastive stage before the plan's two: where it comes, how long it is, what the others keep, that it trains."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task
from deepauc.objectives.contrastive import Contrastive
from deepauc.training.engine.loop import train
from deepauc.training.plan import first_stage as rule
from deepauc.training.plan.cost import multiply_adds
from deepauc.training.plan.decision import ASKED, Decision
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.length import BUDGET, BUDGET_MINUTES
from deepauc.training.plan.make import Plan, make_plan
from deepauc.training.plan.timing import RESERVE, Pace, fit_into
from deepauc.training.run.baseline import baseline_run
from deepauc.training.schedule import Cosine
from deepauc.training.tuning import pairs_to_try, tune
from experiments.planning.changes import planned
from experiments.search.recipe import VIEWS


def fingerprint(rows, rare, shape, *, unlabelled=0, labels=1):
    """`rare` positives of each label in train, and a validation part a fifth as large."""
    return Fingerprint(
        rows={"train": rows, "validation": rows // 5},
        positives={"train": (rare,) * labels, "validation": (rare // 5,) * labels},
        negatives={"train": (rows - rare,) * labels, "validation": ((rows - rare) // 5,) * labels},
        shape=shape,
        file_sizes={},
        groups=None,
        unlabelled=unlabelled,
    )


def said(plan, name="first stage"):
    (found,) = [decision for decision in plan.decisions if decision.name == name]
    return found


def first_of(plan):
    """The stage on views, or None."""
    views = [stage for stage in plan.recipe.stages if stage.on_views]
    assert views == list(plan.recipe.stages[: len(views)])
    assert len(plan.recipe.stages) - len(views) in (1, 2)
    return views[0] if views else None


C10 = fingerprint(25_253, 253, (32, 32, 3))
GREY = fingerprint(8000, 500, (28, 28, 1))
TINY = fingerprint(8000, 500, (12, 12, 1))


@pytest.mark.parametrize(
    ("data", "kind", "options", "epochs", "why"),
    [
        (C10, "cuda", {}, 300, ("few of a class", {"rarer": 253})),
        (
            C10,
            "cpu",
            {},
            None,
            ("no budget", {"fitting": 0, "needed": 50, "options": ("--minutes 113 --model small-cnn",)}),
        ),
        (C10, "cpu", {"minutes": 113.0, "model": "small-cnn"}, 100, ("few of a class", {"rarer": 253})),
        (
            C10,
            "cpu",
            {"minutes": 112.0, "model": "small-cnn"},
            None,
            ("no minutes", {"fitting": 49, "options": ("--minutes 113",)}),
        ),
        (C10, "cuda", {"epochs": 49}, None, ("few epochs", {"epochs": 49, "needed": 50})),
        (C10, "cuda", {"epochs": 60}, 60, ("few of a class", {})),
        (C10, "cuda", {"epochs": 60, "first_stage": "none"}, None, ("asked for", {})),
        (C10, "cpu", {"epochs": 2, "first_stage": "contrastive"}, 2, ("asked for", {})),
        (
            C10,
            "cpu",
            {"first_stage": "contrastive"},
            50,
            ("over budget", {"cost": pytest.approx(7.8e13, rel=0.01), "device": "CPU"}),
        ),
        (C10, "cpu", {"first_stage": "contrastive", "minutes": 3.0}, 100, ("asked for", {})),
        (GREY, "cuda", {}, 300, ("few of a class", {"rarer": 500})),
        (GREY, "cpu", {}, None, ("no budget", {"options": ("--minutes 34",)})),
        (GREY, "cpu", {"minutes": 34.0, "model": "small-cnn"}, 100, ("few of a class", {})),
        (GREY, "cpu", {"minutes": 136.0}, None, ("no minutes", {"options": ("--minutes 137", "--model small-cnn")})),
        (GREY, "cpu", {"minutes": 35.0}, 100, ("few of a class", {})),
        (GREY, "cpu", {"minutes": 137.0}, 100, ("few of a class", {})),
        (GREY, "cpu", {"minutes": 36.0, "model": "resnet20"}, None, ("no minutes", {"options": ("--minutes 137",)})),
        (TINY, "cpu", {"model": "resnet20"}, None, ("no budget", {"options": ("--minutes 26",)})),
        (TINY, "cpu", {"minutes": 26.0}, 100, ("few of a class", {})),
        (
            C10,
            "cpu",
            {"minutes": 60.0},
            None,
            ("no minutes", {"options": ("--minutes 113 --model small-cnn",)}),
        ),  # not with the smaller one either
        (fingerprint(546, 147, (28, 28, 1)), "cuda", {}, None, ("few images", {"images": 546})),
        (fingerprint(546, 147, (28, 28, 1), unlabelled=7454), "cuda", {}, 300, ("few of a class", {"images": 8000})),
        (fingerprint(25_253, 1000, (32, 32, 3)), "cuda", {}, 300, ("few of a class", {"rarer": 1000})),
        (fingerprint(25_253, 1001, (32, 32, 3)), "cuda", {}, None, ("class is large", {"rarer": 1001})),
        (fingerprint(25_253, 25_000, (32, 32, 3)), "cuda", {}, 300, ("few of a class", {"rarer": 253})),  # of negatives
        (fingerprint(9000, 200, (96, 96, 3)), "cuda", {}, None, ("large images", {"side": 96})),
        (fingerprint(30_000, 600, (224, 224, 3)), "cuda", {"first_stage": "none"}, None, ("asked for", {})),
        (
            fingerprint(20_000, 500, (14, 14, 1)),
            "cpu",
            {},
            59,
            ("few of a class", {"rarer": 500}),
        ),  # small enough for a CPU
    ],
)
def test_where_it_comes_and_why(data, kind, options, epochs, why):
    plan = make_plan(data, PlanOptions(**options), kind)
    stage = first_of(plan)
    assert (None if stage is None else stage.epochs) == epochs
    key, facts = why
    assert key in said(plan).reason
    assert facts.items() <= said(plan).rests_on.items()
    if "epochs" in options or "minutes" in options:
        assert "over budget" not in said(plan).reason  # there is nothing left to cut, or it is cut
    assert said(plan).value == ("none" if stage is None else "contrastive")
    assert [decision.name for decision in plan.decisions].count("views") == (stage is not None)
    asked = options.get("first_stage") is not None
    assert plan.first_stage_may_go == (stage is not None and not asked)
    if stage is None and not asked:
        assert said(plan).reason[-1] == "anyway"
    # the other two are what they are without it, and so is the network
    alone = make_plan(data, PlanOptions(**{**options, "first_stage": "none"}), kind)
    assert plan.recipe.stages[stage is not None :] == alone.recipe.stages
    assert plan.recipe.model == alone.recipe.model
    assert said(alone) == Decision(name="first stage", value="none", reason=ASKED)


@pytest.mark.parametrize("side", [8, 10, 12, 16])
@pytest.mark.parametrize("rows", [8000, 9999, 20_000])
def test_it_takes_what_the_others_leave_of_the_budget(rows, side):
    data = fingerprint(rows, 90, (side, side, 1))
    plan = make_plan(data, PlanOptions(), "cpu")
    *before, first, second = plan.recipe.stages
    an_image = 3 * multiply_adds(plan.recipe.model, data.shape)
    quota = second.positives_per_batch
    assert first.positives_per_batch == quota
    passes = first.epochs * ((rows - 90) // (first.batch_size - quota)) * first.batch_size
    passes += second.epochs * ((rows - 90) // (second.batch_size - quota)) * second.batch_size
    batch = 16
    while 2 * batch <= min(256, rows / 10):
        batch *= 2
    seen = rows // batch * batch  # the tail of an epoch is dropped
    fitting = int((BUDGET["cpu"] - passes * an_image) / (2 * seen * an_image))
    expected = [] if fitting < 50 else [min(fitting, 100)]
    assert [stage.epochs for stage in before] == expected
    for stage in before:
        assert stage.batch_size == batch
        assert said(plan, "epochs").rests_on["first_steps"] == stage.epochs * (rows // batch)
        assert said(plan, "epochs").value == (stage.epochs, first.epochs, second.epochs)


def test_the_minutes_that_are_named_are_the_fewest_that_allow_it():
    """By the reckoning of multiply-adds; the clock has the last word (test below)."""
    for rows, side in ((8000, 28), (9000, 32), (30_000, 64)):
        data = fingerprint(rows, 300, (side, side, 3))
        plan = make_plan(data, PlanOptions(), "cpu")
        words = said(plan).rests_on["options"][0].split()
        assert words[0] == "--minutes"
        named, model = int(words[1]), words[3] if "--model" in words else None
        for minutes, comes in ((named, True), (named - 1, False)):
            found = make_plan(data, PlanOptions(minutes=float(minutes), model=model or "small-cnn"), "cpu")
            assert (first_of(found) is not None) == comes
        if model is None:
            assert first_of(make_plan(data, PlanOptions(minutes=float(named)), "cpu")) is not None
    assert BUDGET_MINUTES == 10


def test_the_stage_is_the_measured_one_but_for_the_mirror():
    stage = first_of(make_plan(C10, PlanOptions(), "cuda"))
    assert stage.objective == Contrastive(temperature=0.2)
    assert (stage.batch_size, stage.optimizer.lr, stage.precision) == (512, 0.5, "bfloat16")
    assert stage.schedule == Cosine(warmup=300 * (25_253 // 512) // 10)
    assert stage.augment == replace(VIEWS, flip=False)
    grey = first_of(make_plan(fingerprint(5000, 500, (28, 28, 1)), PlanOptions(first_stage="contrastive"), "cuda"))
    assert grey.batch_size == 256  # ten steps an epoch
    assert (grey.augment.saturation, grey.augment.hue, grey.augment.greyscale, grey.augment.flip) == (0, 0, 0, False)
    assert grey.optimizer.lr == 0.25
    for on in ("breast", "ham"):  # the views of the study that is to judge this
        studied = planned(on=on, change="contrastive first, 50 epochs").stages[0]
        assert studied.augment == (rule.GREY_VIEWS if on == "breast" else rule.COLOUR_VIEWS)
        assert (studied.objective, studied.projection) == (grey.objective, grey.projection)


@pytest.mark.parametrize(
    ("rows", "side", "kind", "asked", "batch"),
    [
        (25_253, 32, "cuda", None, 512),
        (25_253, 32, "cpu", None, 256),
        (25_253, 96, "cuda", None, 128),  # of 128 x 96 x 96 pixels
        (25_253, 224, "cuda", None, 32),
        (25_253, 32, "cuda", 100, 100),
        (200, 8, "cpu", None, 16),
        (20, 8, "cpu", None, 16),
        (9, 1, "cpu", None, 9),
        (9, 8, "cpu", 64, 9),
    ],
)
def test_batches(rows, side, kind, asked, batch):
    options = PlanOptions(first_stage="contrastive", batch_size=asked, model="small-cnn")
    stage = first_of(make_plan(fingerprint(rows, 4, (side, side, 1)), options, kind))
    assert stage.batch_size == batch
    assert stage.optimizer.lr == pytest.approx(0.5 * batch / 512)


def test_numbers_have_no_views():
    plan = make_plan(fingerprint(25_000, 250, (30,)), PlanOptions(), "cuda")
    assert first_of(plan) is None
    assert "first stage" not in [decision.name for decision in plan.decisions]
    with pytest.raises(ValueError, match="for numbers leave first_stage out"):
        make_plan(fingerprint(25_000, 250, (30,)), PlanOptions(first_stage="contrastive"), "cuda")


def test_the_option_has_three_words():
    with pytest.raises(ValueError, match="first_stage must be one of auto, none, contrastive, not 'simclr'"):
        PlanOptions(first_stage="simclr")


# The clock

PACE = Pace(step=(0.5, 0.1, 0.2), end=(0.0, 0.0, 0.0), row=0.0, per_epoch=(10, 30, 20), device="cpu")


def chosen_by_the_plan(task):
    plan = make_plan(Fingerprint.of(task), PlanOptions(minutes=1.0, first_stage="contrastive"), "cpu")
    return Plan(recipe=plan.recipe, decisions=plan.decisions, first_stage_may_go=True)


def test_minutes_first_go_to_the_others_and_more_never_give_less(image_task):
    plan = chosen_by_the_plan(image_task)
    wanted = [stage.epochs for stage in plan.recipe.stages]
    assert wanted[0] == 100
    beside = wanted[1] * 30 * 0.1 + wanted[2] * 20 * 0.2
    needed = (beside + 50 * 10 * 0.5) / 60 / (1 - RESERVE)
    whole = (beside + 100 * 10 * 0.5) / 60 / (1 - RESERVE)
    found = []
    for minutes in np.linspace(1, whole + 1, 40):
        fitted = fit_into(plan, image_task, PACE, minutes=minutes)
        epochs = [stage.epochs for stage in fitted.recipe.stages]
        found.append([0] * (3 - len(epochs)) + epochs)
        assert said(fitted, "epochs").value == tuple(epochs)
        if minutes < needed:
            assert len(epochs) == 2
            assert said(fitted).value == "none"
            assert (said(fitted).reason[0], said(fitted).rests_on["takes"]) == ("no time", math.ceil(needed))
            assert "views" not in [decision.name for decision in fitted.decisions]
        else:
            assert epochs[1:] == wanted[1:]  # whole
            assert 50 <= epochs[0] <= 100
            assert 5.0 * epochs[0] + beside <= 60 * minutes * (1 - RESERVE) < 5.0 * (epochs[0] + 1) + beside or (
                epochs[0] == 100
            )
            assert fitted.recipe.stages[0].schedule.warmup == int(
                plan.recipe.stages[0].schedule.warmup * epochs[0] / 100
            )
    assert all(a <= b for first, second in pairwise(found) for a, b in zip(first, second, strict=True))
    assert found[-1] == wanted
    assert min(count for count, *_ in found if count) < 60


def test_one_that_was_asked_for_is_cut_like_the_others(image_task):
    plan = replace(chosen_by_the_plan(image_task), first_stage_may_go=False)
    fitted = fit_into(plan, image_task, PACE, minutes=2)
    assert 1 <= fitted.recipe.stages[0].epochs < 50
    assert said(fitted, "epochs").rests_on["pace"] == (0.5, 0.1, 0.2)


# Training


@pytest.fixture
def colour_task(image_task):
    images = np.repeat(image_task.source(np.arange(160)), 3, axis=3)
    return Task(
        name="colour",
        kind="binary",
        source=ArrayInputs(images),
        labels=image_task.labels,
        label_names=("spot",),
        parts=image_task.parts,
    )


@pytest.mark.parametrize("name", ["image_task", "multilabel_task", "colour_task"])
def test_three_stages_train_and_rows_without_a_label_join(name, request, tmp_path):
    task = request.getfixturevalue(name)
    labels = task.labels.copy()
    labels[:6] = np.nan
    task = task.with_labels(labels)
    data = Fingerprint.of(task)
    assert data.unlabelled == 6
    plan = make_plan(data, PlanOptions(epochs=2, first_stage="contrastive", model="small-cnn"), "cpu")
    assert said(plan, "epochs").value == (2, 2, 2)
    run = train(plan.recipe, task, seed=0, run_dir=tmp_path / "run")
    assert [row["stage"] for row in run.history] == ["0", "0", "1", "1", "2", "2"]
    assert (run.history[0]["rows"], run.history[0]["unlabelled_rows"]) == ("96", "6")
    assert not run.history[0]["validation_auc"]
    assert set(run.record.plain["results"]["guard"]["validation_auc"]) == {"1", "2"}
    baseline = baseline_run(run, task)
    assert [stage["objective"]["type"] for stage in baseline.record.plain["recipe"]["stages"]] == [
        "Contrastive",
        "CrossEntropy",
    ]
    alone = train(
        replace(plan.recipe, stages=plan.recipe.stages[:2], guard=False), task, seed=0, run_dir=tmp_path / "two"
    )
    assert (baseline.path / "scores.csv").read_bytes() == (alone.path / "scores.csv").read_bytes()
    assert baseline.record.plain["identity"] == alone.record.plain["identity"]
    assert [row["stage"] for row in baseline.history] == ["0", "0", "1", "1"]


def test_tuning_trains_the_first_two_once(image_task, tmp_path):
    recipe = make_plan(
        Fingerprint.of(image_task), PlanOptions(epochs=1, first_stage="contrastive", model="small-cnn"), "cpu"
    ).recipe
    trials = tune(recipe, image_task, pairs=pairs_to_try(recipe, 2), seed=0, folder=tmp_path)
    assert len(trials) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "before"]


@pytest.mark.parametrize("side", [1, 2, 5])
def test_tiny_images(side, image_task, tmp_path):
    images = image_task.source(np.arange(160))[:, :side, :side]
    task = replace(image_task, source=ArrayInputs(np.ascontiguousarray(images)))
    options = PlanOptions(epochs=1, first_stage="contrastive", model="small-cnn")
    recipe = make_plan(Fingerprint.of(task), options, "cpu").recipe
    assert train(recipe, task, seed=0, run_dir=tmp_path / "run").auc("test")
