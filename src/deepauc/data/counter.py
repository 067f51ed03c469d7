"""Random numbers by counting: a number depends on its address alone, not on how many were drawn before it.

The number at (key, position) is the output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014) at that position of the stream that starts at the hash of `key`. Integers only, so
the numbers are the same on every machine and with every version of NumPy and PyTorch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hash_key(*parts: int) -> int:
    """One 64-bit key from integers, in order: hash_key(1, 2) differs from hash_key(2, 1)."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + _GOLDEN & _MASK
        state = (state ^ state >> 30) * _FIRST & _MASK
        state = (state ^ state >> 27) * _SECOND & _MASK
        state ^= state >> 31
    return state


def bits(key: int, count: int) -> npt.NDArray[np.uint64]:
    """The 64-bit numbers at the positions 0 to count - 1 of the key's stream."""
    state = np.arange(1, count + 1, dtype=np.uint64)
    state *= np.uint64(_GOLDEN)  # array arithmetic in uint64 wraps around, as it is meant to
    state += np.uint64(key)
    state ^= state >> np.uint64(30)
    state *= np.uint64(_FIRST)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_SECOND)
    state ^= state >> np.uint64(31)
    return state


def uniforms(key: int, count: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2^-24, so that float32 holds them exactly."""
    return (bits(key, count) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def fixed_permutation(count: int, *, seed: int, stream: str) -> npt.NDArray[np.int64]:
    """A permutation of 0 to count - 1 that depends on (count, seed, stream) alone; streams are independent draws."""
    # The keys of one stream are distinct (SplitMix64's output function is a bijection), so no sort has to break a tie.
    return np.argsort(bits(_stream_key(seed, stream), count), kind="stable").astype(np.int64)


def fixed_uniforms(count: int, *, seed: int, stream: str) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that depend on (position, seed, stream) alone."""
    return uniforms(_stream_key(seed, stream), count)


def _stream_key(seed: int, stream: str) -> int:
    if seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, not {seed}.")
    return hash_key(seed, *stream.encode())
