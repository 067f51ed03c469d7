"""What a plan says to people, and the kinds of device it tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was chosen, and why; for people."""

    name: str
    value: str
    reason: str
