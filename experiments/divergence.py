"""Which settings diverge: AUC losses on raw, sigmoid and normalised scores, over learning rates and momenta.

    deepauc study run experiments/paper.py divergence && deepauc study table experiments/paper.py divergence

The menu's recipe (`best`) without first stage, margin 1, 32 positives in 128, from random weights at a constant
learning rate, for a few steps of the plain loop. A run ends with its validation AUC, or where the loss or the
scores are no number any more: then that step is recorded. On a GPU: C10 at 1 %, ResNet20. On a CPU: scikit-learn's
digits, one seed, fewer steps. A finished run is written down at once; the same call does the rest.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from deepauc.studies.records.tables import Books, Page, Table
from deepauc.studies.sources import BenchmarkSource, Place, TaskSource, without_test
from deepauc.training.engine.loop import chosen_device, train
from deepauc.training.recipe import Bound, Recipe
from deepauc.training.run.folder import surroundings
from deepauc.training.run.interrupt import TrainingStopped
from deepauc.training.schedule import Constant
from experiments.best_recipe import TITLES, best
from experiments.smoke import DigitsSource

NAME = "divergence"
Loss = Literal["auc_m", "pairwise"]
LOSSES: tuple[Loss, ...] = ("auc_m", "pairwise")  # AUC-S at margin 1 is AUC-M as long as alpha is not 0: it never was
BOUNDS: tuple[Bound, ...] = ("none", "sigmoid", "l2")
BOUND_TITLES = {"none": "raw", "sigmoid": "sigmoid", "l2": "BSN"}
RATES, MOMENTA = (0.1, 0.02, 0.003), (0.0, 0.9)
_SHAPE = ("task", "network", "steps", "batch_size", "positives")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """On what, with which network, for how many steps."""

    source: TaskSource
    network: Literal["R", "S"]
    steps: int
    batch_size: int = 128
    positives: int = 32
    seeds: tuple[int, ...] = (100, 101)

    @classmethod
    def on(cls, device: torch.device) -> Settings:
        """In full on a GPU, in small on a CPU."""
        if device.type == "cuda":
            return cls(source=BenchmarkSource(benchmark="C10", imratio=0.01), network="R", steps=120)
        return cls(source=DigitsSource(imratio=0.2), network="R", steps=60, seeds=(100,))


def run(
    place: Place,
    settings: Settings | None = None,
    *,
    device: str | None = None,
    max_minutes: float | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """All runs that are not in the record yet; the record. max_minutes: none begins after that. left: those to come."""
    target, began = chosen_device(device), time.monotonic()
    settings, left = settings or Settings.on(target), 0
    path = place.results / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    there = {_key(record) for record in records(place.results)}
    for seed, loss, bound, lr, momentum in product(settings.seeds, LOSSES, BOUNDS, RATES, MOMENTA):
        about = {"loss": loss, "bound": bound, "lr": lr, "momentum": momentum, "seed": seed, **_described(settings)}
        if _key(about) in there:
            continue
        if max_minutes is not None and time.monotonic() - began >= 60 * max_minutes:
            left += 1
            continue
        task = without_test(settings.source.load(seed, tuning=True, place=place))
        recipe = _recipe(settings, loss, bound, lr, momentum)
        folder = place.runs / NAME
        shutil.rmtree(folder, ignore_errors=True)
        found: dict[str, Any] = {"stopped_at": None, "validation_auc": None}
        try:
            done = train(recipe, task, seed=seed, run_dir=folder, device=target, engine="plain")
        except (TrainingStopped, ValueError) as error:
            found |= {"stopped_at": _step(folder), "message": " ".join(str(error).split())[:200]}
        else:
            (estimate,) = done.auc("validation").values()
            found["validation_auc"] = round(float(estimate.value), 5)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**about, **found, **surroundings(target)}) + "\n")
        if report is not None:
            report(
                f"{TITLES[loss]}, {BOUND_TITLES[bound]}, lr {lr:g}, momentum {momentum:g}, seed {seed}: {_entry(found)}"
            )
    shutil.rmtree(place.runs / NAME, ignore_errors=True)
    return {"record": str(path), "runs": len(records(place.results)), "left": left}


def _recipe(settings: Settings, loss: Loss, bound: Bound, lr: float, momentum: float) -> Recipe:
    recipe = best(
        loss=loss,
        first_stage="none",
        lr=lr,
        momentum=momentum,
        weight_decay=0.0,
        bound=bound,
        positives=settings.positives,
        batch_size=settings.batch_size,
        network=settings.network,
        affine=False,
        colour=False,
        cutout=False,
        precision="float32",
    )
    (stage,) = recipe.stages
    return replace(recipe, stages=(replace(stage, epochs=None, iterations=settings.steps, schedule=Constant()),))


def _described(settings: Settings) -> dict[str, Any]:
    return {
        "task": settings.source.name,
        "network": settings.network,
        "steps": settings.steps,
        "batch_size": settings.batch_size,
        "positives": settings.positives,
    }


def _key(record: dict[str, Any]) -> str:
    return json.dumps([record[name] for name in ("loss", "bound", "lr", "momentum", "seed", *_SHAPE)])


def _step(folder: Path) -> int | None:
    """The step at which training was stopped, where it said so; on a GPU the scores are looked at now and then."""
    path = folder / "stopped.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["iteration"]) if path.exists() else None


def records(results: Path) -> list[dict[str, Any]]:
    """All runs so far, in the order in which they ended."""
    path = results / f"{NAME}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def _lines(books: Books) -> Iterator[list[str]]:
    """One for each setting, its seeds side by side."""
    by_setting: dict[tuple[Any, ...], list[str]] = {}
    for record in records(books.results):
        key = tuple(record[name] for name in (*_SHAPE, "loss", "bound", "lr", "momentum"))
        by_setting.setdefault(key, []).append(_entry(record))
    for (task, network, steps, batch, positives, loss, bound, lr, momentum), entries in by_setting.items():
        where = f"{task}, {network}, {steps} steps of {batch} with {positives} positives"
        yield [where, TITLES[loss], BOUND_TITLES[bound], f"{lr:g}", f"{momentum:g}", " / ".join(entries)]


PAGE = Page(
    name=NAME,
    title="What diverges without a bound on the scores",
    note=(
        "Margin 1, random weights at the start, constant learning rate, no weight decay; AUC-M by PESG, the pairwise "
        "loss by SGD. An entry for each seed: the validation AUC after the last step, or the step at which the loss or "
        "the scores were no number any more (on a GPU noticed with some delay). `NaN on validation`: no step was "
        "stopped, but after an epoch the network in eval mode gave no numbers. R: ResNet20, S: a small network."
    ),
    tables=(Table(header=("where", "loss", "scores", "lr", "momentum", "validation AUC by seed"), lines=_lines),),
)


def _entry(record: dict[str, Any]) -> str:
    if record["validation_auc"] is not None:
        return f"{record['validation_auc']:.3f}"
    if record["stopped_at"] is not None:
        return f"stopped at {record['stopped_at']}"
    return "NaN on validation" if "NaN" in record.get("message", "") else "stopped"
