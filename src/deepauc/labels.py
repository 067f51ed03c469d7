"""What valid scores, labels and groups are, and the messages that say what to do when they are not.

Scores are floating, of shape (N,) or (N, L). Labels have the same shape and hold 0 and 1 in any number type;
NaN marks a missing label. Soft labels, anywhere in [0, 1], are accepted only where asked for. Nothing is guessed.
Of weights, finite and not negative, only the ratios count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.names import in_one_form


class Diverged(ValueError):
    """Training went astray: a loss or scores that are no finite numbers, or steps that overshoot.

    The same again would end the same; the message names the remedy.
    """


NON_FINITE_SCORES = (
    "scores hold NaN or infinity. If they come from a network in training, it has diverged: bound the scores before "
    "the loss (torch.sigmoid, or BatchScoreNorm), or lower lr; loss_fn.diagnose of scores before that shows when a, b "
    "and alpha went wrong."
)
ONE_CLASS = (
    "{what} needs at least one positive and one negative label{where}; there are {positives} positives and {negatives} "
    "negatives among the labelled rows."
)

_USUAL_TYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
_UNSIGNED_TYPES = frozenset({torch.uint16, torch.uint32, torch.uint64})

NO_NAME = ("", "None", "nan", "<NA>", "NaT")
"""Cells that name no group: empty, or what Python, NumPy and pandas write for what is not there."""


def require_groups(groups: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The groups (patients), as text where they are objects, in one form; ValueError where one is missing.

    array: the same as NumPy has it. As text all rows without a group would be one patient, `nan`.
    """
    if array.dtype.kind == "U" and not hasattr(groups, "dtype"):
        array = np.asarray(groups, dtype=object)  # of a list with names and NaN, NumPy makes the name "nan"
    if array.dtype == object:
        missing = sum(not isinstance(name, str) and str(name) in NO_NAME for name in array.ravel().tolist())
        array = array.astype(str)
    else:
        missing = int((array != array).sum())  # noqa: PLR0124  (true for NaN alone)
    if missing:
        raise ValueError(f"groups are missing in {missing} rows; give every row a group (patient) of its own instead.")
    return in_one_form(array)


def require_plain_tensor(name: str, values: Tensor, *, unsigned: bool = False) -> None:
    """ValueError, with the remedy, unless these are dense numbers of a type that one can compute with.

    unsigned: whether uint16, uint32 and uint64 will do, which torch can store but hardly compute with.
    """
    inner = values
    while torch._C._functorch.is_functorch_wrapped_tensor(inner):
        if torch._C._functorch.is_batchedtensor(inner):
            raise ValueError(
                f"{name} come from torch.vmap, but a loss or a metric is of one whole batch: call it in a loop instead."
            )
        inner = torch._C._functorch.get_unwrapped(inner)
    if values.is_nested:
        raise ValueError(f"{name} must be one dense tensor, not a nested one: give all rows the same length.")
    if values.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, not {values.layout}: pass {name}.to_dense().")
    if values.is_meta:
        raise ValueError(f"{name} are on the device 'meta', where there are no numbers: compute them on a real device.")
    if values.is_complex():
        raise ValueError(f"{name} must be real numbers, not {values.dtype}: pass {name}.real.")
    if values.dtype not in (_USUAL_TYPES | _UNSIGNED_TYPES if unsigned else _USUAL_TYPES):
        raise ValueError(f"{name} of type {values.dtype} cannot be computed with: pass {name}.float().")


def shape_message(scores_shape: tuple[int, ...], labels_shape: tuple[int, ...]) -> str | None:
    """What is wrong with a pair of shapes, or None."""
    if len(scores_shape) not in (1, 2):
        return f"scores have shape {tuple(scores_shape)}; they must be (N,), or (N, L) for L labels."
    if tuple(scores_shape) == tuple(labels_shape):
        return None
    remedy = "give both the same shape, (N,) or (N, L)."
    if len(scores_shape) == 2 and scores_shape[1] == 1 and len(labels_shape) == 1:
        remedy = "scores.squeeze(1) turns a network's (N, 1) output into (N,)."
    elif len(labels_shape) == 2 and labels_shape[1] == 1 and len(scores_shape) == 1:
        remedy = "labels.squeeze(1) turns labels of shape (N, 1) into (N,)."
    elif len(scores_shape) == 2 and len(labels_shape) == 1:
        remedy = "torch.nn.functional.one_hot turns class numbers into one column per class."
    return f"scores have shape {tuple(scores_shape)} but labels have shape {tuple(labels_shape)}: {remedy}"


