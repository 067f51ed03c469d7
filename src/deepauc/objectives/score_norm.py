"""Batch score normalisation: the batch's scores are brought to a fixed size before an AUC loss, in training only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepauc.labels import require_plain_tensor


def unit_norm(scores: Tensor) -> Tensor:
    """h / ||h||_2 over the batch, per label; 0 with zero gradient for a batch of zeros.

    scores (N,) or (N, L). Half-precision scores come out in float32. The largest score is divided out first, so squares
    neither overflow nor vanish; a batch whose scores are all below the smallest normal number counts as zeros.
    """
    if not torch.compiler.is_compiling():
        require_plain_tensor("scores", scores)
    if scores.ndim not in (1, 2) or not scores.is_floating_point():
        raise ValueError(
            f"scores of shape {tuple(scores.shape)} and type {scores.dtype} cannot be normalised: "
            "give floating ones of shape (N,), or (N, L) for L labels."
        )
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if scores.shape[0] == 0:
        return scores
    # The result does not depend on the scale, so its gradient through the scale is 0 and may be left out.
    scale = scores.detach().abs().amax(0)
    scaled = scores / torch.where(scale < torch.finfo(scores.dtype).tiny, torch.inf, scale)
    # The sum is at least 1, since one of the scaled scores is +-1: only a batch of zeros meets the clamp.
    return scaled / scaled.square().sum(0).clamp(min=0.5).sqrt()


class BatchScoreNorm(nn.Module):
    """h / ||h||_2 over the batch and per label in training mode (the paper's section 4.1), the identity in eval mode.

    Scores (N,) or (N, L); the norm is over all scores of the batch, those with a missing label too. At inference it
    would make one patient's score depend on the others in the batch, hence the identity.

    A margin meets a limit here: with n+ positives and n- negatives in a batch of unit norm the class means cannot be
    further apart than sqrt(1/n+ + 1/n-), 0.29 for 13 of 128. A larger margin is never reached.
    """

    def forward(self, scores: Tensor) -> Tensor:
        return unit_norm(scores) if self.training else scores


class BatchScoreRMSNorm(nn.Module):
    """h / sqrt(mean h^2) over the batch and per label in training mode, the identity in eval mode.

    `BatchScoreNorm` times sqrt(N): whatever the batch size, the scores' root mean square is 1. It is taken about 0, not
    about the mean, and equals the standard deviation where the scores are centred. A margin is thus read in units of
    the scores' spread: margin 1 asks the classes to be one root mean square apart. The class means can be as far apart
    as sqrt(1/q + 1/(1 - q)) at a share q of positives: 2 for balanced batches, 10 at 1 %.
    """

    def forward(self, scores: Tensor) -> Tensor:
        return unit_norm(scores) * scores.shape[0] ** 0.5 if self.training else scores
