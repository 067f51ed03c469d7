"""The paper with the settings of its authors' releases: `notebook`, `released`, `causes`, `fair`, `released-ablations`.

    FILE=experiments/paper.py
    deepauc study run $FILE notebook --device cuda                          # C10-R-10 as in the authors' notebook
    deepauc study run $FILE released --cells '*-1-untuned-*' --device cuda  # all cells at 1 %, m 1, gamma 1/500
    deepauc study run $FILE causes --cells C2-D-1 --device cuda             # one setting undone at a time
    deepauc study run $FILE fair --cells 'D,*-D-*' --device cuda            # twice: the second call has the best five

Named before any run: the primary contrast of `fair` is AUC-M minus CE over its cells at 1 %, one for each network
(`PRIMARY`). Nothing is chosen on test; tuning sets are numbers 100 and up, which no final run has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepauc.studies.grid import Grid, sample
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import BenchmarkSource, FoldSource
from deepauc.studies.study import Inherits, Study, StudySet
from experiments.benchmarks import halving
from experiments.benchmarks.ablation_tasks import ChangedSource, RankingSource
from experiments.benchmarks.halving import BestOf, PooledSource
from experiments.benchmarks.recipes import FOCAL_ALPHAS, FOCAL_GAMMAS, GAMMAS, MARGINS
from experiments.benchmarks.released_recipes import LOSSES, fair, released
from experiments.benchmarks.tables import BENCHMARKS

NETWORKS = ("D", "R")
TUNED_ON = ("C2", "C10", "C100")
FOLDS = 10  # of which the first is held out
DRAWN, DRAW_SEED, BEST = 16, 32, 5
PRIMARY = {
    network: tuple((f"{b}-{network}-1-fair-auc_m", f"{b}-{network}-1-fair-ce") for b in BENCHMARKS)
    for network in NETWORKS
}


def _pooled(percent: int) -> FoldSource:
    return FoldSource(source=PooledSource(benchmarks=TUNED_ON, imratio=percent / 100), folds=FOLDS)


def _sets(percent: int, benchmarks: Sequence[str], sets: Sequence[int]) -> tuple[int, ...]:
    """Seeds of the `FoldSource` whose first fold of these sets is held out."""
    pooled = PooledSource(benchmarks=TUNED_ON, imratio=percent / 100)
    return tuple(FOLDS * pooled.number(b, n) for b in benchmarks for n in sets)


def _cell(benchmark: str, network: str, percent: int, loss: str, kind: str, **more: Any) -> Study:
    """A loss in a cell of the paper's tables; all of a cell and kind go together."""
    fixed = {"loss": loss, "network": network, "batch_size": 32 if benchmark == "S10" else 128, **more.pop("fixed", {})}
    return Study(
        name=f"{benchmark}-{network}-{percent}-{kind}-{loss}",
        task=BenchmarkSource(benchmark=benchmark, imratio=percent / 100),
        method=more.pop("method", released),
        fixed=fixed,
        group=f"{benchmark}-{network}-{percent}-{kind}",
        **more,
    )


def notebook() -> StudySet:
    """(a) ResNet20 on C10 at 10 %, ReLU, sigmoid scores: test .895 at the last epoch, training AUC .97."""
    fixed = {"activation": "relu", "bound": "sigmoid", "watch": True}
    study = _cell("C10", "R", 10, "auc_m", "notebook", fixed=fixed, test_curve=True, curve_every=10)
    title = "The authors' notebook: C10 at 10 %, ResNet20, ReLU, sigmoid scores, AUC-M, five training sets"
    return StudySet(name="notebook", title=title, studies=(study,))


PRINTED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "focal": {"focal_alpha": FOCAL_ALPHAS, "focal_gamma": FOCAL_GAMMAS},
    "auc_s": {"gamma": GAMMAS},
    "auc_m": {"margin": MARGINS, "gamma": GAMMAS},
}


def _printed_tuning(network: str, percent: int, loss: str) -> Study:
    """(b) The printed grid, chosen once for the cells of a network and imratio; CE has nothing to choose."""
    return Study(
        name=f"{network}-{percent}-tuning-{loss}",
        task=_pooled(percent),
        method=released,
        fixed={"loss": loss, "network": network},
        grid=sample(PRINTED[loss], n=DRAWN, seed=DRAW_SEED),
        tuning_seeds=_sets(percent, TUNED_ON, (100,)),
        group=f"{network}-{percent}-tuning",
    )


