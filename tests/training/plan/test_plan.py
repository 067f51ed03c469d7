"""The plan: pure, reasoned, within its budget, and fit to train on whatever it is given."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.samplers import ClassQuotaSampler
from deepauc.models.build import MLPSpec, ResNet20Spec, SmallCNNSpec, TimmSpec, build_model
from deepauc.training.engine.loop import train
from deepauc.training.plain import recipe_hash
from deepauc.training.plan import make as plan_module
from deepauc.training.plan.cost import TRAINING_FACTOR, multiply_adds
from deepauc.training.plan.decision import ASKED
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.length import BUDGET, LEAST_EPOCHS, MOST_EPOCHS, budget_of
from deepauc.training.plan.make import ENOUGH_TO_SELECT, make_plan
from deepauc.training.plan.network import named_model, planned_size
from deepauc.training.plan.wording import told


def fingerprint(*, rows=4708, positives=(1214,), shape=(28, 28, 1), validation=(135, 389), sizes=None):
    parts = {"train": rows} | ({} if validation is None else {"validation": sum(validation)})
    return Fingerprint(
        rows=parts,
        positives={"train": positives}
        | ({} if validation is None else {"validation": (validation[0],) * len(positives)}),
        negatives={"train": tuple(rows - p for p in positives)}
        | ({} if validation is None else {"validation": (validation[1],) * len(positives)}),
        shape=shape,
        file_sizes=sizes or {},
        groups=None,
    )


def decision(plan, name):
    (found,) = [c for c in plan.decisions if c.name == name]
    return found


@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(28, 28, 1), (64, 48, 3), (30,)])
def test_same_inputs_same_plan_whatever_the_clock_and_the_generators_say(shape, device_kind, monkeypatch):
    options = PlanOptions()
    first = make_plan(fingerprint(shape=shape), options, device_kind)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    monkeypatch.setattr("time.perf_counter", lambda: 1e9)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    state = torch.get_rng_state()
    second = make_plan(fingerprint(shape=shape), options, device_kind)
    assert first == second
    assert recipe_hash(first.recipe) == recipe_hash(second.recipe)
    assert torch.equal(state, torch.get_rng_state())


def test_every_decision_has_a_reason_in_words_and_a_name_of_its_own():
    for shape, rows, positives in (((28, 28, 1), 500, (20,)), ((200, 200, 3), 9000, (90, 3000)), ((12,), 300, (30,))):
        found = make_plan(fingerprint(shape=shape, rows=rows, positives=positives), PlanOptions(), "cpu").decisions
        names = [c.name for c in found]
        assert len(set(names)) == len(names)
        for one in map(told, found):  # every fact that a sentence names is there
            assert one.value
            assert re.fullmatch(r"[A-Z0-9-].*\.", one.reason)
            assert not re.search(r"[{}]|results/", one.reason)
        assert {"network", "batch size", "positives per batch", "epochs", "stages"} <= set(names)
        assert ({"margin", "gamma"} <= set(names)) == (shape[0] != 200)  # which take too long for an AUC stage
        assert ("augmentation" in names) == (len(shape) == 3)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    rows=st.integers(8, 200_000),
    share=st.floats(0.001, 0.99),
    labels=st.integers(1, 3),
    side=st.sampled_from([8, 28, 64]),
    images=st.booleans(),
)
def test_the_quota_can_be_drawn_and_the_budget_holds(rows, share, labels, side, images):
    positives = tuple(min(rows - 1, max(1, round(rows * share) + i)) for i in range(labels))
    shape = (side, side, 1) if images else (20,)
    plan = make_plan(fingerprint(rows=rows, positives=positives, shape=shape), PlanOptions(), "cpu")
    before = [stage for stage in plan.recipe.stages if stage.on_views]
    supervised = plan.recipe.stages[len(before) :]
    few = labels == 1 and positives[0] / rows < plan_module.LEAST_POSITIVES
    first, cost = supervised[0], 0.0
    for stage in supervised:
        quota = stage.positives_per_batch
        assert stage.batch_size == first.batch_size <= rows
        if stage is first and not few:
            assert quota is None
            cost += stage.epochs * (rows // stage.batch_size)
            continue
        assert 1 <= quota < stage.batch_size
        assert quota <= min(positives)  # none twice in a batch
        cost += stage.epochs * sum((rows - p) // (stage.batch_size - quota) for p in positives)
        if rows <= 3000:  # the sampler itself has the last word
            labels_of = np.zeros((rows, labels))
            for i, p in enumerate(positives):
                labels_of[:p, i] = 1
            assert len(ClassQuotaSampler(labels_of, stage.batch_size, quota)) >= 1
    cost *= TRAINING_FACTOR * first.batch_size * multiply_adds(plan.recipe.model, shape)
    assert cost <= BUDGET["cpu"] * 1.001 or [stage.epochs for stage in supervised] == [LEAST_EPOCHS]
    for stage in before:  # it takes what the others leave, and images alone have one
        views = 2 * stage.epochs * (rows // stage.batch_size) * stage.batch_size
        assert cost + TRAINING_FACTOR * views * multiply_adds(plan.recipe.model, shape) <= BUDGET["cpu"] * 1.001
    for stage, most in zip(supervised, MOST_EPOCHS, strict=False):
        assert LEAST_EPOCHS <= stage.epochs <= most
    assert plan.recipe.guard == (len(supervised) == 2)


def test_rare_positives_get_a_quota_above_their_share_in_both_stages():
    def quotas(positives, auc_stage="always"):
        plan = make_plan(fingerprint(rows=10_000, positives=positives), PlanOptions(auc_stage=auc_stage), "cpu")
        return [stage.positives_per_batch for stage in plan.recipe.stages], decision(plan, "positives per batch")

    assert plan_module.LEAST_POSITIVES == 1 / 4
    found, said = quotas((100,))
    assert found == [16, 16]
    assert (said.value, said.rests_on["batch"], said.rests_on["where"]) == (16, 64, "both stages")
    assert said.reason == ("share", "too few")
    assert (said.rests_on["share"], said.rests_on["plain"]) == (0.01, 0.64)
    assert quotas((2499,))[0] == [16, 16]
    found, said = quotas((3000,))
    assert found == [None, 19]  # as they come, and the same share in every batch
    assert (said.value, said.rests_on["where"], said.reason[1]) == (19, "the AUC stage", "same in each")
    assert quotas((9000,))[0] == [None, 56]
    assert quotas((3,))[0] == [3, 3]
    found, said = quotas((100, 3000))  # cross-entropy of several labels sees the rows as they come
    assert found == [None, 16]
    assert said.rests_on["where"] == "the AUC stage"
    found, said = quotas((100,), "none")
    assert (found, said.value, said.rests_on["where"]) == ([16], 16, "every batch")
    found, said = quotas((3000,), "none")
    assert (found, said.value, said.reason) == ([None], None, ("as they come",))
    assert said.rests_on["share"] == 0.3


def test_a_quota_in_cross_entropy_is_paid_for_by_fewer_epochs():
    plain = make_plan(fingerprint(rows=10_000, positives=(2500,)), PlanOptions(), "cpu").recipe.stages
    few = make_plan(fingerprint(rows=10_000, positives=(100,)), PlanOptions(), "cpu").recipe.stages
    assert few[0].epochs < plain[0].epochs


def test_the_auc_stage_has_what_cross_entropy_leaves_of_the_budget():
    def epochs(rows, device_kind="cpu", **options):
        plan = make_plan(fingerprint(rows=rows, positives=(rows // 10,)), PlanOptions(**options), device_kind)
        return [stage.epochs for stage in plan.recipe.stages], decision(plan, "stages"), decision(plan, "epochs").value

    small, large = 500, 25_000
    found, said, _ = epochs(small)
    assert found == [*MOST_EPOCHS]  # all they are to have
    assert said.value == ("cross-entropy", "AUC-M")
    found, said, shown = epochs(large)
    assert len(found) == 1
    assert shown == tuple(found)
    assert (said.value, said.reason) == (("cross-entropy",), ("no budget", "shared is worse", "more time"))
    shared, _, shown = epochs(large, auc_stage="always")
    assert shared[0] < found[0]
    assert shown == tuple(shared)
    assert epochs(large, "cuda")[0][-1] > LEAST_EPOCHS  # where the budget is no bound
    alone, said, _ = epochs(small, auc_stage="none")
    assert MOST_EPOCHS[0] < alone[0] <= sum(MOST_EPOCHS)  # as long as both
    assert (said.value, said.reason) == (("cross-entropy",), ASKED)
    assert epochs(large, epochs=2)[0] == [2, 2]
    assert epochs(large, epochs=2, auc_stage="none")[0] == [2]


def test_networks_by_device_and_size():
    def model(shape, kind):
        return make_plan(fingerprint(shape=shape), PlanOptions(), kind).recipe.model

    assert isinstance(model((28, 28, 1), "cpu"), SmallCNNSpec)
    few = fingerprint(rows=546, positives=(147,))
    assert isinstance(make_plan(few, PlanOptions(), "cpu").recipe.model, ResNet20Spec)
    assert isinstance(make_plan(few, PlanOptions(epochs=900), "cpu").recipe.model, ResNet20Spec)
    assert isinstance(make_plan(replace(few, shape=(96, 96, 1)), PlanOptions(), "cpu").recipe.model, SmallCNNSpec)
    assert isinstance(model((28, 28, 1), "cuda"), ResNet20Spec)
    assert model((224, 224, 3), "cuda") == TimmSpec(name="densenet121")
    assert isinstance(model((9,), "cuda"), MLPSpec)


def test_the_network_can_be_named_and_the_wrong_kind_is_refused():
    asked = make_plan(fingerprint(), PlanOptions(model="resnet20", epochs=2, batch_size=16), "cpu")
    assert isinstance(asked.recipe.model, ResNet20Spec)
    assert [s.epochs for s in asked.recipe.stages] == [2, 2]
    assert [s.batch_size for s in asked.recipe.stages] == [16, 16]
    assert all(decision(asked, name).reason == ASKED for name in ("network", "epochs", "batch size"))
    with pytest.raises(ValueError, match="mlp is for tables of numbers"):
        named_model("mlp", (28, 28, 1))
    with pytest.raises(ValueError, match="table of numbers is mlp"):
        named_model("resnet20", (9,))
    with pytest.raises(ValueError, match="Did you mean densenet121"):
        make_plan(fingerprint(), PlanOptions(model="densnet121"), "cpu")


def test_an_epoch_is_selected_only_where_validation_can_tell():
    assert (
        make_plan(fingerprint(validation=(ENOUGH_TO_SELECT, 500)), PlanOptions(), "cpu").recipe.stages[0].keep == "best"
    )
    few = make_plan(fingerprint(validation=(ENOUGH_TO_SELECT - 1, 500)), PlanOptions(), "cpu")
    assert {s.keep for s in few.recipe.stages} == {"last"}
    assert decision(few, "selection").reason == ("few", "guard")
    assert decision(few, "selection").rests_on == {"fewest": ENOUGH_TO_SELECT - 1}
    assert few.recipe.guard
    none = make_plan(fingerprint(validation=None), PlanOptions(), "cpu")
    assert not none.recipe.guard
    assert {s.keep for s in none.recipe.stages} == {"last"}


def test_scores_are_bounded_before_the_auc_loss_and_no_image_is_mirrored():
    stages = make_plan(fingerprint(), PlanOptions(), "cpu").recipe.stages
    assert stages[1].resolved_bound == "sigmoid"
    assert not any(s.augment.flip or s.augment.vertical_flip for s in stages)
    assert stages[1].reset_classifier


@pytest.mark.parametrize(
    ("sizes", "kind", "wanted"),
    [
        ({(28, 28): 9}, "cpu", (28, 28)),
        ({(1024, 1024): 9}, "cpu", (64, 64)),
        ({(1024, 512): 9}, "cuda", (224, 112)),
        ({(10, 40): 1, (20, 30): 1, (30, 20): 1}, "cpu", (20, 30)),
        ({(50, 60): 5, (600, 800): 2}, "cpu", (50, 60)),
        ({}, "cpu", None),
    ],
)
def test_the_image_size_is_the_median_within_reach(sizes, kind, wanted):
    assert planned_size(sizes, kind) == wanted


def test_the_reason_for_a_size_says_where_it_comes_from():
    def found(shape, sizes):
        plan = make_plan(fingerprint(shape=(*shape, 1), sizes=sizes), PlanOptions(), "cpu")
        return decision(plan, "image size")

    assert found((28, 28), {(28, 28): 5}).reason == ("files",)
    assert found((32, 32), {(512, 512): 5}).reason == ASKED
    assert found((20, 30), {(10, 40): 1, (20, 30): 1, (30, 20): 1}).reason == ("median",)
    shrunk = found((64, 64), {(512, 512): 5})
    assert (shrunk.value, shrunk.reason) == ((64, 64), ("shrunk",))
    assert shrunk.rests_on == {"sizes": 1, "common": (512, 512), "count": 5, "device": "CPU", "most": 64}


@pytest.mark.parametrize(("side", "pixels"), [((1, 1), 0), ((1, 8), 0), ((2, 2), 1), ((28, 28), 2), ((224, 300), 16)])
def test_no_shift_takes_an_image_out_of_the_picture(side, pixels):
    plan = make_plan(fingerprint(shape=(*side, 1)), PlanOptions(), "cpu")
    assert {stage.augment.crop_padding for stage in plan.recipe.stages} == {pixels}


def test_a_network_that_the_images_are_too_small_for_is_refused_by_the_plan():
    with pytest.raises(ValueError, match="The smallest images it takes are 29 x 29"):
        make_plan(fingerprint(), PlanOptions(model="densenet121"), "cpu")


def test_a_label_with_one_class_is_refused():
    with pytest.raises(ValueError, match="one class only"):
        make_plan(fingerprint(positives=(1214, 0)), PlanOptions(), "cpu")


def test_multiply_adds_of_a_network_counted_by_hand():
    assert multiply_adds(MLPSpec(hidden=(4, 3)), (5,)) == 5 * 4 + 4 * 3 + 3
    by_hand = 8 * 8 * 9 * 1 * 2 + 4 * 4 * 9 * 2 * 4 + 4
    assert multiply_adds(SmallCNNSpec(widths=(2, 4)), (8, 8, 1)) == by_hand


def test_the_smallest_images_and_the_largest_widths_build():
    for side in (1, 2, 9, 33, 224):
        build_model(
            named_model("small-cnn", (side, side, 1)), in_channels=1, num_outputs=1, seed=0, input_shape=(1, side, side)
        )


def test_fingerprint_of_a_task_and_a_plan_that_trains(image_task, tmp_path):
    labels = image_task.labels.copy()
    labels[:5] = np.nan
    task = image_task.with_labels(labels)
    found = Fingerprint.of(task)
    assert found.rows == {"train": 91, "validation": 32, "test": 32}
    train_labels = labels[5:96]
    assert found.positives["train"] == (int(train_labels.sum()),)
    assert found.negatives["train"] == (int((train_labels == 0).sum()),)
    assert found.groups == 80
    plan = make_plan(found, PlanOptions(epochs=1), "cpu")
    run = train(plan.recipe, task, seed=0, run_dir=tmp_path / "run", notes={"plan": {"why": "because"}})
    assert run.record.plain["plan"] == {"why": "because"}
    assert run.auc("test")


def test_a_plan_for_several_labels_trains(multilabel_task, tmp_path):
    plan = make_plan(Fingerprint.of(multilabel_task), PlanOptions(epochs=1), "cpu")
    assert decision(plan, "positives per batch").reason[0] == "rarest share"
    run = train(plan.recipe, multilabel_task, seed=0, run_dir=tmp_path / "run")
    assert set(run.auc("test")) == {"spot", "coin"}


def test_options_are_checked():
    for bad in ({"epochs": 0}, {"batch_size": 1}):
        with pytest.raises(ValueError, match="at least"):
            PlanOptions(**bad)
    for name in ("first_stage", "auc_stage"):
        with pytest.raises(ValueError, match=f"{name} must be one of auto, "):
            PlanOptions(**{name: "sometimes"})
    assert replace(PlanOptions(), epochs=3).epochs == 3


@pytest.mark.parametrize("minutes", [None, 5])
def test_copies_are_made_where_they_are_asked_for(minutes):
    for tta, number in ((None, 0), (0, 0), (8, 8)):
        plan = make_plan(fingerprint(), PlanOptions(tta=tta, minutes=minutes), "cpu")
        assert plan.recipe.tta == number
        found = decision(plan, "test-time augmentation")
        assert (found.value, found.reason) == (number, ("slower",) if tta is None else ASKED)
        assert plan.without_auc is None or plan.without_auc.recipe.tta == number
    numbers = make_plan(fingerprint(shape=(30,)), PlanOptions(tta=0), "cpu")
    assert "test-time augmentation" not in {one.name for one in numbers.decisions}
    with pytest.raises(ValueError, match="these inputs are numbers: leave it out"):
        make_plan(fingerprint(shape=(30,)), PlanOptions(tta=8), "cpu")
    with pytest.raises(ValueError, match="tta must be at least 0, not -1"):
        PlanOptions(tta=-1)
    with pytest.raises(ValueError, match="1 to 1000 copies"):
        make_plan(fingerprint(), PlanOptions(tta=5000), "cpu")


def test_folds_share_a_budget_on_a_cpu():
    """Half an hour of a busy core in all; what minutes say is shared out by the caller."""
    large = fingerprint(rows=6000, positives=(1500,), shape=(32, 32, 3))

    def cost(kind, folds):
        plan = make_plan(large, PlanOptions(auc_stage="always", model="small-cnn"), kind, folds=folds)
        return sum(stage.epochs for stage in plan.recipe.stages)

    one = cost("cpu", 1)
    assert cost("cpu", 2) == cost("cpu", 4) == one
    assert one / 2 - 2 <= cost("cpu", 9) <= one / 2 + 1 < one
    assert cost("cuda", 9) == cost("cuda", 1)
    assert budget_of(10, "cpu", folds=5) == budget_of(10, "cpu")
