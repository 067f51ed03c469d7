"""A plan cut to the minutes one is willing to wait: monotone, never without an epoch, said what was cut."""

import math
import re
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training import test_time as copies
from deepauc.training.engine import loop
from deepauc.training.plan import timing
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.make import Plan, make_plan
from deepauc.training.plan.timing import RESERVE, TIMED, WARM_UP, Pace, fit_into, measure_pace, seconds_of, with_copies
from deepauc.training.plan.wording import told
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run import run
from deepauc.training.run.folder import surroundings
from deepauc.training.schedule import Constant, Cosine, Steps
from deepauc.training.tuning import pairs_to_try, tune

VIEWS = Stage(
    objective=Contrastive(),
    optimizer=SGDSpec(lr=0.1),
    epochs=40,
    batch_size=16,
    views=2,
    augment=Augment(crop_padding=1),
    schedule=Cosine(warmup=80),
)


def planned(task, **options):
    return make_plan(Fingerprint.of(task), PlanOptions(minutes=1.0, model="small-cnn", **options), "cpu")


def three_stages(task):
    """A plan with a first stage on views."""
    plan = planned(task)
    recipe = Recipe(model=SmallCNNSpec(widths=(4,)), stages=(VIEWS, *plan.recipe.stages))
    return Plan(recipe=recipe, decisions=plan.decisions)


def epochs(plan):
    return [stage.epochs for stage in plan.recipe.stages]


PACE = Pace(step=(0.5, 0.1, 0.2), end=(0.05, 0.3, 0.4), row=0.01, per_epoch=(6, 6, 5), device="cpu")


def brute_force(task, counts, tune):
    """Seconds, written out. Tuning scores what comes before the pairs once, and each pair, without the test part."""
    first, second, third = counts
    before = 2 if tune else 1
    total = before * (first * (6 * 0.5 + 0.05) + second * (6 * 0.1 + 0.3)) + (1 + tune) * third * (5 * 0.2 + 0.4)
    train, validation, test = (len(task.labelled(part)) for part in ("train", "validation", "test"))
    return total + 0.01 * (train + validation + test) + ((1 + tune) * 0.01 * (train + validation) if tune else 0)


@pytest.mark.parametrize("tune", [0, 3])
def test_seconds_are_steps_looks_and_the_last_scores(image_task, tune):
    plan = three_stages(image_task)
    expected = brute_force(image_task, epochs(plan), tune)
    assert seconds_of(plan.recipe, image_task, PACE, tune=tune) == pytest.approx(expected)


@settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the task is only read
@given(st.floats(0.5, 30), st.floats(0, 10), st.integers(0, 3))
def test_it_ends_in_time_and_more_minutes_never_give_fewer_epochs(image_task, minutes, more, tune):
    plan = three_stages(image_task)
    least = brute_force(image_task, (1, 1, 1), tune) / 60 / (1 - RESERVE)
    minutes = max(minutes, least + 1e-6)
    short, long = (fit_into(plan, image_task, PACE, minutes=m, tune=tune) for m in (minutes, minutes + more))
    assert all(1 <= a <= b <= c for a, b, c in zip(epochs(short), epochs(long), epochs(plan), strict=True))
    for fitted, limit in ((short, minutes), (long, minutes + more)):
        assert brute_force(image_task, epochs(fitted), tune) <= 60 * limit * (1 - RESERVE) + 1e-6
        if epochs(fitted) != epochs(plan):  # nothing is left lying about: the next larger share would not have fitted
            share = min((n + 1) / whole for n, whole in zip(epochs(fitted), epochs(plan), strict=True))
            larger = [max(1, int(whole * share + 1e-9)) for whole in epochs(plan)]
            assert brute_force(image_task, larger, tune) > 60 * limit * (1 - RESERVE)