def _tuned(benchmark: str, network: str, percent: int, loss: str) -> Study:
    inherits = Inherits(study=f"{network}-{percent}-tuning-{loss}", axes=tuple(PRINTED[loss]))
    return _cell(benchmark, network, percent, loss, "tuned", inherits=inherits)


def released_set() -> StudySet:
    """(b) Every cell untuned, then with what the printed grids give."""
    studies: list[Study] = []
    for percent in (1, 10):
        cells = [(b, n, percent) for n in NETWORKS for b in BENCHMARKS]
        studies += [_cell(*cell, loss, "untuned") for cell in cells for loss in LOSSES]
        studies += [_printed_tuning(n, percent, loss) for n in NETWORKS for loss in PRINTED]
        studies += [_tuned(*cell, loss) for cell in cells for loss in PRINTED]
    title = "The paper's tables with the releases' settings: untuned, and with m and gamma from the printed grids"
    return StudySet(name="released", title=title, studies=tuple(studies))


# (c) What is undone, one at a time: for both losses, for AUC-M, for CE. The last two of CE separate loss and weights.
BOTH_CAUSES: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "no_clip": {"clip_value": None},
    "no_dropout": {"dropout": 0.0},
    "norm_momentum": {"norm_momentum": 0.1},
    "he": {"start": "he"},
    "images": {"standardised": True},
    "norms_free": {"decay_norms": False},
}
OWN_CAUSES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "auc_m": {
        "reference": {"reference": "start"},
        "decay": {"gamma": 0.0, "weight_decay": 0.0021},
        "divided": {"normalise": True},
        "sigmoid": {"bound": "sigmoid"},
        "alpha": {"alpha_step": "gradient"},
    },
    "ce": {"decay": {"weight_decay": 0.0021}, "prior_weights": {"prior_weights": True}, "third": {"scale": 1 / 3}},
}


def causes() -> StudySet:
    """(c) AUC-M and CE in C2-D-1; the largest effects again in C10-D-1, of which --cells names some."""
    studies = tuple(
        _cell(b, "D", 1, f"{loss}-{name}", "causes", fixed={**change, "loss": loss, "watch": True}, seeds=seeds)
        for b, seeds in (("C2", (0, 1, 2, 3, 4)), ("C10", (0, 1, 2)))
        for loss, own in OWN_CAUSES.items()
        for name, change in {**BOTH_CAUSES, **own}.items()
    )
    title = "What makes AUC-M's gain: the releases' settings undone one at a time, DenseNet121 at 1 %"
    return StudySet(name="causes", title=title, studies=studies)


# (d) The same number of settings for each loss, from one menu.
_MENU: Mapping[str, tuple[Any, ...]] = {
    "lr": (0.01, 0.03, 0.1, 0.3),
    "momentum": (0.0, 0.9),
    "decay": (1e-4, 5e-4, 2e-3, 6e-3, 2e-2),
    "positives": (0, 32),
}
_AUC = {"decay_by": ("decay", "pull"), "normalise": (False, True), "bound": ("l2", "sigmoid")}
_SCALE = {"scale": (1.0, 1 / 3, 0.1)}
_OWN_MENU: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "ce": _SCALE,
    "focal": {**_SCALE, **PRINTED["focal"]},
    "auc_s": _AUC,
    "auc_m": {**_AUC, "margin": MARGINS},
}


def menu(network: str, loss: str) -> Grid:
    """Sixteen settings drawn by seed."""
    dropout = {"dropout": (0.0, 0.3)} if network == "D" else {}
    return sample({**_MENU, **dropout, **_OWN_MENU[loss]}, n=DRAWN, seed=DRAW_SEED)


# Rounds: sixteen settings on two sets of C2, the best five on two further sets of each benchmark, and these once more.
ROUNDS = {"first": (("C2",), (100, 101)), "second": (TUNED_ON, (102, 103)), "again": (TUNED_ON, (104, 105))}


