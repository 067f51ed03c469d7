"""How much a network keeps for its backward pass, counted again: the sizes by which runs are packed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from deepauc.models.build import ResNet20Spec, SmallCNNSpec, TimmSpec
from experiments.clinical.packs import _TIMM, _bytes_a_pixel

BATCH, SIDE = 8, 320  # of CheXpert: networks that do not pad keep less of small images


def bytes_a_pixel(spec):
    """Of all tensors that autograd saves of a batch in bfloat16, none of which has content."""
    model, kept = spec.build(in_channels=3, num_outputs=1).train(), {}

    def keep(tensor):
        if tensor.dim() and len(tensor) == BATCH:  # weights are kept once, whatever the batch
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FakeTensorMode(allow_non_fake_inputs=True), saved, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.empty(BATCH, 3, SIDE, SIDE))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / (BATCH * SIDE**2)


DEEP = [pytest.param(TimmSpec(name=name), id=name, marks=pytest.mark.slow) for name in _TIMM]


@pytest.mark.parametrize("spec", [ResNet20Spec(), SmallCNNSpec(), TimmSpec(name="tf_efficientnet_b0"), *DEEP])
def test_the_size_of_a_network(spec):
    known = _bytes_a_pixel(spec)
    if isinstance(spec, TimmSpec) and spec.name not in _TIMM:
        assert bytes_a_pixel(spec) < known  # what is said of networks that nobody has counted
    else:
        assert bytes_a_pixel(spec) == pytest.approx(known, rel=0.05)
