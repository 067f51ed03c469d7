"""The ablations A2 to A5 of section 5, each declared beside the claim it checks.

    deepauc study run experiments/paper.py ablations --cells A3-D --device cuda  # A2 to A5; D or R
    deepauc study table experiments/paper.py ablations  # claims with intervals; A6 too; pictures

Settings are fixed, not tuned: the normalised loss, lr 0.1, gamma 1/500, otherwise as the benchmark tables; five
training sets, test AUC of every fifth epoch. D: DenseNet121, the paper's network; R: ResNet20 in its place, whose
easy positives are those that ResNet20 ranks first.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from deepauc.studies.records import tables as t
from deepauc.studies.sources import BenchmarkSource, TaskSource
from deepauc.studies.study import Study, StudySet
from deepauc.text_tables import percent_text
from experiments.benchmarks.ablation_tasks import SET, ChangedSource, RankingSource
from experiments.benchmarks.recipes import METHODS, RECIPES
from experiments.benchmarks.tables import PAPER_CELLS

NETWORKS = ("D", "R")
PAPER_MARGINS = {"C2": 0.7, "C10": 0.8, "S10": 0.7, "C100": 0.5}  # A6: average best m


def _study(name: str, task: TaskSource, loss: str, fixed: dict[str, Any]) -> Study:
    """name: `A3-D-noise_1-auc_m`; the second part is the network."""
    ablation, network, data = name.split("-")[:3]
    return Study(
        name=name,
        task=task,
        method=METHODS[loss],
        fixed={"network": network, **fixed},
        group=f"{ablation}-{network}-{data}",
        test_curve=name != ranking_of(network),
        alpha_curve=ablation == "A5",
        curve_every=5,  # of short epochs: scoring the test part after each would take a quarter of the time
    )


def ranking_of(network: str) -> str:
    """The study whose cross-entropy says which of the removed positives are easy."""
    return f"A4-{network}-ranking"


# A2: batch score normalisation on, off behind a sigmoid, off with raw scores at a learning rate that trains.
BOUNDS: dict[str, dict[str, Any]] = {
    "bsn": {"bound": "l2"},
    "sigmoid": {"bound": "sigmoid"},
    "raw": {"bound": "none", "lr": 0.003},
}


def a2(network: str) -> list[Study]:
    """BSN on and off, AUC-M at m = 1, four sets at both imratios."""
    return [
        _study(
            f"A2-{network}-{b}_{p}-{bound}",
            BenchmarkSource(benchmark=b, imratio=p / 100),
            "auc_m",
            {**options, "margin": 1.0},
        )
        for b in ("C2", "C10", "C100", "S10")
        for p in (1, 10)
        for bound, options in BOUNDS.items()
    ]


def a3(network: str) -> list[Study]:
    """Wrong labels: 1 % and 5 % of either kind on C2 at 1 %, m = 0.3."""
    return [
        _study(
            f"A3-{network}-noise_{p}-{loss}",
            ChangedSource(benchmark="C2", imratio=0.01, noise=p / 100),
            loss,
            m,
        )
        for p in (1, 5)
        for loss, m in (("auc_m", {"margin": 0.3}), ("auc_s", {}))
    ]


def a4(network: str) -> list[Study]:
    """Easy positives: the top 10 % and 20 % by a CE model; m = 0.3 as printed, and 0.1, which BSN can reach."""
    ranking = ranking_of(network)
    return [
        _study(ranking, RankingSource(benchmark="C2", imratio=0.01), "ce", {}),
        *(
            _study(
                f"A4-{network}-easy_{p}-{name}",
                ChangedSource(benchmark="C2", imratio=0.01, easy=p / 100, ranking=ranking),
                loss,
                m,
            )
            for p in (10, 20)
            for name, loss, m in (
                ("auc_m", "auc_m", {"margin": 0.3}),
                ("auc_m_reachable", "auc_m", {"margin": 0.1}),
                ("auc_s", "auc_s", {}),
            )
        ),
    ]


def a5(network: str) -> list[Study]:
    """alpha >= 0 on and off: 40 % easy, 1 % wrong labels, m = 0.1; alpha of each step is kept."""
    task = ChangedSource(benchmark="C2", imratio=0.01, easy=0.4, noise=0.01, ranking=ranking_of(network))
    return [
        _study(f"A5-{network}-alpha-{name}", task, "auc_m", {"margin": 0.1, "constrain_alpha": constrained})
        for name, constrained in (("constrained", True), ("free", False))
    ]


def claims(network: str) -> list[t.Row]:
    """What the paper says of them: the first study has a higher test AUC than the other."""
    found = [
        ("A2", f"{name.replace('_', ' at ')} %: BSN helps, against {other} scores", f"{name}-bsn", other)
        for name in dict.fromkeys(study.name.split("-")[2] for study in a2(network))
        for other in ("sigmoid", "raw")
    ]
    found += [
        (ablation, f"{text}, m = {m}: AUC-M above AUC-S", f"{name}-{method}", "auc_s")
        for ablation, name, text, method, m in (
            ("A3", "noise_1", "1 % noise", "auc_m", 0.3),
            ("A3", "noise_5", "5 % noise", "auc_m", 0.3),
            ("A4", "easy_10", "10 % easy", "auc_m", 0.3),
            ("A4", "easy_10", "10 % easy", "auc_m_reachable", 0.1),
            ("A4", "easy_20", "20 % easy", "auc_m", 0.3),
            ("A4", "easy_20", "20 % easy", "auc_m_reachable", 0.1),
        )
    ]
    found += [("A5", "40 % easy, 1 % noise, m = 0.1: alpha >= 0 helps", "alpha-constrained", "free")]
    return [_row((ablation, text), f"{ablation}-{network}-{better}", worse) for ablation, text, better, worse in found]


def _row(labels: tuple[str, ...], study: str, versus: str | None = None) -> t.Row:
    """In summary.json ablations.A3-D-noise_1: `auc_m`, `auc_s`, and their difference `auc_m-auc_s`."""
    data, _, kind = study.rpartition("-")
    return t.Row(labels=labels, study=study, versus=versus and f"{data}-{versus}", key=(SET, data, kind))


def ablations() -> StudySet:
    """All of them, the paper's network first; the ranking of A4 comes before the studies that need it."""
    return StudySet(
        name=SET,
        title="The paper's ablations: BSN (A2), noisy (A3) and easy data (A4), alpha >= 0 (A5), two networks",
        studies=tuple(s for which in NETWORKS for part in (a3, a4, a5, a2) for s in part(which)),
    )


