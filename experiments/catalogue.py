"""The studies of the paper by name, each with the page and the pictures made from its records."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from deepauc.studies.entry import Entry
from deepauc.studies.sources import Place


def _run_toy(
    place: Place,
    *,
    device: str | None = None,
    max_minutes: float | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    from experiments import toy_study

    del report  # it takes seconds
    if device not in (None, "cpu") or max_minutes is not None:
        raise ValueError("the toy study is run whole, on a CPU: leave --device and --max-minutes out.")
    return toy_study.run(place)


def _toy_runs(results: Path) -> tuple[int, int | None, Path]:
    from experiments import toy_study

    path = results / toy_study.NAME / "toy.json"
    return int(path.exists()), 1, path


def _divergence_runs(results: Path) -> tuple[int, int | None, Path]:
    """On a GPU it has another task and more seeds than on a CPU, and both are kept: there is no one number of all."""
    from experiments import divergence

    return len(divergence.records(results)), None, results / f"{divergence.NAME}.jsonl"


@cache
def entries() -> dict[str, Entry]:
    """All of them; made when asked for."""
    from experiments import (
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
        reproduction,
        smoke,
        toy_study,
    )
    from experiments.ablations import ablations
    from experiments.benchmark_tables import paper_tables
    from experiments.best_levers import best_set

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
        *(
            Entry(
                name=one.name,
                title=one.title,
                studies=one,
                table=reproduction.page(one).markdown,
                summary=reproduction.page(one).summary,
                settled=reproduction.settled if one.name == "fair" else None,
            )
            for one in reproduction.reproduction_sets()
        ),
    ]
    return {entry.name: entry for entry in found}
