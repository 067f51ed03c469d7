"""Rows without a label: counted as a stage on views sees them, and told with the reason for those left out."""

from dataclasses import replace

import numpy as np
import pytest

from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.stream import Stream
from deepauc.training.plan.unlabelled import count_unlabelled, unlabelled_decision
from deepauc.training.plan.wording import told
from deepauc.training.recipe import Recipe, Stage

SUPERVISED = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=1, batch_size=16)


def views(**options):
    return Stage(
        **{"objective": Contrastive(), "optimizer": SGDSpec(lr=0.1), "epochs": 1, "batch_size": 16, **options},
        views=2,
        augment=Augment(crop_padding=1),
    )


def recipe(*stages):
    return Recipe(model=SmallCNNSpec(widths=(4,)), stages=stages)


@pytest.fixture
def task(image_task):
    """Unlabelled: two rows of a patient in train, one whose patient is in test, one that is in no part."""
    labels, groups = image_task.labels.copy(), image_task.groups.copy()
    rows = image_task.part("train")
    lost = rows[[0, 1, 7, 9]]
    labels[lost] = np.nan
    groups[lost[:2]] = "alone"
    groups[lost[2]] = groups[image_task.part("test")[0]]
    groups[lost[3]] = "nobody else"
    changed = replace(image_task, labels=labels, groups=groups)
    return changed.with_parts({**changed.parts, "train": rows[rows != lost[3]]})


def test_counts_are_what_the_stage_sees(task):
    found = count_unlabelled(task, recipe(views(), SUPERVISED))
    assert (found.rows, found.may_join, found.of_held_out_patient, found.held_out, found.joined) == (4, 2, 1, 1, 2)
    assert found.joined == Stream(task, views(), seed=0, number=0).unlabelled
    decision = unlabelled_decision(found)
    assert (decision.value, decision.reason) == (2, ("learns", "held-out group", "held out"))
    assert told(decision).value.startswith("2 of 4 ")


@pytest.mark.parametrize(
    "stages",
    [(SUPERVISED,), (views(objective=SupervisedContrastive(), positives_per_batch=4), SUPERVISED)],
    ids=["supervised", "quota"],
)
def test_stages_that_need_labels_take_none(task, stages):
    found = count_unlabelled(task, recipe(*stages))
    assert (found.may_join, found.joined) == (2, 0)
    assert Stream(task, stages[0], seed=0, number=0).unlabelled == 0
    decision = unlabelled_decision(found)
    assert (decision.value, decision.reason[0], decision.rests_on["may_join"]) == (0, "no stage", 2)


def test_nothing_is_said_where_every_row_has_a_label(image_task):
    found = count_unlabelled(image_task, recipe(views(), SUPERVISED))
    assert found.rows == 0
    assert unlabelled_decision(found) is None
