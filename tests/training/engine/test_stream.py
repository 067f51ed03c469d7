"""Orders are tables of (seed, epoch), the prior is that of the stream."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.training.engine.stream import Stream
from deepauc.training.recipe import Stage


def stage(**options):
    return Stage(**{"objective": AUCMargin(), "optimizer": PESGSpec(), "epochs": 2, "batch_size": 16, **options})


def test_plain_order(image_task):
    stream = Stream(image_task, stage(), seed=3, number=0)
    first, again = stream.table(0), Stream(image_task, stage(), seed=3, number=0).table(0)
    assert first.shape == (6, 16)
    assert (first == again).all()
    assert (first != stream.table(1)).any()
    assert (first != Stream(image_task, stage(), seed=3, number=1).table(0)).any()
    assert sorted(first.ravel()) == list(range(96))
    assert stream.prior == pytest.approx((image_task.labels[:96].mean(),))


def test_an_epoch_drawn_ahead_is_the_same_epoch(image_task):
    options = stage(augment=Augment(), positives_per_batch=4)
    stream, fresh = (Stream(image_task, options, seed=3, number=0) for _ in range(2))
    stream.look_ahead(5)
    for epoch in (5, 4, 5, 6):
        rows, changes = stream.drawn(epoch)
        assert (rows == fresh.table(epoch)).all()
        assert torch.equal(changes, fresh.changes(epoch))


def test_images_are_not_moved_out_of_the_picture(image_task):
    side = min(image_task.source.shape[:2])
    Stream(image_task, stage(augment=Augment(crop_padding=side - 1)), seed=0, number=0)
    with pytest.raises(ValueError, match=f"out of the picture: set it to {side - 1} at most"):
        Stream(image_task, stage(augment=Augment(crop_padding=side)), seed=0, number=0)


def test_quota_and_its_prior(image_task):
    stream = Stream(image_task, stage(positives_per_batch=4), seed=3, number=0)
    for epoch in range(3):
        assert (image_task.labels[stream.table(epoch)].sum(1) == 4).all()
    assert stream.prior == pytest.approx((0.25,))


def test_weights_enter_the_prior(image_task):
    from dataclasses import replace

    weighted = replace(image_task, weights=np.where(image_task.labels == 1, 3.0, 1.0))
    labels = image_task.labels[:96]
    expected = 3 * labels.sum() / (3 * labels.sum() + (1 - labels).sum())
    assert Stream(weighted, stage(), seed=0, number=0).prior == pytest.approx((expected,))
    quota = Stream(weighted, stage(positives_per_batch=4), seed=0, number=0)
    assert quota.prior == pytest.approx((12 / 24,))


def test_uncertain_labels_need_a_policy(image_task):
    labels = image_task.labels.copy()
    labels[:10] = -1
    task = image_task.with_labels(labels)
    with pytest.raises(ValueError, match="uncertain"):
        Stream(task, stage(), seed=0, number=0)
    assert Stream(task, stage(uncertain="ignore"), seed=0, number=0).rows.min() == 10
    with pytest.raises(ValueError, match="soft_labels=True"):
        Stream(task, stage(uncertain="smooth_ones"), seed=0, number=0)
    smooth = stage(uncertain="smooth_ones", objective=AUCMargin(soft_labels=True))
    stream = Stream(task, smooth, seed=0, number=0)
    assert ((stream.labels[:10] > 0.5) & (stream.labels[:10] < 0.9)).all()
    assert stream.prior == pytest.approx((stream.labels[:96].mean(),))


def test_one_class_is_refused(image_task):
    with pytest.raises(ValueError, match=rf"no positive row of the label '{image_task.label_names[0]}'"):
        Stream(image_task.with_labels(np.zeros(160)), stage(objective=CrossEntropy()), seed=0, number=0)
    weightless = replace(image_task, weights=1 - image_task.labels.reshape(-1))
    with pytest.raises(ValueError, match="no positive row of a weight above 0 of the label"):
        Stream(weightless, stage(objective=CrossEntropy()), seed=0, number=0)


def test_batch_larger_than_the_part(image_task):
    assert Stream(image_task, stage(batch_size=1000), seed=0, number=0).table(0).shape == (1, 96)
