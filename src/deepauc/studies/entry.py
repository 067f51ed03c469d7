"""The declaration of what `deepauc study` runs: an entry of a file's `STUDIES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepauc.studies.folds import is_for_choosing
from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet

Report = Callable[[str], None]


class OwnRun(Protocol):
    """The work of a study that is no set of `Study`. The result's entry `left`: what there was no time for.

    report: told in a line what is going on.
    """

    def __call__(
        self,
        place: Place,
        *,
        device: str | None = None,
        max_minutes: float | None = None,
        report: Report | None = None,
    ) -> dict[str, Any]: ...


class LinkedRuns(Protocol):
    """Runs that start from other runs, all or some of them. records: their folder below the results."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def records(self) -> str: ...

    def recorded(self, results: Path, cells: Sequence[str] = ()) -> dict[str, int]:
        """Final runs by name."""

    def with_other_settings(self, results: Path) -> dict[str, int]:
        """Final runs by the folder, below that of the records, which names what differs."""

    def run(
        self,
        place: Place,
        *,
        cells: Sequence[str] = (),
        seeds: tuple[int, ...] | None = None,
        settings: Mapping[str, Any] | None = None,
        pack: int | None = None,
        device: str | None = None,
        max_minutes: float | None = None,
        report: Report | None = None,
    ) -> dict[str, Any]:
        """The result's entry `left`: what there was no time for."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A set of studies, or runs of another kind, with the page and the pictures made from their records.

    Exactly one of studies, run and linked. table: results folder to markdown; by default a row for each study.
    pictures: results folder to files. page_after_run: `study run` ends with the page, so that one command goes from the
    data to the table; without `studies` it always does. Not where the time is up: the call that ends the work writes
    it. pack: of a study on a GPU where nobody says; None is the runner's own default. settled: the studies as they are
    run, and further ones that they inherit from, by what is in the results folder. own_runs: beside `run`, how many
    runs are recorded, of how many (None: that depends on the machine), and in which file. summary: results folder to
    the figures that RESULTS/summary.json has of it.
    """

    name: str
    title: str
    table: Callable[[Path], str] | None = None
    studies: StudySet | None = None
    run: OwnRun | None = None
    pictures: Callable[[Path], list[Path]] = lambda _: []
    page_after_run: bool = False
    pack: Callable[[Study], int] | None = None
    settled: Callable[[Sequence[Study], Path], tuple[tuple[Study, ...], tuple[Study, ...]]] | None = None
    linked: LinkedRuns | None = None
    own_runs: Callable[[Path], tuple[int, int | None, Path]] | None = None
    summary: Callable[[Path], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set("/\\ *?[]"):
            raise ValueError(f"a name is part of file names: no spaces, slashes or wildcards in {self.name!r}.")
        if sum(kind is not None for kind in (self.studies, self.run, self.linked)) != 1:
            raise ValueError(f"entry {self.name}: give exactly one of studies, run and linked.")
        if self.studies is not None and self.studies.name != self.name:
            raise ValueError(f"entry {self.name}: its set of studies is called {self.studies.name}; use one name.")
        if self.studies is None and self.table is None:
            raise ValueError(f"entry {self.name}: only a set of studies has a table by default: give table=.")

    @classmethod
    def of(cls, studies: StudySet) -> Entry:
        """A set of studies with the table it has by default."""
        return cls(name=studies.name, title=studies.title, studies=studies)

    @property
    def cells(self) -> tuple[str, ...]:
        if self.linked is not None:
            return self.linked.names
        return () if self.studies is None else tuple(study.name for study in self.studies.studies)

    @property
    def run_counts(self) -> tuple[int, int]:
        """Tuning and final runs of all of it; none where it counts its runs in another way."""
        if self.linked is not None:
            return 0, len(self.linked.names) * len(self.linked.seeds)
        return (0, 0) if self.studies is None else tuning_and_final(self.studies.studies)


def tuning_and_final(studies: Sequence[Study]) -> tuple[int, int]:
    """How many runs are declared."""
    tuning = sum(len(one.configs) * len(one.tuning_seeds) for one in studies if one.tuned)
    return tuning, sum(len(one.seeds) for one in studies if not is_for_choosing(one.task))
