"""Which settings a study tries: all combinations of some axes, or a few of them drawn by a stated seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product as all_combinations
from typing import Any

from deepauc.data.counter import fixed_permutation

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Configurations to be tried. seed: of the draw that chose and ordered them; None: all combinations, in order."""

    axes: Mapping[str, tuple[Any, ...]]
    configs: tuple[Config, ...]
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.configs)

    def first(self, count: int) -> Grid:
        """`count` of them, drawn by the grid's own seed (0 for a full product); all, where there are no more."""
        if count < 1:
            raise ValueError(f"a grid needs at least one configuration, not {count}.")
        if count >= len(self.configs):
            return self
        if self.seed is None:
            return sample(self.axes, n=count, seed=0)
        return Grid(axes=self.axes, configs=self.configs[:count], seed=self.seed)


def product(axes: Mapping[str, Sequence[Any]]) -> Grid:
    """Every combination; the last axis moves fastest. No axis at all: one configuration, which sets nothing."""
    checked = {name: _values(name, values) for name, values in axes.items()}
    configs = tuple(dict(zip(checked, values, strict=True)) for values in all_combinations(*checked.values()))
    return Grid(axes=checked, configs=configs)


def sample(axes: Mapping[str, Sequence[Any]], *, n: int, seed: int) -> Grid:
    """`n` combinations drawn without repetition; all of them, in random order, where there are no more than `n`.

    The draw depends on (number of combinations, seed) alone, on every machine and with every version. The first k of
    a draw of n are the draw of k.
    """
    if n < 1:
        raise ValueError(f"a sample needs at least one configuration, not {n}.")
    full = product(axes)
    order = fixed_permutation(len(full), seed=seed, stream="study grid")
    return Grid(axes=full.axes, configs=tuple(full.configs[i] for i in order[:n]), seed=seed)


def _values(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(f"axis {name!r} needs a list of at least one value, not {values!r}.")
    if len(set(map(repr, values))) != len(values):
        raise ValueError(f"axis {name!r} holds a value twice: {list(values)}.")
    return tuple(values)