def label_message(bad: npt.NDArray[Any] | None, *, soft: bool, may_be_soft: bool = True) -> str:
    """The message for label values that are neither 0, 1 nor NaN (`bad` holds some of them; None: no longer known).

    may_be_soft: soft labels could be asked for, where they are meant.
    """
    if bad is None:
        kind = "lie in [0, 1]" if soft else "be 0 or 1"
        return f"labels must {kind} (NaN where missing). Check them on the CPU: loss_fn.diagnose names the values."
    values = np.unique(bad)[:5]
    shown = ", ".join(f"{v:g}" for v in values.astype(float))
    if soft:
        return f"labels must lie in [0, 1] (NaN where missing), but hold {shown}. Check the label smoothing or mixup."
    if values.size == 1 and values[0] == -1:
        return f"labels must be 0 or 1 (NaN where missing), but hold {shown}. For -1/+1 labels pass (labels > 0)."
    if ((values > 0) & (values < 1)).any():
        remedy = "Pass soft_labels=True where soft labels are meant, or round them." if may_be_soft else "Round them."
        return f"labels must be 0 or 1 (NaN where missing), but hold {shown}. {remedy}"
    return (
        f"labels must be 0 or 1 (NaN where missing), but hold {shown}. "
        "Name the positive class, for example (labels == 3), or give one 0/1 column per class."
    )


def invalid_labels(labels: Tensor, *, soft: bool) -> Tensor:
    """Mask of the entries that are neither valid nor missing; a pure tensor expression, safe on any device."""
    if labels.dtype == torch.bool:
        return torch.zeros_like(labels)
    if soft:
        return (labels < 0) | (labels > 1)
    return (labels != 0) & (labels != 1) & (labels == labels)  # noqa: PLR0124  (NaN is missing, not invalid)


def require_valid_labels(labels: Tensor, *, soft: bool = False, may_be_soft: bool = True) -> None:
    """Raise ValueError, naming the remedy, unless every label is 0, 1 (in [0, 1] when soft) or NaN. Synchronises."""
    bad = invalid_labels(labels, soft=soft)
    if bad.any():
        values = labels[bad].detach().cpu().double().numpy()
        raise ValueError(label_message(values, soft=soft, may_be_soft=may_be_soft))


def require_valid_arrays(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> None:
    """The same rules for NumPy arrays of scores and labels, and for sample weights of shape (N,) or the scores'."""
    if (message := shape_message(scores.shape, labels.shape)) is not None:
        raise ValueError(message)
    if not np.issubdtype(scores.dtype, np.number) or np.issubdtype(scores.dtype, np.complexfloating):
        raise ValueError(f"scores must be real numbers, not {scores.dtype}.")
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"labels must be 0 or 1 (NaN where missing), not {labels.dtype}. Map the class names to 0 and 1."
        )
    if labels.dtype != np.bool_:
        bad = (labels != 0) & (labels != 1) & (labels == labels)  # noqa: PLR0124
        if bad.any():
            message = label_message(labels[bad], soft=False, may_be_soft=False)
            turned = np.isin(scores, (0, 1)).all()  # as scikit-learn and LibAUC have them
            raise ValueError(f"{message} Scores come first, labels second." if turned else message)
    if not np.isfinite(scores).all():
        raise ValueError("scores hold NaN or infinity. Drop those rows, or find out why the model gave no score.")
    if weights is None:
        return
    if weights.shape not in (scores.shape, scores.shape[:1]):
        raise ValueError(f"weights have shape {weights.shape}; they must be (N,) or the shape of the scores.")
    if weights.dtype.kind not in "biuf":
        raise ValueError(f"weights must be real numbers, not {weights.dtype}.")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("weights must be finite and not negative.")


def scale_free(weights: Tensor, dim: int = 0) -> Tensor:
    """Floating weights over the power of two at their largest along `dim`: the same ratios, to the bit.

    Products and sums of what comes out neither overflow nor vanish, whatever the unit of the weights is. All zeros stay
    zeros. Of an accelerator nothing is read, and the power counts as a constant: what it is for does not depend on it.
    """
    if weights.numel() == 0:
        return weights
    largest = weights.detach().amax(dim, keepdim=True)
    on_host = weights.ndim == 1 and weights.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_host and 2.0**-30 < largest.item() < 2.0**30:
        return weights  # ordinary ones need nothing
    bits, exponent = (torch.int64, 0x7FF << 52) if weights.dtype == torch.float64 else (torch.int32, 0xFF << 23)
    power = (largest.view(bits) & exponent).view(weights.dtype)  # of a number below the normal ones: 0
    return weights / power.clamp(min=torch.finfo(weights.dtype).tiny)


def scale_free_array(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The same for a NumPy array, all of it together, as float64."""
    wide = weights.astype(np.float64)
    return np.ldexp(wide, 1 - np.frexp(wide.max(initial=0.0))[1])
