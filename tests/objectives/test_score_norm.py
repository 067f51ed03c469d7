"""Batch score normalisation: the paper's L2 form and the root-mean-square form."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from deepauc.objectives.score_norm import BatchScoreNorm, BatchScoreRMSNorm

NORMS = [BatchScoreNorm, BatchScoreRMSNorm]


def size(n: int, norm: type[nn.Module]) -> float:
    """The L2 norm a normalised batch of n must have."""
    return 1.0 if norm is BatchScoreNorm else math.sqrt(n)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(7,), (7, 3)])
def test_each_label_is_divided_by_its_own_norm(norm, shape):
    scores = torch.randn(shape, dtype=torch.float64)
    expected = scores / scores.norm(dim=0) * size(7, norm)
    torch.testing.assert_close(norm()(scores), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_eval_mode_is_the_identity(norm):
    scores = torch.randn(5).half()
    assert norm().eval()(scores) is scores


def test_rms_norm_has_unit_root_mean_square():
    out = BatchScoreRMSNorm()(torch.randn(64, 2) * 40 + 3)
    torch.testing.assert_close(out.square().mean(0).sqrt(), torch.ones(2))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(1,), (6,), (6, 2)])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_gradcheck(norm, shape, scale):
    scores = (torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: norm()(s * scale), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: norm()(s * scale), (scores,))


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_of_zeros_gives_zeros_and_a_zero_gradient(norm):
    scores = torch.zeros(4, 2)
    scores[:, 1] = torch.arange(4.0)  # the other label is not disturbed
    scores.requires_grad_()
    out = norm()(scores)
    (out * torch.tensor([[1.0], [-2.0], [0.5], [3.0]])).sum().backward()
    assert (out[:, 0] == 0).all()
    assert (scores.grad[:, 0] == 0).all()
    assert scores.grad.isfinite().all()
    assert scores.grad[:, 1].abs().max() > 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e30, 3e38, 1e-30, 2e-38])
def test_huge_and_tiny_scores(norm, scale):
    pattern = torch.tensor([1.0, -0.5, 0.25, 0.0])
    scores = (pattern * scale).requires_grad_()
    out = norm()(scores)
    out[0].backward()
    torch.testing.assert_close(out, norm()(pattern))
    assert scores.grad.isfinite().all()
    reference = pattern.double().requires_grad_()
    norm()(reference)[0].backward()
    torch.testing.assert_close(scores.grad.double() * scale, reference.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_subnormal_scores_count_as_zeros(norm):
    scores = torch.tensor([1e-40, -1e-41], requires_grad=True)
    out = norm()(scores)
    out.sum().backward()
    assert (out == 0).all()
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("norm", NORMS)
def test_one_sample_keeps_only_its_sign(norm):
    scores = torch.tensor([-3.0], requires_grad=True)
    out = norm()(scores)
    out.sum().backward()
    assert out.tolist() == [-1.0]
    assert scores.grad.tolist() == [0.0]


@pytest.mark.parametrize("norm", NORMS)
def test_an_empty_batch_stays_empty(norm):
    assert norm()(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_score_is_never_hidden(norm, bad):
    assert norm()(torch.tensor([1.0, bad, 2.0])).isnan().any()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_normalised_in_float32(norm, dtype):
    scores = (torch.randn(300) * 30).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm()(scores)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, norm()(scores.double()).float())


@pytest.mark.parametrize("norm", NORMS)
def test_bad_shapes_and_types_are_refused(norm):
    for scores in (torch.zeros(2, 2, 2), torch.zeros(3, dtype=torch.long), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="cannot be normalised"):
            norm()(scores)


finite_scores = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40)


@settings(derandomize=True, deadline=None)
@given(finite_scores, st.floats(1e-20, 1e20), st.sampled_from(NORMS))
def test_scale_does_not_matter(values, factor, norm):
    scores = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(norm()(scores * factor), norm()(scores), rtol=1e-12, atol=1e-12)


@settings(derandomize=True, deadline=None)
@given(finite_scores, st.integers(1, 39))
def test_class_means_are_never_further_apart_than_the_reach(values, positives):
    assume(positives < len(values))
    scores = BatchScoreNorm()(torch.tensor(values, dtype=torch.float64))
    gap = (scores[:positives].mean() - scores[positives:].mean()).abs().item()
    negatives = len(values) - positives
    assert gap <= math.sqrt(1 / positives + 1 / negatives) * (1 + 1e-12)
    share = positives / len(values)
    assert gap * math.sqrt(len(values)) <= math.sqrt(1 / share + 1 / (1 - share)) * (1 + 1e-12)


@pytest.mark.parametrize(("positives", "reach"), [(1, 1.0), (13, 0.29)])
def test_the_reach_is_attained_by_two_constant_classes(positives, reach):
    """Spec: 1.0 with one positive in 128, .29 with 13."""
    negatives = 128 - positives
    scores = torch.full((128,), -1.0 / negatives, dtype=torch.float64)
    scores[:positives] = 1.0 / positives
    out = BatchScoreNorm()(scores)
    gap = (out[:positives].mean() - out[positives:].mean()).item()
    assert gap == pytest.approx(math.sqrt(1 / positives + 1 / negatives), rel=1e-12)
    assert gap == pytest.approx(reach, abs=0.01)
