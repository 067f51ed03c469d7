"""The pictures of the documentation, computed, not drawn: `python docs/pictures/make.py` writes them beside this file.

loss-and-auc.svg trains a small network on scikit-learn's digits (seconds on a CPU); learning-curves.svg is read from
records in results/; the others are formulas and boxes. The picture of a report is made by report.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss, ClassQuotaSampler, auroc

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
BLUE, ORANGE, GREY = "#1b6ca8", "#d1642c", "#777777"
LOSSES = {
    "ce": ("cross-entropy", "black"),
    "focal": ("focal loss", GREY),
    "auc_s": ("AUC-S", ORANGE),
    "auc_m": ("AUC-M", BLUE),
}


def draw_penalty(axes: Axes) -> None:
    """What AUC-S and AUC-M ask of the distance between the classes' mean scores."""
    gap = np.linspace(-0.5, 2, 300)
    axes.plot(gap, (1 - gap) ** 2, color=ORANGE, label="AUC-S: (1 - gap)²")
    for margin, style in ((1.0, "-"), (0.5, "--")):
        axes.plot(gap, np.maximum(margin - gap, 0) ** 2, style, color=BLUE, label=f"AUC-M, m = {margin:g}: (m - gap)²₊")
    axes.set(xlabel="mean score of positives - mean score of negatives", ylabel="penalty", ylim=(-0.05, 2.3))
    axes.legend(frameon=False)


def draw_one_class_batches(axes: Axes) -> None:
    """Share of plainly shuffled batches without a single positive."""
    share = np.logspace(-3.3, -0.5, 200)
    for size, style in ((32, ":"), (128, "-"), (512, "--")):
        axes.semilogx(100 * share, 100 * (1 - share) ** size, style, color=BLUE, label=f"batch of {size}")
    axes.set(xlabel="positives in the data, %", ylabel="batches without a positive, %")
    axes.legend(frameon=False)


def draw_reach(axes: Axes) -> None:
    """How far apart the class means can be at all, in a batch of 128."""
    positives = np.arange(1, 65)
    axes.plot(positives, np.sqrt(1 / positives + 1 / (128 - positives)), color=BLUE, label="scores of unit L2 norm")
    axes.axhline(1, color=ORANGE, linestyle="--", label="scores behind a sigmoid")
    axes.set(xlabel="positives in a batch of 128", ylabel="largest margin in reach", ylim=(0, 1.1))
    axes.legend(frameon=False)


def trained(steps: int = 300) -> dict[str, list[float]]:
    """The min-max value of each step beside what one should watch, on all training rows."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.as_tensor(digits.data / 16, dtype=torch.float32), torch.as_tensor(digits.target == 8).float()
    model = nn.Sequential(nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 1))
    sampler = ClassQuotaSampler(y, 64, 16)
    loss_fn = AUCMarginLoss(prior=sampler.prior, normalise=False)
    optimizer = PESG(model.parameters(), loss_fn, 0.5)
    curves: dict[str, list[float]] = {"loss": [], "a_m": [], "auc": [], "alpha": [], "alpha_optimal": []}
    while len(curves["loss"]) < steps:
        for rows in sampler:
            loss = loss_fn(torch.sigmoid(model(x[rows]).squeeze(1)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                scores = torch.sigmoid(model(x).squeeze(1))
            seen = loss_fn.diagnose(scores, y)
            values = (loss.item(), seen.value, auroc(scores, y), seen.alpha, seen.alpha_optimal)
            for name, value in zip(curves, values, strict=True):
                curves[name].append(float(value))
            if len(curves["loss"]) == steps:
                break
    return curves


def draw_loss_and_auc(left: Axes, right: Axes) -> None:
    curves = trained()
    steps = range(1, 1 + len(curves["loss"]))
    left.plot(steps, curves["loss"], color=GREY, linewidth=0.7, label="loss of the batch (min-max value)")
    left.plot(steps, curves["alpha"], color=ORANGE, label="alpha")
    left.set(xlabel="step", title="what the loop prints")
    right.plot(steps, curves["a_m"], color=BLUE, label="A_M, from diagnose")
    right.plot(steps, curves["auc"], color="black", label="AUC")
    right.set(xlabel="step", title="what to watch", ylim=(0, 1.05))
    for axes in (left, right):
        axes.legend(frameon=False)


def draw_learning_curves(left: Axes, right: Axes) -> None:
    """Mean test AUC of five training sets, every fifth epoch, of the recipe `literal`."""
    from deepauc.studies.records.book import RecordBook

    book = RecordBook(RESULTS / "paper-tables")
    for axes, cell, title in ((left, "C10-D-1", "C10, DenseNet121, 1 %"), (right, "C10-R-10", "C10, ResNet20, 10 %")):
        for loss, (label, colour) in LOSSES.items():
            curves = np.array([run["test_curve"] for run in book.final(f"{cell}-literal-{loss}")])
            axes.plot(5 * np.arange(1, 1 + curves.shape[1]), curves.mean(0), color=colour, label=label)
        axes.set(xlabel="epoch", ylabel="test AUC", title=title)
    right.legend(frameon=False)


def draw_two_stages(axes: Axes) -> None:
    """What `deepauc train` does, in boxes."""
    from matplotlib.patches import FancyBboxPatch

    boxes = [
        ("table\nof images", "check, split\nby patient", GREY),
        ("contrastive\nstage", "if positives are few,\nimages many and small", GREY),
        ("cross-entropy", "learns\nthe features", "black"),
        ("AUC-M", "learns\nthe order", BLUE),
        ("validation", "keeps the\nbetter network", ORANGE),
        ("report", "test AUC with\nits interval", GREY),
    ]
    for place, (name, does, colour) in enumerate(boxes):
        optional = "--" if place == 1 else "-"
        axes.add_patch(
            FancyBboxPatch(
                (place * 2, 0),
                1.4,
                1,
                boxstyle="round,pad=0.05",
                facecolor="none",
                edgecolor=colour,
                linestyle=optional,
            )
        )
        axes.text(place * 2 + 0.7, 0.5, name, ha="center", va="center", color=colour)
        axes.text(place * 2 + 0.7, -0.25, does, ha="center", va="top", fontsize=8, color=GREY)
        if place:
            axes.annotate("", (place * 2 - 0.08, 0.5), (place * 2 - 0.5, 0.5), arrowprops={"arrowstyle": "->"})
    axes.annotate(
        "",
        (8.7, 1.1),
        (4.7, 1.1),
        arrowprops={"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.25", "linestyle": "--", "color": GREY},
    )
    axes.text(6.7, 1.72, "its network is a candidate, too", ha="center", fontsize=8, color=GREY)
    axes.set(xlim=(-0.2, 11.6), ylim=(-1, 2))
    axes.set_axis_off()


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "deepauc", "svg.fonttype": "none", "font.size": 9, "path.simplify": True})
    from matplotlib import pyplot as plt

    drawings = {
        "penalty": (draw_penalty, 1),
        "one-class-batches": (draw_one_class_batches, 1),
        "reach": (draw_reach, 1),
        "loss-and-auc": (draw_loss_and_auc, 2),
        "learning-curves": (draw_learning_curves, 2),
        "two-stages": (draw_two_stages, 1),
    }
    for name, (draw, columns) in drawings.items():
        size = (8, 2.1) if name == "two-stages" else (5 * columns, 3)
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
        draw(*np.atleast_1d(axes))
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
