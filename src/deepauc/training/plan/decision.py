"""A decision of a plan as data: what was decided, why, and on which facts. `wording` turns it into sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]
Scalar = str | int | float
Fact = Scalar | tuple[Scalar, ...] | tuple[tuple[float, ...], ...] | Mapping[str, Scalar]

ASKED: tuple[str, ...] = ("asked for",)  # the reason for all that a user has set


@dataclass(frozen=True, kw_only=True)
class Decision:
    """reason: keys of the sentences in `wording.SENTENCES`, in order. rests_on: the facts that these sentences name.

    A plan that changes puts another decision in its place; nobody edits sentences.
    """

    name: str
    value: Fact | None
    reason: tuple[str, ...]
    rests_on: Mapping[str, Fact] = field(default_factory=dict)


def replaced(decisions: tuple[Decision, ...], new: Decision) -> tuple[Decision, ...]:
    """The decisions with the new one in place of the one of its name."""
    return tuple(new if one.name == new.name else one for one in decisions)
