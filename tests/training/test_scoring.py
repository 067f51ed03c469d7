"""How many rows pass the network at once."""

import numpy as np
import pytest
import torch

from deepauc.data.task import ArrayInputs, Task
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.scoring import score_rows

CPU = torch.device("cpu")


class Brightness(torch.nn.Module):
    """The mean of an image, or of a row of features; notes how many came at once."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, inputs):
        self.seen.append(len(inputs))
        return inputs.flatten(1).mean(1, keepdim=True)


@pytest.mark.parametrize(("shape", "batches"), [((28, 28, 1), [70]), ((128, 128, 1), [32, 32, 6]), ((20_000,), [70])])
def test_large_images_pass_in_small_batches_on_a_cpu(shape, batches):
    inputs = np.random.default_rng(0).integers(0, 256, (70, *shape)).astype(np.uint8 if len(shape) == 3 else np.float32)
    labels = np.arange(70) % 2
    task = Task(name="t", kind="binary", source=ArrayInputs(inputs), labels=labels, label_names=("y",),
                parts={"train": np.arange(70)})  # fmt: skip
    network = Brightness()
    scores = score_rows(network, task, np.arange(70), Preprocessing.none(task), CPU)
    assert network.seen == batches
    wanted = inputs.reshape(70, -1).mean(1) / (255 if len(shape) == 3 else 1)
    np.testing.assert_allclose(scores[:, 0], wanted, rtol=1e-5)
