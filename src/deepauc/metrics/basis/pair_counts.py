"""Exact counts of ordered (positive, negative) pairs: the integer behind the AUROC.

Three ways to the same integer, chosen by number type, size and class balance, none of them wrong for any distribution:
sort both classes and search one in the other (small inputs, any number type); a radix sort of the float's bits with the
label in the lowest one (large float32 and float64); and, in front of it for a rare class, a table that settles at once
every score of the common class that shares no cell with the rare one.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

RADIX_FROM = 1 << 16  # below, two plain sorts are as fast
RADIX_BELOW = 1 << 31  # the counting sort's positions are int32
RARE_SHARE = 0.05  # above, too few scores have a cell of the table to themselves
SCORES_PER_CELL = 8  # what the table is sized for,
CELLS_PER_RARE = 32  # or fewer cells, if the rare class then still leaves most of them empty
MOST_CELLS = 1 << 24
BLOCK = 1 << 16  # scores worked on at a time, so that they and their keys stay in the cache


def twice_concordant(scores: Array, positive: Mask) -> int:
    """2·#{s_i > s_j} + #{s_i = s_j} over positives i and negatives j, of finite scores (N,) and their mask (N,)."""
    if scores.dtype == np.float16:
        scores = scores.astype(np.float32)
    if scores.dtype not in (np.float32, np.float64) or not RADIX_FROM <= scores.size < RADIX_BELOW:
        return _by_sorting(_pick(positive, scores), _pick(~positive, scores))
    positives = int(np.count_nonzero(positive))
    if min(positives, scores.size - positives) <= RARE_SHARE * scores.size:
        return _beside_a_rare_class(scores, positive, rare_is_positive=2 * positives <= scores.size)
    return _by_radix(scores, positive)


