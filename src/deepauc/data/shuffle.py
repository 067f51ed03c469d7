"""Random orders that choose data, fixed for ever: the same on every machine and with every version of NumPy.

NumPy does not promise that a generator's permutation stays the same from version to version, and a training set that
changes with an upgrade is no record. So an order is made by sorting keys from `counter`, integer arithmetic only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import bits, hash_key, uniforms


def fixed_permutation(count: int, *, seed: int, stream: str) -> npt.NDArray[np.int64]:
    """A permutation of 0 to count - 1 that depends on (count, seed, stream) alone; streams are independent draws."""
    # The keys of one stream are distinct (SplitMix64's output function is a bijection), so no sort has to break a tie.
    return np.argsort(bits(_key(seed, stream), count), kind="stable").astype(np.int64)


def fixed_uniforms(count: int, *, seed: int, stream: str) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that depend on (position, seed, stream) alone."""
    return uniforms(_key(seed, stream), count)


def _key(seed: int, stream: str) -> int:
    if seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, not {seed}.")
    return hash_key(seed, *stream.encode())