def test_what_was_cut_is_said_and_schedules_shrink_with_it(image_task):
    plan = three_stages(image_task)
    short = fit_into(plan, image_task, PACE, minutes=1.5)
    first, second, last = short.recipe.stages
    assert first.schedule == Cosine(warmup=int(80 * first.epochs / 40))
    assert second.schedule == plan.recipe.stages[1].schedule
    whole = plan.recipe.stages[2]
    assert last.schedule == Steps(
        milestones=tuple(sorted({int(m * last.epochs / whole.epochs) for m in whole.schedule.milestones} - {0}))
    )
    (said,) = [decision for decision in short.decisions if decision.name == "epochs"]
    uncut = brute_force(image_task, epochs(plan), 0)
    assert (said.value, said.reason) == (tuple(epochs(short)), ("in time", "cut"))
    assert (said.rests_on["minutes"], said.rests_on["wanted"]) == (1.5, tuple(epochs(plan)))
    assert said.rests_on["whole"] == pytest.approx(uncut)
    assert said.rests_on["allow"] == math.ceil(uncut / 60 / (1 - RESERVE))
    assert f"would take about {uncut / 60:.1f} min" in told(said).reason
    enough = fit_into(plan, image_task, PACE, minutes=uncut / 60 / (1 - RESERVE) + 0.01)
    assert enough.recipe == plan.recipe
    assert next(one.reason for one in enough.decisions if one.name == "epochs") == ("in time",)


def test_minutes_first_go_to_cross_entropy_and_the_auc_stage_has_what_is_left(image_task):
    pace = replace(PACE, step=(0.1, 0.2), end=(0.3, 0.4), per_epoch=(6, 5), row=0.0)
    plan = planned(image_task)
    wanted = epochs(plan)
    whole = (wanted[0] * 0.9 + wanted[1] * 1.4) / 60 / (1 - RESERVE)
    enough = (wanted[0] * 0.9 + 3 * 1.4) / 60 / (1 - RESERVE)
    found = []
    for minutes in [0.05 + step * whole / 40 for step in range(42)]:
        fitted = fit_into(plan, image_task, pace, minutes=minutes)
        found.append([*epochs(fitted), 0][:2])
        (stages,) = [decision for decision in fitted.decisions if decision.name == "stages"]
        names = {decision.name for decision in fitted.decisions}
        if minutes < enough:
            assert len(fitted.recipe.stages) == 1
            assert not fitted.recipe.guard
            assert stages.value == ("cross-entropy",)
            assert stages.reason == ("no time", "shared is worse", "always")
            assert not {"margin", "gamma"} & names
        else:
            assert epochs(fitted)[0] == wanted[0]
            assert epochs(fitted)[1] >= 3
            assert fitted.recipe.guard
            assert {"margin", "gamma"} <= names
    assert all(a <= b for first, second in pairwise(found) for a, b in zip(first, second, strict=True))
    assert found[-1] == wanted
    assert epochs(fit_into(plan, image_task, pace, minutes=enough + 1e-6)) == [wanted[0], 3]
    shared = fit_into(planned(image_task, auc_stage="always"), image_task, pace, minutes=enough / 2)
    assert len(shared.recipe.stages) == 2  # cut by the same share
    assert shared.recipe.stages[0].epochs < wanted[0] / 2
    pace = replace(pace, step=(0.1,), end=(0.3,), per_epoch=(6,))
    alone = fit_into(planned(image_task, auc_stage="none"), image_task, pace, minutes=whole)
    assert epochs(alone)[0] > wanted[0]


def test_not_even_one_epoch_is_an_error_that_names_the_remedy(image_task):
    plan = three_stages(image_task)
    with pytest.raises(ValueError, match=r"0\.05 minutes are not enough.*Allow 0\.\d minutes.*smaller image size"):
        fit_into(plan, image_task, PACE, minutes=0.05)
    with pytest.raises(ValueError, match="stages: 1 and 3"):
        fit_into(plan, image_task, replace(PACE, step=(1.0,)), minutes=1)


@pytest.mark.parametrize(("minutes", "stages"), [(0.4, 1), (3.0, 2)])
def test_times_that_are_told_are_of_all_folds_together(image_task, minutes, stages):
    plan = planned(image_task)
    pace = replace(PACE, step=PACE.step[1:], end=PACE.end[1:], per_epoch=PACE.per_epoch[1:])
    alone, shared = (fit_into(plan, image_task, pace, minutes=n * minutes, folds=n) for n in (1, 5))
    assert shared.recipe == alone.recipe
    one, all_five = ({d.name: d.rests_on for d in fitted.decisions} for fitted in (alone, shared))
    assert all_five["epochs"]["minutes"] == 5 * minutes
    assert all_five["epochs"]["takes"] == pytest.approx(5 * one["epochs"]["takes"])
    assert all_five["epochs"]["folds"] == 5
    assert len(alone.recipe.stages) == stages
    if stages == 1:  # the AUC stage is left out, and what it would take is told
        assert all_five["stages"]["minutes"] == 5 * minutes
        assert all_five["stages"]["takes"] > 5 * minutes


