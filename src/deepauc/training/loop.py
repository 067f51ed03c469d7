"""`train`: from a recipe and a task to a run folder, in a loop that reads from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.models.build import build_model, reset_classifier
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.optim.pesg import PESG
from deepauc.training.bundle import load_weights, save_weights
from deepauc.training.checkpoint import load_state, save_state
from deepauc.training.ema import WeightAverage
from deepauc.training.folder import RunFolder, surroundings
from deepauc.training.history import EpochTally
from deepauc.training.interrupt import InterruptFlag, stopped_at
from deepauc.training.plain import recipe_hash, to_plain
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run import Run, finish_run
from deepauc.training.scoring import mean_auc, part_auc, score_rows
from deepauc.training.step import backward_whole_batch
from deepauc.training.stream import Stream

CHECKPOINT_SECONDS = 300  # a long epoch is saved on the way; when does not change the result


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a progress bar needs."""

    stage: int
    stages: int
    iteration: int
    iterations: int
    epoch: int
    validation_auc: float | None


def train(
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    run_dir: str | Path,
    device: str | torch.device | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train by the recipe, and leave a run folder. The same call again goes on where it was stopped, to the bit.

    device: None takes a GPU when there is one. A finished folder is returned as it is; one that holds another run
    (other recipe, data or seed) is refused.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    identity = {"recipe": recipe_hash(recipe), "data": task.data_hash(), "seed": seed}
    folder = RunFolder.claim(
        run_dir,
        identity,
        {
            "recipe": to_plain(recipe),
            "task": {"name": task.name, "kind": task.kind, "labels": list(task.label_names)}
            | {"shape": list(task.source.shape), "rows": {p: len(task.labelled(p)) for p in task.parts}},
            **surroundings(device),
        },
    )
    if folder.done:
        return Run(folder.path)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), InterruptFlag() as interrupt, _determinism(wanted=recipe.deterministic):
        trainer = _Trainer(recipe, task, seed, folder, device, interrupt, progress)
        trainer.run()
    return finish_run(folder, recipe, task, trainer.model, trainer.preprocessing, device, trainer.seconds)


