"""Small tasks that train in a moment: a bright spot to be found, by image, by feature, by label."""

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task


def spots(n=160, share=0.3, seed=0, size=8):
    generator = np.random.default_rng(seed)
    labels = (generator.random(n) < share).astype(np.float32)
    images = generator.integers(0, 120, (n, size, size, 1)).astype(np.uint8)
    images[:, 2:5, 2:5] += (70 * labels).astype(np.uint8)[:, None, None, None]
    return images, labels


@pytest.fixture
def image_task():
    images, labels = spots()
    parts = {"train": np.arange(96), "validation": np.arange(96, 128), "test": np.arange(128, 160)}
    return Task(
        name="spots",
        kind="binary",
        source=ArrayInputs(images),
        labels=labels,
        label_names=("spot",),
        parts=parts,
        groups=np.array([f"p{i // 2}" for i in range(160)]),
        metadata={
            "age": np.where(labels == 1, 60.0, 50.0) + np.random.default_rng(1).normal(0, 8, 160),
            "sex": np.array(["f", "m"] * 80),
        },
    )


@pytest.fixture
def multilabel_task(image_task):
    generator = np.random.default_rng(2)
    second = (generator.random(160) < 0.4).astype(np.float32)
    labels = np.stack([image_task.labels, second], 1)
    labels[5, 0] = labels[7, 1] = np.nan
    return Task(
        name="two",
        kind="multilabel",
        source=image_task.source,
        labels=labels,
        label_names=("spot", "coin"),
        parts=image_task.parts,
    )
