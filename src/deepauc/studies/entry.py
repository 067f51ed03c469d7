"""The declaration of what `deepauc study` runs: an entry of a file's `STUDIES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepauc.studies.folds import is_for_choosing
from deepauc.studies.records.tables import Figures, Page, page_of
from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet

Report = Callable[[str], None]


class OwnRuns(Protocol):
    """Runs that are no set of `Study`, such as those that start from other runs.

    options: what `study run` may ask for beside the folders, the device and the time: any of cells, seeds, settings
    and pack. why: said where another option is given.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def options(self) -> tuple[str, ...]: ...

    @property
    def why(self) -> str: ...

    def path(self, results: Path) -> Path:
        """The file of the records."""

    def recorded(self, results: Path, cells: Sequence[str] = ()) -> dict[str, int]:
        """Final runs by name."""

    def with_other_settings(self, results: Path) -> dict[str, int]:
        """Final runs by the text that says what differs."""

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
        """The result's entry `left`: what there was no time for. report: told in a line what is going on."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A set of studies, or runs of another kind, with the page and the pictures made from their records.

    Either studies or own. page: by default a row for each study; its figures go into
    RESULTS/summary.json. table: in its place, results folder to markdown.
    pictures: results folder to files. page_after_run: `study run` ends with the page, so that one command goes from the
    data to the table; without `studies` it always does. Not where the time is up: the call that ends the work writes
    it. pack: of a study on a GPU where nobody says; None is the runner's own default. settled: the studies as they are
    run, and further ones that they inherit from, by what is in the results folder.
    """

    name: str
    title: str
    table: Callable[[Path], str] | None = None
    page: Page | None = None
    studies: StudySet | None = None
    own: OwnRuns | None = None
    pictures: Callable[[Path], list[Path]] = lambda _: []
    page_after_run: bool = False
    pack: Callable[[Study], int] | None = None
    settled: Callable[[Sequence[Study], Path], tuple[tuple[Study, ...], tuple[Study, ...]]] | None = None

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set("/\\ *?[]"):
            raise ValueError(f"a name is part of file names: no spaces, slashes or wildcards in {self.name!r}.")
        if (self.studies is None) == (self.own is None):
            raise ValueError(f"entry {self.name}: give either studies or own.")
        if self.studies is not None and self.studies.name != self.name:
            raise ValueError(f"entry {self.name}: its set of studies is called {self.studies.name}; use one name.")
        if self.studies is None and self.table is None and self.page is None:
            raise ValueError(f"entry {self.name}: only a set of studies has a table by default: give page= or table=.")

    @classmethod
    def of(cls, studies: StudySet, *, page: Page | None = None) -> Entry:
        """A set of studies with a page of its own, or the one it has by default."""
        return cls(name=studies.name, title=studies.title, studies=studies, page=page)

    def markdown(self, results: Path) -> str:
        """The page, from the records in this folder."""
        if self.table is not None:
            return self.table(results)
        if self.page is not None:
            return self.page.markdown(results)
        assert self.studies is not None
        return page_of(self.studies).markdown(results)

    def figures(self, results: Path) -> Figures:
        """What RESULTS/summary.json has of it."""
        return {} if self.page is None else self.page.summary(results)

    @property
    def cells(self) -> tuple[str, ...]:
        if self.own is not None:
            return self.own.names
        return () if self.studies is None else tuple(study.name for study in self.studies.studies)

    @property
    def run_counts(self) -> tuple[int, int]:
        """Tuning and final runs of all of it."""
        if self.own is not None:
            return 0, len(self.own.names) * len(self.own.seeds)
        return (0, 0) if self.studies is None else tuning_and_final(self.studies.studies)


def tuning_and_final(studies: Sequence[Study]) -> tuple[int, int]:
    """How many runs are declared."""
    tuning = sum(len(one.configs) * len(one.tuning_seeds) for one in studies if one.tuned)
    return tuning, sum(len(one.seeds) for one in studies if not is_for_choosing(one.task))