@contextmanager
def _determinism(*, wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Trainer:
    """What changes during a run, and nothing else; `state` and `restore` are its checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        seed: int,
        folder: RunFolder,
        device: torch.device,
        interrupt: InterruptFlag,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.recipe, self.task, self.seed, self.folder, self.device = recipe, task, seed, folder, device
        self.interrupt, self.progress = interrupt, progress
        self.preprocessing = Preprocessing.of(task)
        shape = task.source.shape
        self.model = build_model(recipe.model, in_channels=shape[-1], num_outputs=task.num_labels, seed=seed)
        self.model.to(device)
        if device.type == "cuda" and len(shape) == 3:
            self.model.to(memory_format=torch.channels_last)
        self.stage_number = self.iteration = 0
        self.history: list[dict[str, Any]] = []
        self.test_curve: list[dict[str, Any]] = []
        self.alphas: list[Tensor] = []
        self.best: dict[str, Any] | None = None  # the stage's best epoch on validation: auc, epoch, weights
        self.seconds = 0.0
        self._saved_at = time.monotonic()

    def run(self) -> None:
        """All stages that are left."""
        saved = load_state(self.folder.checkpoint_path) if self.folder.checkpoint_path.exists() else None
        if saved is not None:
            self.stage_number = saved["stage"]
        for number in range(self.stage_number, len(self.recipe.stages)):
            self.stage_number = number
            self._begin_stage(self.recipe.stages[number], resumed=saved is not None)
            if saved is not None:
                self._restore(saved)
                saved = None
            self._run_stage(self.recipe.stages[number])
            if self.recipe.guard:
                save_weights(self.folder.stage_path(number), self.model)

    def _begin_stage(self, stage: Stage, *, resumed: bool) -> None:
        """Stream, prior, loss and optimizer of a stage; its weights unless a checkpoint brings them."""
        if not resumed:
            if stage.start_from is not None:
                load_weights(Path(stage.start_from) / "model.safetensors", self.model)
            if stage.reset_classifier:
                reset_classifier(self.model, seed=hash_key(self.seed, self.stage_number) >> 1)
        self.iteration = 0
        self.best = None
        self.stream = Stream(self.task, stage, seed=self.seed, number=self.stage_number)
        self.total = stage.iterations or (stage.epochs or 0) * self.stream.per_epoch
        self.objective = stage.objective.build(prior=self.stream.prior).to(self.device)
        self.optimizer = stage.optimizer.build(self.model.parameters(), self.objective)
        self.average = WeightAverage(self.model, stage.ema) if stage.ema else None
        self.tally = EpochTally()

    def _run_stage(self, stage: Stage) -> None:
        while self.iteration < self.total and not self._out_of_patience(stage):
            epoch, position = divmod(self.iteration, self.stream.per_epoch)
            if position == 0:
                self.tally = EpochTally()
            self._run_epoch(stage, epoch, position)
            self._end_epoch(stage, epoch)
        if self.average is not None:
            self.average.write_to(self.model)
        if stage.keep == "best" and self.best is not None:
            self.model.load_state_dict(self.best["weights"])

    def _run_epoch(self, stage: Stage, epoch: int, start: int) -> None:
        """The steps of an epoch from `start` on; step t reads row t of the epoch's tables."""
        table = self.stream.table(epoch)
        changes = None
        if stage.augment is not None:
            changes = stage.augment.draw(table.size, seed=self.stream.seed, epoch=epoch).to(self.device)
        began = time.monotonic()
        self.model.train()
        stop = min(len(table), start + self.total - self.iteration)
        for position in range(start, stop):
            rows = table[position]
            factor = stage.schedule.factor(self.iteration, total=self.total, per_epoch=self.stream.per_epoch)
            for group in self.optimizer.param_groups:
                group["lr"] = stage.optimizer.lr * factor
            if isinstance(self.optimizer, PESG) and stage.schedule.renews(
                self.iteration, per_epoch=self.stream.per_epoch
            ):
                self.optimizer.new_stage(lr_factor=1.0)
            torch.manual_seed(hash_key(self.stream.seed, epoch, position) >> 1)  # dropout, if there is any

            inputs = torch.from_numpy(self.task.inputs(rows)).to(self.device, non_blocking=True)
            labels = torch.from_numpy(self.stream.labels[rows]).to(self.device, non_blocking=True)
            weights = None
            if self.stream.weights is not None:
                weights = torch.from_numpy(self.stream.weights[rows]).to(self.device)
            if stage.augment is not None and changes is not None:
                mine = changes.values[position * len(rows) : (position + 1) * len(rows)]
                inputs = stage.augment.apply(inputs, mine)
                inputs, labels = stage.augment.mix(inputs, labels, mine)

            self.optimizer.zero_grad(set_to_none=True)
            inputs = self.preprocessing(inputs)
            with stopped_at(self.iteration, rows, self.folder, self.model, inputs):
                loss, scores = backward_whole_batch(self.model, inputs, labels, weights, self.objective, stage)
            if stage.gradient_clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), stage.gradient_clip)
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.model)
            self.iteration += 1

            self.tally.add(loss, scores, labels, self.objective)
            if self.recipe.alpha_curve and isinstance(self.objective, SaddleLoss):
                self.alphas.append(self.objective.alpha.detach().clone())
            if self.progress is not None:
                self.progress(self._progress(epoch))
            due = self.interrupt.raised or time.monotonic() - self._saved_at > CHECKPOINT_SECONDS
            if due and position + 1 < stop:  # the end of the epoch saves itself
                self.seconds += time.monotonic() - began
                began = time.monotonic()
                self._save()
                self.interrupt.leave(self.folder)
        self.seconds += time.monotonic() - began

    def _end_epoch(self, stage: Stage, epoch: int) -> None:
        """Validation, history, checkpoint."""
        row: dict[str, Any] = {"stage": self.stage_number, "epoch": epoch, "iteration": self.iteration}
        row |= {"lr": self.optimizer.param_groups[0]["lr"], **self.tally.summary(self.objective)}
        with self._evaluated_weights():
            if "validation" in self.task.parts:
                found = part_auc(self.task, "validation", self._scores("validation"))
                row["validation_auc"] = mean_auc(found)
                if len(found) == 1:
                    (only,) = found.values()
                    row |= {"validation_low": only.low, "validation_high": only.high}
                if stage.keep == "best" and (self.best is None or row["validation_auc"] > self.best["auc"]):
                    weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                    self.best = {"auc": row["validation_auc"], "epoch": epoch, "weights": weights}
            if self.recipe.test_curve and "test" in self.task.parts:
                auc = mean_auc(part_auc(self.task, "test", self._scores("test")))
                self.test_curve.append({"stage": self.stage_number, "epoch": epoch, "test_auc": auc})
        self.history.append(row)
        self._write_curves()
        self._save()
        self.interrupt.leave(self.folder)

    def _out_of_patience(self, stage: Stage) -> bool:
        """So many epochs of this stage without a better validation AUC; read off the history, so a resume agrees."""
        if stage.patience is None or "validation" not in self.task.parts:
            return False
        aucs = [row["validation_auc"] for row in self.history if row["stage"] == self.stage_number]
        return bool(aucs) and len(aucs) - 1 - aucs.index(max(aucs)) >= stage.patience

    def _scores(self, part: str) -> Any:
        return score_rows(self.model, self.task, self.task.labelled(part), self.preprocessing, self.device)

    def _evaluated_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_place_of(self.model)

    def _write_curves(self) -> None:
        self.folder.write_rows("history.csv", self.history)
        if self.test_curve:
            self.folder.write_rows("test_curve.csv", self.test_curve)
        if self.alphas:
            rows = [
                {"step": i, **{f"alpha{j}": v for j, v in enumerate(alpha.tolist())}}
                for i, alpha in enumerate(self.alphas)
            ]
            self.folder.write_rows("alpha.csv", rows)

    def _progress(self, epoch: int) -> Progress:
        last = self.history[-1].get("validation_auc") if self.history else None
        return Progress(
            stage=self.stage_number,
            stages=len(self.recipe.stages),
            iteration=self.iteration,
            iterations=self.total,
            epoch=epoch,
            validation_auc=last,
        )

    def _save(self) -> None:
        state = {
            "stage": self.stage_number,
            "iteration": self.iteration,
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.average,
            "tally": self.tally.state(),
            "history": self.history,
            "test_curve": self.test_curve,
            "alphas": self.alphas,
            "best": self.best,
            "seconds": self.seconds,
        }
        save_state(self.folder.checkpoint_path, state)
        self._saved_at = time.monotonic()

    def _restore(self, saved: dict[str, Any]) -> None:
        self.iteration = saved["iteration"]
        self.model.load_state_dict(saved["model"])
        self.objective.load_state_dict(saved["objective"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.average is not None:
            self.average.average = [t.to(self.device) for t in saved["average"]]
        self.tally = EpochTally.of(saved["tally"], self.device)
        self.history, self.test_curve, self.best = saved["history"], saved["test_curve"], saved["best"]
        self.alphas, self.seconds = saved["alphas"], saved["seconds"]
