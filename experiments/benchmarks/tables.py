"""The paper's two benchmark tables (section 4.1 and appendix): four sets, two networks, two imratios, four losses.

    deepauc study run experiments/paper.py paper-tables --cells C10-R-1 --device cuda
    deepauc study table experiments/paper.py paper-tables

Selection: validation AUC at the last epoch, averaged over three training sets at 1 % and on one at 10 %; then a refit
on all training images with five random training sets. At 1 % a validation part holds 25 positives, and the standard
error of one AUC is about .05. DenseNet121 takes over the margin and gamma (focal's alpha and gamma) that ResNet20 has
selected and, in `paper`, chooses learning rate and momentum itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepauc.studies.sources import BenchmarkSource
from deepauc.studies.study import Inherits, Study, StudySet
from experiments.benchmarks.recipes import METHODS, RECIPES

SET = "paper-tables"
BENCHMARKS = ("C10", "C2", "C100", "S10")
LOSSES = tuple(METHODS)
SETS_TO_TUNE_ON = {1: (0, 1, 2), 10: (0,)}

# Mean and standard deviation over five training sets: CE, Focal, AUC-S, AUC-M. Tables 1 and 8 of the paper.
_PUBLISHED: Mapping[tuple[str, str, int], tuple[tuple[float, float], ...]] = {
    ("C2", "D", 1): ((0.718, 0.018), (0.713, 0.009), (0.803, 0.018), (0.809, 0.016)),
    ("C10", "D", 1): ((0.698, 0.017), (0.700, 0.007), (0.745, 0.010), (0.760, 0.006)),
    ("S10", "D", 1): ((0.641, 0.032), (0.660, 0.027), (0.669, 0.070), (0.703, 0.030)),
    ("C100", "D", 1): ((0.588, 0.011), (0.591, 0.017), (0.607, 0.010), (0.614, 0.016)),
    ("C2", "R", 1): ((0.730, 0.028), (0.724, 0.020), (0.748, 0.007), (0.756, 0.017)),
    ("C10", "R", 1): ((0.690, 0.011), (0.681, 0.011), (0.702, 0.015), (0.715, 0.008)),
    ("S10", "R", 1): ((0.641, 0.021), (0.634, 0.024), (0.645, 0.029), (0.659, 0.020)),
    ("C100", "R", 1): ((0.563, 0.015), (0.565, 0.022), (0.587, 0.017), (0.596, 0.016)),
    ("C2", "D", 10): ((0.893, 0.004), (0.879, 0.005), (0.901, 0.002), (0.902, 0.001)),
    ("C10", "D", 10): ((0.898, 0.005), (0.879, 0.005), (0.889, 0.002), (0.887, 0.005)),
    ("S10", "D", 10): ((0.820, 0.015), (0.819, 0.010), (0.825, 0.013), (0.846, 0.015)),
    ("C100", "D", 10): ((0.710, 0.007), (0.705, 0.007), (0.720, 0.003), (0.723, 0.006)),
    ("C2", "R", 10): ((0.920, 0.004), (0.881, 0.008), (0.897, 0.007), (0.920, 0.006)),
    ("C10", "R", 10): ((0.898, 0.004), (0.851, 0.018), (0.872, 0.007), (0.898, 0.005)),
    ("S10", "R", 10): ((0.825, 0.013), (0.813, 0.009), (0.819, 0.013), (0.821, 0.011)),
    ("C100", "R", 10): ((0.669, 0.006), (0.666, 0.012), (0.686, 0.005), (0.695, 0.003)),
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkCell:
    """A place in the paper's tables; percent: the imratio."""

    benchmark: str
    network: str
    percent: int

    @property
    def name(self) -> str:
        return f"{self.benchmark}-{self.network}-{self.percent}"

    def published(self, loss: str) -> tuple[float, float]:
        """The paper's mean and standard deviation."""
        return _PUBLISHED[self.benchmark, self.network, self.percent][LOSSES.index(loss)]

    def study_name(self, recipe: str, loss: str) -> str:
        return f"{self.name}-{recipe}-{loss}"


# The order of the runs: ResNet20 first, set by set, then DenseNet121 at 1 %, then at 10 %.
PAPER_CELLS = (
    *(BenchmarkCell(benchmark=b, network="R", percent=p) for b in BENCHMARKS for p in (1, 10)),
    *(BenchmarkCell(benchmark=b, network="D", percent=p) for p in (1, 10) for b in BENCHMARKS),
)


def cell_study(cell: BenchmarkCell, recipe: str, loss: str) -> Study:
    """One loss in one cell; DenseNet121 inherits ResNet20's margin and gamma, and tunes its learning rate alone."""
    named, inherits = RECIPES[recipe], None
    grid = named.grids[loss]
    fixed = {**named.fixed[loss], "network": cell.network, "batch_size": 32 if cell.benchmark == "S10" else 128}
    if cell.network == "D":
        parent = BenchmarkCell(benchmark=cell.benchmark, network="R", percent=cell.percent)
        grid = named.rate_grid(loss)
        if axes := named.printed(loss):
            inherits = Inherits(study=parent.study_name(recipe, loss), axes=axes)
    return Study(
        name=cell.study_name(recipe, loss),
        task=BenchmarkSource(benchmark=cell.benchmark, imratio=cell.percent / 100),
        method=METHODS[loss],
        fixed=fixed,
        grid=grid,
        tuning_seeds=SETS_TO_TUNE_ON[cell.percent],
        inherits=inherits,
        curve_every=5,
        group=cell.name,
    )


def paper_tables() -> StudySet:
    """Both tables, all cells, both recipes."""
    return StudySet(
        name=SET,
        title="The paper's benchmark tables: C2, C10, C100, S10 at 1 % and 10 %, ResNet20 and DenseNet121",
        studies=tuple(cell_study(cell, recipe, loss) for cell in PAPER_CELLS for recipe in RECIPES for loss in LOSSES),
    )