def _positives(line: t.Line) -> str:
    positives = sum(sum(record["score_histogram"]["train"]["positive"]) for record in line.final)
    return percent_text(positives / sum(record["task"]["rows"]["train"] for record in line.final))


def _margins(books: t.Books) -> Iterator[list[str]]:
    for benchmark, published in PAPER_MARGINS.items():
        for recipe in RECIPES:
            own = [cell for cell in PAPER_CELLS if cell.benchmark == benchmark and cell.network == "R"]
            runs = (books("paper-tables").final(cell.study_name(recipe, "auc_m"))[:1] for cell in own)
            if chosen := [record["config"]["margin"] for some in runs for record in some]:
                yield [benchmark, recipe, f"{published:g}", f"{fmean(chosen):.2f}", str(len(chosen))]


_NETWORK = t.Column("network", lambda line: t.each_once(record["fixed"]["network"] for record in line.final))
_NEGATIVE = t.Column("alpha < 0", lambda line: t.share_text(line.final, "alpha_negative_share"))
PAGE = t.Page(
    name=SET,
    title="The paper's ablations",
    note=(
        "Test AUC of the last epoch; D: DenseNet121, R: ResNet20. A claim is confirmed or refuted where the paired 95 "
        "% t-interval leaves out 0. Where alpha is never 0, the margin is never met: AUC-M is the square loss with "
        "margin m, and what sets it apart from AUC-S is m, not the constraint alpha >= 0. Cat&Dog (C2) has other "
        "pixels than the paper's. A1 is on the page of the study `toy`."
    ),
    tables=(
        t.study_table(
            SET,
            title="Claims",
            labels=("ablation", "claim"),
            rows=[row for network in NETWORKS for row in claims(network)],
            columns=(_NETWORK, t.PAIRS, t.DIFFERENCE, t.VERDICT, t.ALPHA_ZERO),
        ),
        t.study_table(
            SET,
            title="Runs",
            note=(
                "`alpha = 0`, `alpha < 0`: shares of steps, the latter where alpha of each step was kept. `diverged`: "
                "runs that ended without a test AUC."
            ),
            labels=("study",),
            rows=[_row((study.name,), study.name) for study in ablations().studies],
            columns=(
                *(t.MEAN, t.SETS, t.DIVERGED, t.Column("positives in training", _positives), _NETWORK),
                *(t.ALPHA_ZERO, _NEGATIVE, t.SECONDS, t.CUT),
            ),
        ),
        t.Table(
            title="A6: the margin",
            note="Average of the selected m over the cells of a set, beside the paper's average over its trials.",
            header=("set", "recipe", "paper", "ours", "cells"),
            lines=_margins,
        ),
    ),
)
