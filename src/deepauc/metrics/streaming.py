"""The exact AUROC of scores that come in chunks, or lie on several processes: what `auroc` gives, to the bit.

Without weights all that counts is how many positives and negatives hold each distinct score. For each label that takes
itemsize + 2 to 16 bytes a distinct score, and as many rows again (at least PENDING) that wait to be counted: some 10
bytes a row for float32 scores that are all distinct, about 2 MB for float16 scores however many rows there are. Who
runs out of memory can therefore `update(scores.half(), labels)`: the exact AUROC of the rounded scores, where a tie
that rounding made counts one half. With weights all rows are kept in order, since a sum of floats depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed

from deepauc.labels import ONE_CLASS
from deepauc.metrics.auroc import auroc
from deepauc.metrics.basis.columns import ArrayLike, FloatOrArray, read_columns

Array = npt.NDArray[Any]

PENDING = 1 << 18  # rows of a label that wait to be counted
_BROKEN = b"!"  # first byte of what a process sends that has no scores to send


class StreamingAUROC:
    """Feed chunks to `update` (or other streams to `merge`), then `compute`.

    Chunks may be of any length, empty ones too; they agree in number of labels, in type of scores and in whether there
    are weights. Labels are 0/1, NaN where missing; everything else is refused as `auroc` refuses it.

    Examples:
        >>> stream = StreamingAUROC()
        >>> stream.update([0.1, 0.4], [0, 0])
        >>> stream.update([0.35, 0.8], [1, 1])
        >>> stream.compute()
        0.75
    """

    def __init__(self) -> None:
        self._labels: int | None = None  # None: not known yet; 0: scores are (N,); else (N, L)
        self._dtype: np.dtype[Any] | None = None
        self._counts: list[_ScoreCounts] = []
        self._rows: list[tuple[Array, Array, Array]] | None = None  # scores, labels, weights of each chunk

    def update(self, scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> None:
        """Add a chunk, (n,) or (n, L); weights (n,) or (n, L)."""
        columns = read_columns(scores, labels, weights=weights)
        if len(columns.scores) == 0:
            return
        found = 0 if columns.scores.ndim == 1 else columns.scores.shape[1]
        self._agree(found, columns.scores.dtype, weighted=columns.weights is not None)
        if self._rows is not None and columns.weights is not None:
            shape = columns.scores.shape
            by_label = columns.weights if columns.weights.ndim == columns.scores.ndim else columns.weights[:, None]
            of_labels = columns.labels.astype(np.float32)  # 0, 1, NaN: exact in any floating type
            spread = np.broadcast_to(by_label.astype(np.float64), shape).copy()
            self._rows.append((columns.scores.copy(), of_labels, spread))
            return
        for counts, column in zip(self._counts, columns, strict=True):
            counts.add(column.scores, column.positive)

    def merge(self, other: StreamingAUROC) -> None:
        """Add all that another stream has seen, its rows after this one's."""
        if other._labels is None or other._dtype is None:
            return
        self._agree(other._labels, other._dtype, weighted=other._rows is not None)
        if self._rows is not None and other._rows is not None:
            self._rows += other._rows
        for mine, theirs in zip(self._counts, other._counts, strict=True):
            mine.add_counts(*theirs.settled())

    def compute(self) -> FloatOrArray:
        """The AUROC of all rows so far: a float, or an array (L,). A label with one class only: ValueError."""
        if self._rows is not None:
            scores, labels, weights = (np.concatenate(part) for part in zip(*self._rows, strict=True))
            return auroc(scores, labels, weights=weights)
        if self._labels is None:
            raise ValueError(ONE_CLASS.format(what="AUROC", where="", positives=0, negatives=0))
        if self._labels == 0:
            return self._counts[0].auroc("")
        return np.array([counts.auroc(f" in column {j}") for j, counts in enumerate(self._counts)])

    def state(self) -> bytes:
        """All of it as bytes (a safetensors file, no pickle), to be sent or kept; `from_state` reads it."""
        from safetensors.numpy import save

        arrays: dict[str, Array] = {"labels": np.array([-1 if self._labels is None else self._labels])}
        if self._rows is not None:
            whole = [np.concatenate(part) for part in zip(*self._rows, strict=True)]
            arrays |= dict(zip(("row scores", "row labels", "row weights"), whole, strict=True))
        for j, counts in enumerate(self._counts):
            arrays |= dict(zip((f"values {j}", f"negatives {j}", f"positives {j}"), counts.settled(), strict=True))
        return save(arrays)

    @classmethod
    def from_state(cls, state: bytes) -> StreamingAUROC:
        """What `state` was taken of; ValueError for any other bytes."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        stream = cls()
        try:
            arrays = load(state)
            labels = int(arrays["labels"].item())
            if labels < 0:
                return stream
            if "row scores" in arrays:
                stream.update(arrays["row scores"], arrays["row labels"], weights=arrays["row weights"])
                return stream
            stream._agree(labels, arrays[f"values {max(labels - 1, 0)}"].dtype, weighted=False)
            for j, counts in enumerate(stream._counts):
                counts.add_counts(*(arrays[f"{name} {j}"] for name in ("values", "negatives", "positives")))
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"these bytes are not the state of a StreamingAUROC ({error}).") from None
        return stream

    def _agree(self, labels: int, dtype: np.dtype[Any], *, weighted: bool) -> None:
        """The first chunk says what all have in common."""
        if self._labels is None:
            self._labels, self._dtype = labels, dtype
            if weighted:
                self._rows = []
            else:
                self._counts = [_ScoreCounts(dtype) for _ in range(max(labels, 1))]
        if labels != self._labels:
            shapes = ["(n,)" if n == 0 else f"(n, {n})" for n in (labels, self._labels)]
            raise ValueError(f"scores of shape {shapes[0]} after some of shape {shapes[1]}; all chunks need the same.")
        if dtype != self._dtype:
            raise ValueError(f"{dtype} scores after {self._dtype} ones; give all chunks the same type.")
        if weighted != (self._rows is not None):
            raise ValueError("some chunks have weights and some have none; give all of them weights, of 1 where equal.")


class _ScoreCounts:
    """How many negatives and positives of one label hold each distinct score."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._counted: tuple[Array, Array, Array] = (np.empty(0, dtype), np.empty(0, np.uint8), np.empty(0, np.uint8))
        self._waiting: list[tuple[Array, Array, Array]] = []
        self._rows_waiting = 0

    def add(self, scores: Array, positive: npt.NDArray[np.bool_]) -> None:
        for start in range(0, len(scores), PENDING):  # a large chunk is counted piece by piece
            piece, is_positive = scores[start : start + PENDING], positive[start : start + PENDING].astype(np.uint8)
            self.add_counts(piece.copy(), 1 - is_positive, is_positive)

    def add_counts(self, values: Array, negatives: Array, positives: Array) -> None:
        if len(values) == 0:  # of a label without a labelled row there
            return
        self._waiting.append((values, negatives, positives))
        self._rows_waiting += len(values)
        if self._rows_waiting > max(PENDING, len(self._counted[0])):  # as many as are counted: N log N in all
            self.settled()

    def settled(self) -> tuple[Array, Array, Array]:
        """Distinct scores in ascending order, and the negatives and positives that hold them."""
        if self._waiting:
            values, negatives, positives = (
                np.concatenate(part) for part in zip(self._counted, *self._waiting, strict=True)
            )
            order = np.argsort(values)
            values = values[order]
            first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
            counts = [np.add.reduceat(part[order], first, dtype=np.int64) for part in (negatives, positives)]
            negatives, positives = (part.astype(np.min_scalar_type(int(part.max()))) for part in counts)
            self._counted = values[first], negatives, positives
            self._waiting, self._rows_waiting = [], 0
        return self._counted

    def auroc(self, where: str) -> float:
        _, negatives, positives = self.settled()
        n, p = int(negatives.sum(dtype=np.int64)), int(positives.sum(dtype=np.int64))
        if n == 0 or p == 0:
            raise ValueError(ONE_CLASS.format(what="AUROC", where=where, positives=p, negatives=n))
        number: Any = np.int64 if 2 * n * p < 2**63 else object  # Python's integers know no overflow
        negatives, positives = negatives.astype(number), positives.astype(number)
        not_above = np.cumsum(negatives)
        return int((positives * (2 * not_above - negatives)).sum()) / (2 * n * p)


