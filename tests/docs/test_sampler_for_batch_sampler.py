"""What LibAUC's `sampler=` does with our sampler: docs/libauc.md names every message that a user may then meet."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from deepauc import AUCMarginLoss, ClassQuotaSampler

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "libauc.md").read_text(encoding="utf-8").split())
LABELS = (torch.arange(1000) % 10 == 0).float()


def loader(dataset):
    return DataLoader(dataset, batch_size=128, sampler=ClassQuotaSampler(LABELS, 128, 12))


def message(call):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        call()
    return str(error.value)


def test_the_page_names_what_a_user_sees():
    features, targets = next(iter(loader(TensorDataset(torch.randn(1000, 4), LABELS))))
    assert features.shape == (7, 128, 4)
    network, loss_fn = torch.nn.Linear(4, 1), AUCMarginLoss(prior=0.1)
    images = torch.zeros(7, 128, 3, 32, 32)
    assert "`batch_sampler=`" in PAGE
    for said in (
        message(lambda: next(iter(loader(list(range(1000)))))),
        message(lambda: loss_fn(torch.sigmoid(network(features).squeeze(1)), targets)).rstrip("."),
        message(lambda: torch.nn.Conv2d(3, 1, 3)(images)),
    ):
        assert f"`{said}`" in PAGE


def test_a_whole_batch_a_look_up_is_no_mistake():
    """Why the sampler itself does not refuse: without a batch size this is PyTorch's way to ask for whole batches."""
    sampler = ClassQuotaSampler(LABELS, 128, 12)
    features, targets = next(iter(DataLoader(TensorDataset(LABELS[:, None], LABELS), batch_size=None, sampler=sampler)))
    assert features.shape == (128, 1)
    assert targets.sum() == 12
