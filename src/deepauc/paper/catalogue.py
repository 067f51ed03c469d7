"""The studies of the paper by name, each with the page and the pictures made from its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet
from deepauc.training.plain import valid_name

if TYPE_CHECKING:
    from deepauc.paper.medical_chest import ChestStudy


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
        report: Callable[[str], None] | None = None,
    ) -> dict[str, Any]: ...


def _no_run(
    place: Place,
    *,
    device: str | None = None,
    max_minutes: float | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    del place, device, max_minutes, report
    raise ValueError("this study is made of records of other studies: there is nothing to run.")


def _run_toy(
    place: Place,
    *,
    device: str | None = None,
    max_minutes: float | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    from deepauc.paper import toy_study

    del report  # it takes seconds
    if device not in (None, "cpu") or max_minutes is not None:
        raise ValueError("the toy study is run whole, on a CPU: leave --device and --max-minutes out.")
    return toy_study.run(place)


def _toy_runs(results: Path) -> tuple[int, int | None, Path]:
    from deepauc.paper import toy_study

    path = results / toy_study.NAME / "toy.json"
    return int(path.exists()), 1, path


def _divergence_runs(results: Path) -> tuple[int, int | None, Path]:
    """On a GPU it has another task and more seeds than on a CPU, and both are kept: there is no one number of all."""
    from deepauc.paper import divergence

    return len(divergence.records(results)), None, results / f"{divergence.NAME}.jsonl"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """studies: None where `run` is a function of its own. table: results folder to markdown. pictures: to files.

    page_after_run: `study run` ends with the page, so that one command goes from the images to the table; with a `run`
    of its own it always does. Not where the time is up: the call that ends the work writes it. pack: of a study on a
    GPU where nobody says; None is the runner's own default. settled: the studies as they are run, and further ones that
    they inherit from, by what is in the results folder. linked: runs that start from other runs; `run` is theirs.
    own_runs: where neither studies nor linked runs are, how many runs are recorded, of how many (None: that depends on
    the machine), and in which file. summary: results folder to the study's part of results/summary.json.
    """

    name: str
    title: str
    table: Callable[[Path], str]
    studies: StudySet | None = None
    run: OwnRun = _no_run
    pictures: Callable[[Path], list[Path]] = lambda _: []
    page_after_run: bool = False
    pack: Callable[[Study], int] | None = None
    settled: Callable[[Sequence[Study], Path], tuple[tuple[Study, ...], tuple[Study, ...]]] | None = None
    linked: ChestStudy | None = None
    own_runs: Callable[[Path], tuple[int, int | None, Path]] | None = None
    summary: Callable[[Path], dict[str, Any]] | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        if self.linked is not None:
            return self.linked.names
        return () if self.studies is None else tuple(study.name for study in self.studies.studies)


@cache
def entries() -> dict[str, Entry]:
    """All of them; made when asked for."""
    from deepauc.paper import (
        ablation_page,
        benchmark_page,
        best_page,
        divergence,
        medical_best,
        medical_chest,
        medical_chest_page,
        medical_packs,
        medical_page,
        medical_studies,
        plan_changes,
        plan_page,
        smoke,
        toy_study,
    )
    from deepauc.paper.ablations import ablations
    from deepauc.paper.benchmark_tables import paper_tables
    from deepauc.paper.best_levers import best_set

    tables, small, changed = paper_tables(), smoke.smoke(), ablations()
    found = [
        Entry(
            name=tables.name,
            title=tables.title,
            studies=tables,
            table=benchmark_page.PAGE.markdown,
            summary=benchmark_page.PAGE.summary,
        ),
        Entry(
            name=changed.name,
            title=changed.title,
            studies=changed,
            table=ablation_page.PAGE.markdown,
            summary=ablation_page.PAGE.summary,
        ),
        Entry(
            name=toy_study.NAME,
            title="The paper's Figure 1 (A1): easy points and flipped labels in the plane, 20 seeds, on a CPU",
            run=_run_toy,
            table=toy_study.page,
            pictures=toy_study.pictures,
            own_runs=_toy_runs,
        ),
        Entry(name=small.name, title=small.title, studies=small, table=smoke.PAGE.markdown),
        *(
            Entry(
                name=one.name,
                title=one.title,
                studies=one,
                table=medical_page.PAGES[one.name].markdown,
                summary=medical_page.PAGES[one.name].summary,
                page_after_run=True,
                pack=medical_packs.pack_of,
                settled=medical_best.settled,
            )
            for one in (
                medical_studies.medical(),
                medical_studies.melanoma(),
                medical_studies.ddsm(),
                medical_studies.pcam(),
            )
        ),
        *(
            Entry(
                name=study.plan.name,
                title=title,
                run=study.run,
                linked=study,
                table=page.markdown,
                summary=page.summary,
            )
            for study, page, title in (
                (
                    medical_chest.CHEST_STUDY,
                    medical_chest_page.CHEST,
                    "Chest X-rays of NIH at 96 px for CheXpert: at once, by disease, uncertain labels, ensembles",
                ),
                (
                    medical_chest.CHEST_PRINTED_STUDY,
                    medical_chest_page.CHEST_PRINTED,
                    "The same with CheXpert's settings as printed (D5), five networks",
                ),
                (
                    medical_chest.CHEXPERT_STUDY,
                    medical_chest_page.CHEXPERT,
                    "CheXpert (D5): five networks, at once and by disease; --data: the edition's folder",
                ),
            )
        ),
    ]
    search, plans = best_set(), plan_changes.plan_set()
    found += [
        Entry(
            name=search.name,
            title=search.title,
            studies=search,
            table=best_page.PAGE.markdown,
            summary=best_page.PAGE.summary,
        ),
        Entry(
            name=plans.name,
            title=plans.title,
            studies=plans,
            table=plan_page.PAGE.markdown,
            summary=plan_page.PAGE.summary,
        ),
        Entry(
            name=divergence.NAME,
            title="AUC losses on raw, sigmoid and normalised scores: which learning rates and momenta diverge",
            run=divergence.run,
            table=divergence.PAGE.markdown,
            own_runs=_divergence_runs,
        ),
    ]
    return {entry.name: entry for entry in found}


def find(name: str) -> Entry:
    """A study by name; an unknown one is an error that names the nearest."""
    return entries()[valid_name(name, list(entries()), "study")]