def _by_sorting(positives: Array, negatives: Array) -> int:
    if positives.size > negatives.size:  # search the smaller class in the larger one
        return 2 * positives.size * negatives.size - _by_sorting(negatives, positives)
    queries, ordered = np.sort(positives), np.sort(negatives)
    below = np.searchsorted(ordered, queries, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(ordered, queries, side="right").sum(dtype=np.int64)
    return int(below) + int(not_above)


def _by_radix(scores: Array, positive: Mask) -> int:
    """Sort magnitudes with the label as lowest bit, scores below zero and the others apart."""
    low = scores < 0  # -0.0 is not, and equals 0.0
    if not 0 < np.count_nonzero(low) < scores.size:
        return _of_one_sign(scores, positive)
    high = ~low
    positive_low, positive_high = _pick(low, positive), _pick(high, positive)
    negatives_low = positive_low.size - int(np.count_nonzero(positive_low))
    across = negatives_low * int(np.count_nonzero(positive_high))
    within = _of_one_sign(_pick(low, scores), positive_low) + _of_one_sign(_pick(high, scores), positive_high)
    return within + 2 * across


def _of_one_sign(scores: Array, positive: Mask) -> int:
    bits: Array = scores.view(np.uint32) if scores.itemsize == 4 else scores.view(np.uint64)
    packed: Array = (bits << 1) | positive  # the sign falls out on the left and makes room for the label on the right
    if scores[0] < 0:  # a larger magnitude is a smaller score: the classes change places
        packed ^= 1
    return _concordant_in_order(_radix_sort(packed))


def _radix_sort(keys: Array) -> Array:
    """Unsigned integers in ascending order, byte by byte from the lowest.

    One byte a pass is one counting sort; SciPy's conversion of a one-row sparse matrix from rows to columns is exactly
    that (stable, linear, in C++), with 256 columns as the bins. Ten million float32 with their labels take 0.16 s on a
    Zen 4 core, where `np.sort` of the scores alone takes 0.41 s with NumPy's AVX-512 kernel, 0.07 s with its AVX2 one.
    """
    from scipy.sparse import csr_array

    one_row = np.array([0, keys.size], dtype=np.int32)
    offsets = range(keys.itemsize) if sys.byteorder == "little" else reversed(range(keys.itemsize))
    for offset in offsets:
        digit = keys.view(np.uint8)[offset :: keys.itemsize].astype(np.int32)
        keys = csr_array((keys, digit, one_row), shape=(1, 256)).tocsc().data
    return keys


def _concordant_in_order(packed: Array) -> int:
    """The count from sorted keys whose lowest bit is the label."""
    places = np.flatnonzero(packed & 1)
    positives = int(places.size)
    before = int(places.sum(dtype=np.int64)) - positives * (positives - 1) // 2
    twice = 2 * before  # in a tie the negatives come first, so a tied pair counts 2 here and must count 1
    last = np.flatnonzero((packed[1:] ^ packed[:-1]) == 1)  # the last negative of each value that both classes hold
    if last.size:
        negatives_there = np.ones(last.size, dtype=np.int64)
        positives_there = np.ones(last.size, dtype=np.int64)
        several = np.flatnonzero(packed[np.maximum(last - 1, 0)] == packed[last])
        at = last[several]
        negatives_there[several] = at + 1 - np.searchsorted(packed, packed[at], side="left")
        several = np.flatnonzero(packed[np.minimum(last + 2, packed.size - 1)] == packed[last + 1])
        at = last[several]
        positives_there[several] = np.searchsorted(packed, packed[at + 1], side="right") - (at + 1)
        twice -= int(np.dot(negatives_there, positives_there))
    return twice


def _beside_a_rare_class(scores: Array, positive: Mask, *, rare_is_positive: bool) -> int:
    """Settle by table every common score in a cell without a rare one; only the others meet the rare ones in a sort.

    The cell floor((s - lowest)·scale) never falls as s rises, rounding included, so two scores in different cells
    are ordered as their cells are.
    """
    rare_mask = positive if rare_is_positive else ~positive
    rare = _pick(rare_mask, scores)
    lowest = rare.min()
    cells = max(min(scores.size // SCORES_PER_CELL, CELLS_PER_RARE * rare.size, MOST_CELLS), 2)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = scores.dtype.type(cells - 1) / (rare.max() - lowest)
    if not (np.isfinite(scale) and scale > 0):  # one value, or a span beyond the type: no table
        return _by_radix(scores, positive)

    held = np.bincount(_cells(rare, lowest, scale, cells), minlength=cells)
    rare_below = np.where(held > 0, -1, np.cumsum(held) - held).astype(np.int32)  # -1: not settled by the table
    pairs = 0  # (rare below common), over the settled common scores
    unsettled = []
    for start in range(0, scores.size, BLOCK):
        block = scores[start : start + BLOCK]
        found = rare_below.take(_cells(block, lowest, scale, cells), mode="clip")
        open_here = found < 0
        pairs += int(found.sum(dtype=np.int64)) + int(np.count_nonzero(open_here))
        open_here &= ~rare_mask[start : start + BLOCK]
        unsettled.append(_pick(open_here, block))
    common = np.concatenate(unsettled)
    settled = scores.size - rare.size - common.size
    twice = 2 * (rare.size * settled - pairs) if rare_is_positive else 2 * pairs

    if rare.size + common.size < RADIX_FROM:
        return twice + (_by_sorting(rare, common) if rare_is_positive else _by_sorting(common, rare))
    label = np.zeros(rare.size + common.size, dtype=bool)
    label[: rare.size] = True
    return twice + _by_radix(np.concatenate([rare, common]), label if rare_is_positive else ~label)


def _pick(mask: Mask, values: Array) -> Array:
    """values[mask], block by block, so that NumPy's index on the way there stays in the cache."""
    picked = np.empty(np.count_nonzero(mask), dtype=values.dtype)
    filled = 0
    for start in range(0, mask.size, BLOCK):
        part = np.compress(mask[start : start + BLOCK], values[start : start + BLOCK])
        picked[filled : filled + part.size] = part
        filled += part.size
    return picked


def _cells(scores: Array, lowest: Any, scale: Any, cells: int) -> npt.NDArray[np.intp]:
    with np.errstate(over="ignore"):
        place = scores - lowest
        place *= scale
    return np.clip(place, 0, cells - 1, out=place).astype(np.intp)