def distributed_auroc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    group: distributed.ProcessGroup | None = None,
) -> FloatOrArray:
    """`auroc` of the rows of all processes together, each giving its own (any number, also none); on all of them.

    Equal to the bit to `auroc` of the rows of one process after the other; without weights their order is of no matter.
    Each process sends its distinct scores and their counts. What is wrong on one process is a ValueError on all of
    them, so none waits for ever. Without a process group this is `auroc`.

    Args:
        group: torch.distributed's; by default all processes.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return auroc(scores, labels, weights=weights)
    stream = StreamingAUROC()
    try:
        stream.update(scores, labels, weights=weights)
        message = stream.state()
    except (ValueError, TypeError) as error:  # also what numpy says of things that are no numbers
        message = _BROKEN + str(error).encode()
    gathered = _all_gather(message, group)
    broken = {rank: part[1:].decode() for rank, part in enumerate(gathered) if part.startswith(_BROKEN)}
    if broken:
        raise ValueError("; ".join(f"process {rank}: {reason}" for rank, reason in broken.items()))
    whole = StreamingAUROC()
    for part in gathered:
        whole.merge(StreamingAUROC.from_state(part))
    return whole.compute()


def _all_gather(message: bytes, group: distributed.ProcessGroup | None) -> list[bytes]:
    """The messages of all processes, by rank; they may differ in length."""
    device = torch.device("cuda" if distributed.get_backend(group) == "nccl" else "cpu")
    world = distributed.get_world_size(group)
    length = torch.tensor([len(message)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world)]
    distributed.all_gather(lengths, length, group=group)
    sizes = [int(size) for size in lengths]
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    parts: list[Tensor] = [torch.zeros_like(padded) for _ in range(world)]
    distributed.all_gather(parts, padded, group=group)
    return [part[:size].cpu().numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]