def test_a_share_of_the_minutes_is_told_as_the_whole(image_task):
    plan = three_stages(image_task)
    whole, shared = (fit_into(plan, image_task, PACE, minutes=m, share=share) for m, share in ((1.8, 1.0), (2.0, 0.9)))
    assert shared.recipe == whole.recipe
    told_whole, told_shared = (
        next(one.rests_on for one in fitted.decisions if one.name == "epochs") for fitted in (whole, shared)
    )
    assert told_shared["minutes"] == 2.0
    assert told_shared["takes"] == told_whole["takes"]
    enough = fit_into(plan, image_task, PACE, minutes=told_shared["allow"], share=0.9)
    assert enough.recipe == plan.recipe


def test_the_minutes_that_a_refusal_names_are_enough_for_all_folds(image_task):
    with pytest.raises(ValueError, match=r"0\.1 minutes are not enough: one epoch of each stage in 5 folds") as refused:
        fit_into(three_stages(image_task), image_task, PACE, minutes=0.1, folds=5)
    (allow,) = re.findall(r"Allow ([\d.]+) minutes", str(refused.value))
    fitted = fit_into(three_stages(image_task), image_task, PACE, minutes=float(allow), folds=5)
    assert all(epochs(fitted))


def test_copies_are_bought_where_nothing_is_cut_and_the_minutes_last(image_task):
    plan = planned(image_task)
    pace = replace(PACE, step=PACE.step[1:], end=PACE.end[1:], per_epoch=PACE.per_epoch[1:], copy=0.02)
    wanted = replace(plan.recipe, tta=8)
    enough = 3 * seconds_of(wanted, image_task, pace) / 60 / (1 - RESERVE)

    def bought(plan, pace=pace, *, minutes=enough + 1e-6, networks=3):
        return with_copies(plan, image_task, pace, minutes=minutes, networks=networks).recipe

    assert bought(plan) == wanted
    assert bought(plan, minutes=enough - 1e-3) == bought(plan, networks=4) == plan.recipe
    assert bought(plan, replace(pace, copy=0.0)) == plan.recipe  # of a run from before they were timed
    for asked in (0, 4):
        own = planned(image_task, tta=asked)
        assert bought(own) == own.recipe
    cut = fit_into(plan, image_task, pace, minutes=enough / 9)
    assert bought(cut, minutes=1000) == cut.recipe
    assert bought(plan, PACE, minutes=1000) == plan.recipe  # timed with a stage that is not there any more


