"""CRC-32C (Castagnoli), the checksum of TFRecord files: google-crc32c where it is installed, else NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # reflected
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8


def crc32c(content: bytes) -> int:
    """The checksum of the content, as unsigned 32 bits."""
    try:
        import google_crc32c  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError:
        return numpy_crc32c(content)
    return int(google_crc32c.value(content))


def masked_crc32c(content: bytes) -> int:
    """As TFRecord stores it, so that a checksum of data that holds checksums stays a good one."""
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ONES


def numpy_crc32c(content: bytes) -> int:
    """The same without google-crc32c, and without a loop over bytes.

    A CRC is linear: with Z_k the map of a state over k zero bytes, two halves A and B of k bytes each give
    Z_k(A) xor B. So neighbouring words are joined in pairs, then pairs of pairs, a whole level in one NumPy call.
    """
    if len(content) < 4:
        return _ONES ^ _byte_by_byte(_ONES, content)
    # Zero bytes in front do not change a state of 0; the initial state is added to the first four bytes instead.
    head = bytes(byte ^ 0xFF for byte in content[:4])
    padding = bytes(-len(content) % 4)
    words = np.frombuffer(b"".join((padding, head, memoryview(content)[4:])), dtype="<u4").astype(np.uint32)
    level = 0
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, dtype=np.uint32), words])
        words = _over_zeros(words[::2], level) ^ words[1::2]
        level += 1
    return _ONES ^ int(_over_zeros(words, 0)[0])


def _byte_by_byte(state: int, content: bytes) -> int:
    table = _byte_table()
    for byte in content:
        state = int(table[(state ^ byte) & 0xFF]) ^ (state >> 8)
    return state


def _over_zeros(states: Words, level: int) -> Words:
    """States after 4 · 2^level zero bytes, by one table for each half of a state."""
    low_table, high_table = _zero_tables(level)
    halves = np.ascontiguousarray(states, dtype="<u4").view("<u2").astype(np.intp)
    result = low_table.take(halves[::2], mode="clip")  # every number is in range; "clip" spares the check
    result ^= high_table.take(halves[1::2], mode="clip")
    return result


@lru_cache(maxsize=1)
def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@lru_cache(maxsize=64)
def _zero_tables(level: int) -> Words:
    """(2, 65536): what each half of a state becomes over 4 · 2^level zero bytes."""
    if level:
        half = _zero_tables(level - 1)
        return _over_zeros(half.ravel(), level - 1).reshape(half.shape)
    state = np.concatenate([np.arange(1 << 16, dtype=np.uint32), np.arange(1 << 16, dtype=np.uint32) << 16])
    for _ in range(4):
        state = _byte_table()[state & 0xFF] ^ (state >> 8)
    return state.reshape(2, -1)
