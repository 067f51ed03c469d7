"""The ablations A2 to A5 of section 5, each declared beside the claim it checks.

    deepauc study run experiments/paper.py ablations --cells A3-D --device cuda  # A2 to A5; D or R
    deepauc study table experiments/paper.py ablations  # claims with intervals; A6 too; pictures

Settings are fixed, not tuned: the normalised loss, lr 0.1, gamma 1/500, otherwise as the benchmark tables; five
training sets, test AUC of every fifth epoch. D: DenseNet121, the paper's network; R: ResNet20 in its place, whose
easy positives are those that ResNet20 ranks first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deepauc.studies.sources import BenchmarkSource, TaskSource
from deepauc.studies.study import Study, StudySet
from deepauc.training.recipe import Recipe
from experiments.ablation_tasks import SET, ChangedSource, RankingSource
from experiments.recipes import auc_m, auc_s, ce

NETWORKS = ("D", "R")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`better` has a higher test AUC than `worse`, both names of studies; ablation: A2 to A5."""

    ablation: str
    text: str
    better: str
    worse: str


def _study(name: str, task: TaskSource, method: Callable[..., Recipe], fixed: dict[str, Any]) -> Study:
    """name: `A3-D-noise_1-auc_m`; the second part is the network."""
    ablation, network, data = name.split("-")[:3]
    return Study(
        name=name,
        task=task,
        method=method,
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
            auc_m,
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
            f"A3-{network}-noise_{p}-{method.__name__}",
            ChangedSource(benchmark="C2", imratio=0.01, noise=p / 100),
            method,
            m,
        )
        for p in (1, 5)
        for method, m in ((auc_m, {"margin": 0.3}), (auc_s, {}))
    ]


def a4(network: str) -> list[Study]:
    """Easy positives: the top 10 % and 20 % by a CE model; m = 0.3 as printed, and 0.1, which BSN can reach."""
    ranking = ranking_of(network)
    return [
        _study(ranking, RankingSource(benchmark="C2", imratio=0.01), ce, {}),
        *(
            _study(
                f"A4-{network}-easy_{p}-{name}",
                ChangedSource(benchmark="C2", imratio=0.01, easy=p / 100, ranking=ranking),
                method,
                m,
            )
            for p in (10, 20)
            for name, method, m in (
                ("auc_m", auc_m, {"margin": 0.3}),
                ("auc_m_reachable", auc_m, {"margin": 0.1}),
                ("auc_s", auc_s, {}),
            )
        ),
    ]


def a5(network: str) -> list[Study]:
    """alpha >= 0 on and off: 40 % easy, 1 % wrong labels, m = 0.1; alpha of each step is kept."""
    task = ChangedSource(benchmark="C2", imratio=0.01, easy=0.4, noise=0.01, ranking=ranking_of(network))
    return [
        _study(f"A5-{network}-alpha-{name}", task, auc_m, {"margin": 0.1, "constrain_alpha": constrained})
        for name, constrained in (("constrained", True), ("free", False))
    ]


def claims() -> list[Claim]:
    """What the paper says of them, by network."""
    return [claim for network in NETWORKS for claim in _claims(network)]


def _claims(network: str) -> list[Claim]:
    bounds = [
        Claim(
            ablation="A2",
            text=f"{name.replace('_', ' at ')} %: BSN helps, against {other} scores",
            better=f"A2-{network}-{name}-bsn",
            worse=f"A2-{network}-{name}-{other}",
        )
        for name in dict.fromkeys(study.name.split("-")[2] for study in a2(network))
        for other in ("sigmoid", "raw")
    ]
    data = [
        Claim(
            ablation=ablation,
            text=f"{text}, m = {m}: AUC-M above AUC-S",
            better=f"{ablation}-{network}-{name}-{method}",
            worse=f"{ablation}-{network}-{name}-auc_s",
        )
        for ablation, name, text, method, m in (
            ("A3", "noise_1", "1 % noise", "auc_m", 0.3),
            ("A3", "noise_5", "5 % noise", "auc_m", 0.3),
            ("A4", "easy_10", "10 % easy", "auc_m", 0.3),
            ("A4", "easy_10", "10 % easy", "auc_m_reachable", 0.1),
            ("A4", "easy_20", "20 % easy", "auc_m", 0.3),
            ("A4", "easy_20", "20 % easy", "auc_m_reachable", 0.1),
        )
    ]
    alpha = Claim(
        ablation="A5",
        text="40 % easy, 1 % noise, m = 0.1: alpha >= 0 helps",
        better=f"A5-{network}-alpha-constrained",
        worse=f"A5-{network}-alpha-free",
    )
    return [*bounds, *data, alpha]


def ablations() -> StudySet:
    """All of them, the paper's network first; the ranking of A4 comes before the studies that need it."""
    return StudySet(
        name=SET,
        title="The paper's ablations: BSN (A2), noisy (A3) and easy data (A4), alpha >= 0 (A5), two networks",
        studies=tuple(s for which in NETWORKS for part in (a3, a4, a5, a2) for s in part(which)),
    )