def test_a_measured_pace_is_that_of_the_steps(image_task, monkeypatch):
    """A clock that only the steps and the scoring move."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    step, score = loop.backward_whole_batch, timing.score_rows

    def slow_step(*arguments):
        now[0] += 2.0
        return step(*arguments)

    def slow_score(model, task, rows, *arguments, **options):
        now[0] += 0.5 * len(rows)
        return score(model, task, rows, *arguments, **options)

    monkeypatch.setattr(loop, "backward_whole_batch", slow_step)
    monkeypatch.setattr(timing, "score_rows", slow_score)
    monkeypatch.setattr(copies, "score_rows", slow_score)
    recipe = three_stages(image_task).recipe
    state = torch.get_rng_state()
    pace = measure_pace(recipe, image_task, seed=0, device=torch.device("cpu"))
    assert pace.step == pytest.approx((2.0, 2.0, 2.0))
    assert pace.row == pytest.approx(0.5)
    assert pace.end == pytest.approx((0.0, *[0.5 * len(image_task.labelled("validation"))] * 2))
    rows = len(image_task.labelled("train"))
    assert pace.per_epoch[0] == rows // 16
    assert Pace(**asdict(pace)) == pace
    assert torch.equal(torch.get_rng_state(), state)


SHIFTED = Augment(crop_padding=2)


def two_stages(**options):
    ce = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16, augment=SHIFTED)
    auc = Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=3, batch_size=16, augment=SHIFTED)
    return Recipe(model=SmallCNNSpec(widths=(4,)), stages=(ce, auc), **options)


@pytest.mark.parametrize("tune_pairs", [0, 2])
@pytest.mark.parametrize("options", [{}, {"tta": 5}, {"guard": True}, {"guard": True, "tta": 5}], ids=str)
def test_what_training_takes_is_what_was_said_with_copies_too(image_task, tmp_path, monkeypatch, options, tune_pairs):
    """A clock that a step moves by 2, a plain row by .5 and a copy, which is changed before, by .7."""
    now, step, score = [0.0], loop.backward_whole_batch, timing.score_rows
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])

    def slow_step(*arguments):
        now[0] += 2.0
        return step(*arguments)

    def slow_score(model, task, rows, *arguments, augment=None, **more):
        now[0] += (0.5 if augment is None else 0.7) * len(rows)
        return score(model, task, rows, *arguments, augment=augment, **more)

    monkeypatch.setattr(loop, "backward_whole_batch", slow_step)
    monkeypatch.setattr(timing, "score_rows", slow_score)
    monkeypatch.setattr(copies, "score_rows", slow_score)
    aucs = iter([0.5, 0.6])  # the last stage's first: the one before it is kept, which takes longest
    monkeypatch.setattr(run, "mean_auc", lambda _: next(aucs))
    recipe = two_stages(**options)
    pace = measure_pace(recipe, image_task, seed=0, device=torch.device("cpu"))
    assert (pace.row, pace.copy) == (pytest.approx(0.5), pytest.approx(0.7))
    began = now[0]
    if tune_pairs:
        pairs = pairs_to_try(recipe, tune_pairs)
        tune(recipe, image_task, pairs=pairs, seed=0, folder=tmp_path / "tuning", device="cpu")
    done = loop.train(recipe, image_task, seed=0, run_dir=tmp_path / "run", device="cpu")
    assert done.record.plain["results"].get("guard", {}).get("winner", 0) == 0
    assert now[0] - began == pytest.approx(seconds_of(recipe, image_task, pace, tune=tune_pairs))


def test_the_fast_engine_is_timed_too(image_task, monkeypatch):
    """On a CPU its steps are not captured, but run by the same code; a clock that ticks once a step."""
    now, replay = [0.0], timing.FastEngine._replay

    def tick(engine, *step):
        now[0] += 3.0
        replay(engine, *step)

    monkeypatch.setattr(timing, "_is_fast", lambda _: True)
    monkeypatch.setattr(timing.FastEngine, "_replay", tick)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    pace = measure_pace(three_stages(image_task).recipe, image_task, seed=0, device=torch.device("cpu"))
    assert pace.step == pytest.approx((3.0, 3.0, 3.0))
    steps = WARM_UP + TIMED
    assert now[0] == 3.0 * sum(min(steps, per_epoch) for per_epoch in pace.per_epoch)


def test_minutes_choose_the_network_too_but_never_with_epochs():
    with pytest.raises(ValueError, match="give one of them"):
        PlanOptions(minutes=3, epochs=2)
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="minutes must be positive"):
            PlanOptions(minutes=bad)
    many = Fingerprint(
        rows={"train": 4000, "validation": 800}, positives={"train": (400,), "validation": (80,)},
        negatives={"train": (3600,), "validation": (720,)}, shape=(32, 32, 3), file_sizes={}, groups=None,
    )  # fmt: skip
    names = [
        next(c.value for c in make_plan(many, PlanOptions(minutes=m), "cpu").decisions if c.name == "network")
        for m in (0.5, 5, 600)
    ]
    assert names[-1] == "resnet20"
    assert names[0] == "small-cnn"
    assert timing._scaled(Constant(), 0.5) == Constant()


@pytest.mark.parametrize(("device", "waits"), [("cpu", []), ("mps", ["mps"]), ("cuda:1", ["cuda:1"])])
def test_a_clock_waits_for_whatever_works_beside_the_host(monkeypatch, device, waits):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: waited.append(str(device)))
    timing._wait_for(torch.device(device))
    assert waited == waits


def test_the_record_names_what_a_run_was_trained_on():
    assert "CPU" in surroundings(torch.device("cpu"))["hardware"]
    assert surroundings(torch.device("mps"))["hardware"].endswith(", mps")