def fair_set() -> StudySet:
    """(d) Tuned in two rounds; final runs at 1 %, and of C10 at 10 %. Eight sets for the primary contrast."""
    studies: list[Study] = []
    for network in NETWORKS:
        studies += [
            Study(
                name=f"{network}-fair-{loss}-{turn}",
                task=_pooled(1),
                method=fair,
                fixed={"loss": loss, "network": network},
                grid=menu(network, loss),
                tuning_seeds=_sets(1, *where),
                group=f"{network}-fair-{turn}",
            )
            for turn, where in ROUNDS.items()
            for loss in LOSSES
        ]
        for benchmark, percent in (*((b, 1) for b in BENCHMARKS), ("C10", 10)):
            for loss in LOSSES:
                inherits = Inherits(study=f"{network}-fair-{loss}-second", axes=tuple(menu(network, loss).axes))
                seeds = tuple(range(8 if loss in ("ce", "auc_m") else 5))
                more = {"method": fair, "inherits": inherits, "seeds": seeds}
                studies.append(_cell(benchmark, network, percent, loss, "fair", **more))
    title = "Every loss with the same number of settings from one menu, tuned on other training sets"
    return StudySet(name="fair", title=title, studies=tuple(studies))


LATER = {
    f"{network}-fair-{loss}-{turn}": BestOf(f"{network}-fair-{loss}-first", BEST)
    for network in NETWORKS
    for turn in ("second", "again")
    for loss in LOSSES
}


def settled(studies: Sequence[Study], results: Path) -> tuple[tuple[Study, ...], tuple[Study, ...]]:
    """`fair` with the best five of the first round in the later ones; what waits for that round is left out."""
    return halving.settled(studies, fair_set().studies, LATER, RecordBook(results / "fair"))


ABLATIONS = "released-ablations"


def released_ablations() -> StudySet:
    """(e) A2 to A5 with DenseNet121 on C2 at 1 %, A2 on C10 too; m = 0.1 is in the reach of BSN."""
    ranking = "A4-ranking"

    def study(name: str, task: Any, loss: str, **fixed: Any) -> Study:
        return Study(
            name=name,
            task=task,
            method=released,
            fixed={"loss": loss, **fixed},
            group=name if name == ranking else name[:2],
            test_curve=name != ranking,
            alpha_curve=name.startswith("A5"),
            curve_every=5,
        )

    def pair(name: str, task: Any) -> list[Study]:
        """AUC-M at the printed margin and at one that alpha reaches 0 with, and AUC-S."""
        margins = {"auc_m": 0.3, "auc_m_reachable": 0.1}
        both = [study(f"{name}-{key}", task, "auc_m", margin=m) for key, m in margins.items()]
        return [*both, study(f"{name}-auc_s", task, "auc_s")]

    def changed(*, noise: float = 0.0, easy: float = 0.0) -> ChangedSource:
        source = ChangedSource(benchmark="C2", imratio=0.01, noise=noise)
        return replace(source, easy=easy, ranking=ranking, records=ABLATIONS) if easy else source

    studies = [
        study(f"A2-{b}-{bound}", BenchmarkSource(benchmark=b, imratio=0.01), "auc_m", bound=bound)
        for b in ("C2", "C10")
        for bound in ("l2", "sigmoid")
    ]
    studies += [one for p in (1, 5) for one in pair(f"A3-noise_{p}", changed(noise=p / 100))]
    studies += [study(ranking, RankingSource(benchmark="C2", imratio=0.01), "ce")]
    studies += [one for p in (10, 20) for one in pair(f"A4-easy_{p}", changed(easy=p / 100))]
    studies += [
        study(f"A5-{name}", changed(easy=0.4, noise=0.01), "auc_m", margin=0.1, constrain_alpha=constrained)
        for name, constrained in (("constrained", True), ("free", False))
    ]
    title = "The ablations A2 to A5 with the releases' settings, DenseNet121 on C2 at 1 %, A2 on C10 too"
    return StudySet(name=ABLATIONS, title=title, studies=tuple(studies))


def reproduction_sets() -> tuple[StudySet, ...]:
    """In the order in which they are run."""
    return notebook(), released_set(), causes(), fair_set(), released_ablations()
