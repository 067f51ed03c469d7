"""State with a place for each label, of a loss that may learn how many labels there are from its first batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class LateLabels(nn.Module):
    """Buffers of shape (L, ...), named in `per_label`; L = 0 until a first batch or a loaded state says."""

    per_label: ClassVar[tuple[str, ...]] = ()

    def per_label_buffers(self, scores: Tensor) -> tuple[Tensor, ...]:
        """The buffers, made for these scores (N,) or (N, L) where there are none yet."""
        num_labels = 1 if scores.ndim == 1 else scores.shape[1]
        held = getattr(self, self.per_label[0]).shape[0]
        if not held:
            for name in self.per_label:
                empty = getattr(self, name)
                setattr(self, name, torch.zeros(num_labels, *empty.shape[1:], dtype=empty.dtype, device=scores.device))
        elif held != num_labels:
            raise ValueError(f"this loss keeps scores of {held} labels but got {num_labels}: make a second loss.")
        return tuple(getattr(self, name) for name in self.per_label)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in self.per_label:
            own, saved = getattr(self, name), state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and not own.shape[0] and saved.shape[1:] == own.shape[1:]:
                setattr(self, name, torch.zeros_like(saved, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
