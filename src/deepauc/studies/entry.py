"""The declaration of what `deepauc study` runs: an entry of a file's `STUDIES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepauc.studies.records.tables import Figures, Page, page_of
from deepauc.studies.sources import Place, is_for_choosing
from deepauc.studies.study import Study, StudySet


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """What is no set of `Study` and is run whole, in this process. path: of its record, in a results folder."""

    run: Callable[[Place], dict[str, Any]]
    path: Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A set of studies, or a run of another kind, with the page and the pictures made from the records.

    Args:
        name: Of the records and of the page; that of the studies where there are some.
        title: Of the page; likewise.
        table: In place of `page`, a function from the results folder to markdown.
        page: By default a row for each study. Its figures go into RESULTS/summary.json.
        studies: The set of studies.
        own: In place of `studies`, a run of another kind.
        pictures: A function from the results folder to the files it has drawn.
        page_after_run: `deepauc study run` ends with the page, so that one command goes from the data to the table;
            without `studies` it always does. Not where the time is up: the call that ends the work writes it.
        pack: How many runs of a study share a GPU where nobody says; None is the runner's own default.
        settled: The studies as they are run, and further ones that they inherit from, by what is in the results folder.
        varied: The set that `--set` and `--seeds` ask for, where these are no matter of a method's arguments and the
            declared seeds; its name says what differs, NAME/OTHER.
        finish: What a run of this set ends with, beside the records.
    """

    name: str = ""
    title: str = ""
    table: Callable[[Path], str] | None = None
    page: Page | None = None
    studies: StudySet | None = None
    own: WholeRun | None = None
    pictures: Callable[[Path], list[Path]] = lambda _: []
    page_after_run: bool = False
    pack: Callable[[Study], int] | None = None
    settled: Callable[[Sequence[Study], Path], tuple[tuple[Study, ...], tuple[Study, ...]]] | None = None
    varied: Callable[[Mapping[str, Any], tuple[int, ...] | None], StudySet] | None = None
    finish: Callable[[Place, str], object] = lambda _place, _name: None

    def __post_init__(self) -> None:
        if self.studies is not None:
            object.__setattr__(self, "name", self.name or self.studies.name)
            object.__setattr__(self, "title", self.title or self.studies.title)
        if not self.name or set(self.name) & set("/\\ *?[]"):
            raise ValueError(f"a name is part of file names: no spaces, slashes or wildcards in {self.name!r}.")
        if (self.studies is None) == (self.own is None):
            raise ValueError(f"entry {self.name}: give either studies or own.")
        if self.studies is not None and self.studies.name != self.name:
            raise ValueError(f"entry {self.name}: its set of studies is called {self.studies.name}; use one name.")
        if self.studies is None and self.table is None and self.page is None:
            raise ValueError(f"entry {self.name}: only a set of studies has a table by default: give page= or table=.")

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
        return (self.name,) if self.studies is None else tuple(study.name for study in self.studies.studies)

    @property
    def run_counts(self) -> tuple[int, int]:
        """Tuning and final runs of all of it."""
        return (0, 1) if self.studies is None else tuning_and_final(self.studies.studies)


def tuning_and_final(studies: Sequence[Study]) -> tuple[int, int]:
    """How many runs are declared."""
    tuning = sum(len(one.configs) * len(one.tuning_seeds) for one in studies if one.tuned)
    return tuning, sum(len(one.seeds) for one in studies if not is_for_choosing(one.task))
