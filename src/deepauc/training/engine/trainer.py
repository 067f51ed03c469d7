"""The state of a run between its epochs: stages, validation, history, selection, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.kernels.dropout import set_rate, step_dropouts
from deepauc.models.build import architecture, build_model, reset_classifier
from deepauc.training.engine.distributed import ALONE, Ranks, digest
from deepauc.training.engine.ema import WeightAverage
from deepauc.training.engine.frozen import FrozenBackbone
from deepauc.training.engine.offers import TakesTurns
from deepauc.training.engine.rates import slow_backbone
from deepauc.training.engine.step import bounded
from deepauc.training.engine.stream import Stream
from deepauc.training.engine.views import ViewNetwork
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import load_weights, save_weights
from deepauc.training.run.checkpoint import load_state, save_state
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.history import EpochTally
from deepauc.training.run.interrupt import Interrupted, InterruptFlag, stopped_by
from deepauc.training.run.own_files import MODEL, require_own
from deepauc.training.scoring import mean_auc, part_auc, scoring_batch
from deepauc.training.selection import own_measure
from deepauc.training.test_time import copies_in, score_copies

CHECKPOINT_SECONDS = 300  # a long epoch of the plain engine is saved on the way; when does not change the result

ENGINE_OPTIONS = ("capturable", "foreach", "fused")  # of torch's optimizers: set by an engine for its device, no state

SHOWN_SECONDS = 60  # after which a shared file system shows on one machine what was written on another


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a progress bar needs."""

    stage: int
    stages: int
    iteration: int
    iterations: int
    epoch: int
    validation_auc: float | None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The steps `start` to `stop` - 1 of an epoch of a stage; `start` is not 0 only after a resume."""

    stage: Stage
    number: int
    start: int
    stop: int


def preprocessing_of(recipe: Recipe, task: Task) -> Preprocessing:
    """What the recipe makes of the task's inputs before the network sees them."""
    if recipe.input_mean is not None and recipe.input_std is not None:
        return Preprocessing.given(task, mean=recipe.input_mean, std=recipe.input_std)
    return Preprocessing.of(task) if recipe.standardise else Preprocessing.none(task)


class Trainer:
    """What changes during a run, its checkpoint, and what happens between epochs; an engine runs the epochs.

    The plain engine is `loop.run_epoch`, the fast one `fast_step.FastEngine`.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        seed: int,
        folder: RunFolder,
        device: torch.device,
        interrupt: InterruptFlag,
        progress: Callable[[Progress], None] | None,
        *,
        save_seconds: float = 0.0,
        ranks: Ranks = ALONE,
    ) -> None:
        """save_seconds: the least time between two checkpoints at the ends of epochs."""
        self.ranks = ranks
        self.finishing = False  # training is over: the leader asks the other ranks for scores
        self.may_leave = False  # while the final scores are taken: the last epoch's checkpoint is there
        self.recipe, self.task, self.seed, self.folder, self.device = recipe, task, seed, folder, device
        self.interrupt, self.progress, self.save_seconds = interrupt, progress, save_seconds
        self.preprocessing = preprocessing_of(recipe, task)
        shape = task.source.shape
        self.model = build_model(
            recipe.model,
            in_channels=shape[-1],
            num_outputs=task.num_labels,
            seed=seed,
            input_shape=(shape[-1], *shape[:-1]),
        )
        self.model.to(device)
        if device.type == "cuda" and len(shape) == 3:
            self.model.to(memory_format=torch.channels_last)
        if any(stage.drop_rate is not None for stage in recipe.stages) and not step_dropouts(self.model):
            raise ValueError(
                "a stage has a drop_rate, and the network has no dropout layers that a stage can set: give the network "
                "a drop_rate (ResNet20, SmallCNN) or a proj_drop_rate (DenseNet), or leave out the stage's."
            )
        self.frozen = FrozenBackbone(self.model, recipe.model, task, self.preprocessing) if recipe.frozen else None
        if self.frozen is not None:
            self.task, self.preprocessing, self.model = self.frozen.task, self.frozen.preprocessing, self.frozen.head
        self.trained: nn.Module = self.model  # what the stage trains; on views its features with a head behind them
        self.images: Tensor | None = None  # all inputs on the device, where an engine has put them there
        self.stage_number = self.iteration = 0
        self.history: list[dict[str, Any]] = []
        self.test_curve: list[dict[str, Any]] = []
        self.alphas: list[Tensor] = []
        self.best: dict[str, Any] | None = None  # the stage's best epoch on validation: auc, epoch, weights
        self._seconds_before, self._began = 0.0, time.monotonic()
        self._saved_at = time.monotonic()

    def epochs(self) -> Iterator[Epoch]:
        """The epochs that are left, one after the other, each to be run before the next is asked for."""
        saved = load_state(self.folder.checkpoint_path) if self.folder.checkpoint_path.exists() else None
        at = "no checkpoint" if saved is None else f"stage {saved['stage']}, step {saved['iteration']}"
        self.ranks.require_same("the checkpoint they see", at)
        if saved is not None:
            self.stage_number = saved["stage"]
        for number in range(self.stage_number, len(self.recipe.stages)):
            self.stage_number = number
            stage = self.recipe.stages[number]
            self._begin_stage(stage, resumed=saved is not None)
            if saved is not None:
                self._restore(saved)
                saved = None
            self._require_same_weights()
            while self.iteration < self.total and not self._out_of_patience(stage):
                epoch, start = divmod(self.iteration, self.stream.per_epoch)
                if start == 0:
                    self.tally = EpochTally(watched=self.recipe.watch, on_views=stage.on_views)
                stop = min(self.stream.per_epoch, start + self.total - self.iteration)
                yield Epoch(stage=stage, number=epoch, start=start, stop=stop)
                self._end_epoch(stage, epoch)
            self._end_stage(stage)

    def _begin_stage(self, stage: Stage, *, resumed: bool) -> None:
        """Stream, prior, loss and optimizer of a stage; its weights unless a checkpoint brings them."""
        place = self.stage_number if stage.place is None else stage.place
        if not resumed:
            if stage.start_from is not None:
                require_own(stage.start_from, MODEL, force=None)
                load_weights(Path(stage.start_from) / "model.safetensors", self.model, own_classifier=True)
            if stage.reset_classifier:
                reset_classifier(self.model, seed=hash_key(self.seed, place) >> 1)
        self.iteration = 0
        self.best = None
        self.stream = Stream(self.task, stage, seed=self.seed, number=place)
        self.ranks.require_rows(self.stream.batch_size, pieces=stage.accumulate)
        self.total = stage.iterations or (stage.epochs or 0) * self.stream.per_epoch
        self.objective = stage.build_objective(prior=self.stream.prior, num_rows=len(self.task)).to(self.device)
        set_rate(self.model, stage.drop_rate)
        self.trained = self.model
        if stage.on_views:
            head_seed = hash_key(self.seed, place, *b"head") >> 1
            self.trained = ViewNetwork(self.model, projection=stage.projection, seed=head_seed)
        self.optimizer = stage.optimizer.build(self.trained.parameters(), self.objective)
        if stage.splits_layers:
            slow_backbone(self.optimizer, self.model, rate=stage.backbone_rate, graded=stage.graded_rates)
        if isinstance(self.optimizer, TakesTurns):
            self.optimizer.set_bound(partial(bounded, bound=stage.resolved_bound))
        if not resumed and self.ranks.leads:
            self._warn_of_zero_reference(stage)
        self.average = WeightAverage(self.trained, stage.ema) if stage.ema else None
        self.tally = EpochTally(watched=self.recipe.watch, on_views=stage.on_views)

    def _warn_of_zero_reference(self, stage: Stage) -> None:
        """PESG pulls towards 0 what other training has found."""
        pretrained = architecture(self.recipe.model) != self.recipe.model
        trained = self.stage_number > 0 or stage.start_from is not None or pretrained
        zero = any(group.get("reference") == "zero" and group["gamma"] for group in self.optimizer.param_groups)
        if trained and zero:
            warnings.warn(
                f"Stage {self.stage_number} starts from trained weights, and reference='zero' pulls them towards 0: "
                "until the first milestone gamma is a weight decay. Use reference='start' to stay near these weights.",
                UserWarning,
                stacklevel=2,
            )

    def _end_stage(self, stage: Stage) -> None:
        self._write_curves()
        if isinstance(self.optimizer, TakesTurns):
            self.optimizer.finish()
        if self.average is not None:
            self.average.write_to(self.trained)
        if stage.keep == "best" and self.best is not None:
            self.model.load_state_dict(self.best["weights"])
        if (self.recipe.guard or self.recipe.keep_stages) and not stage.on_views and self.ranks.leads:
            save_weights(self.folder.stage_path(self.stage_number), self.network())

    def after_step(self, epoch: Epoch, position: int) -> None:
        """Between steps: progress, and a checkpoint where one is due. The end of the epoch saves itself."""
        if self.progress is not None and self.ranks.leads:
            last = self.history[-1].get("validation_auc") if self.history else None
            self.progress(
                Progress(
                    stage=self.stage_number,
                    stages=len(self.recipe.stages),
                    iteration=self.iteration,
                    iterations=self.total,
                    epoch=epoch.number,
                    validation_auc=last,
                )
            )
        stop = self._stop_asked()
        due = stop or time.monotonic() - self._saved_at > CHECKPOINT_SECONDS
        if due and position + 1 < epoch.stop:
            self._save()
            self._leave(stop=stop)

    def _stop_asked(self) -> bool:
        """Whether to stop here: with several ranks, whether any of them was asked to before its last step."""
        return self.interrupt.raised if self.ranks.alone else self.ranks.stop_asked()

    def _leave(self, *, stop: bool) -> None:
        """After a checkpoint: all ranks leave together, and only once it is written."""
        if stop:
            self.ranks.wait()
            self.interrupt.raised = True
            self.interrupt.leave(self.folder)

    def _end_epoch(self, stage: Stage, epoch: int) -> None:
        """Validation, history, checkpoint."""
        row: dict[str, Any] = {"stage": self.stage_number, "epoch": epoch, "iteration": self.iteration}
        row |= {"lr": float(self.optimizer.param_groups[0]["lr"]), **self._summary(epoch)}
        if self.recipe.watch:
            row["weight_square"] = sum(float(p.detach().double().square().sum()) for p in self._weights())
        if stage.on_views:
            row |= {"rows": len(self.stream.rows), "unlabelled_rows": self.stream.unlabelled}
        elif (epoch + 1) % self.recipe.evaluate_every == 0 or self.iteration >= self.total:
            self._evaluate(stage, row)
        self.history.append(row)
        self._require_same_weights()
        stop = self._stop_asked()
        if stop or time.monotonic() - self._saved_at >= self.save_seconds:
            self._write_curves()
            self._save()
            self._leave(stop=stop)

    def _weights(self) -> list[Tensor]:
        """Of the layers: neither biases nor what belongs to normalisation."""
        return [parameter for parameter in self.trained.parameters() if parameter.ndim > 1]

    def _summary(self, epoch: int) -> dict[str, float]:
        """Of the epoch; the fast engine finds out here, not in the step, that a run went astray."""
        try:
            return self.tally.summary(self.objective)
        except ValueError as error:
            kept = "the last checkpoint is kept" if self.folder.checkpoint_path.exists() else "no checkpoint yet"
            where = f"stopped after epoch {epoch} of stage {self.stage_number}"
            raise stopped_by(error, f"{where}: {error} ({kept}.)") from error

    def _evaluate(self, stage: Stage, row: dict[str, Any]) -> None:
        """Validation AUC into the epoch's row, test AUC into a curve of its own."""
        epoch = row["epoch"]
        with self._evaluated_weights():
            if "validation" in self.task.parts:
                scores = self.scores("validation")
                found = part_auc(self.task, "validation", scores)
                row["validation_auc"] = mean_auc(found)
                if len(found) == 1:
                    (only,) = found.values()
                    row |= {"validation_low": only.low, "validation_high": only.high}
                if (measure := own_measure(stage.objective)) is not None:
                    row[measure.column] = measure.mean(self.task, "validation", scores)
                value = row[_chosen_by(stage)]
                if stage.keep == "best" and (self.best is None or value > self.best["auc"]):
                    weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                    self.best = {"auc": value, "epoch": epoch, "weights": weights}
            if self.recipe.test_curve and "test" in self.task.parts:
                auc = mean_auc(part_auc(self.task, "test", self.scores("test")))
                self.test_curve.append({"stage": self.stage_number, "epoch": epoch, "test_auc": auc})

    def _out_of_patience(self, stage: Stage) -> bool:
        """So many epochs of this stage without a better value on validation; read off the history: a resume agrees."""
        if stage.patience is None or "validation" not in self.task.parts:
            return False
        values = [row[_chosen_by(stage)] for row in self.history if row["stage"] == self.stage_number]
        return bool(values) and len(values) - 1 - values.index(max(values)) >= stage.patience

    def network(self) -> nn.Module:
        """The whole network as it is now: what a run's folder keeps."""
        return self.model if self.frozen is None else self.frozen.whole()

    def load_network(self, path: Path) -> None:
        """Go on with the whole network of this file."""
        load_weights(path, self.model if self.frozen is None else self.frozen.network)
        if self.frozen is not None:
            self.frozen.take_head()

    def seconds(self) -> float:
        """Spent on this run so far, over all its starts."""
        return self._seconds_before + time.monotonic() - self._began

    def scores(self, part: str, *, final: bool = False) -> npt.NDArray[np.float32]:
        """Scores of the labelled rows of a part by the network as it is, (n, L); each rank scores its share.

        final: as the recipe's `tta` says; otherwise of the images as they are.
        """
        if self.finishing:
            self.ranks.told(part)
            self.ranks.send_weights(self.model)
        rows, batch = self.task.labelled(part), scoring_batch(self.task, self.device)
        # In whole batches: a score may depend in its last bit on how many rows passed the network with it.
        share = self.ranks.share(len(rows), unit=batch)
        try:
            own = score_copies(
                self.model,
                self.task,
                rows[share],
                self.preprocessing,
                self.device,
                copies=copies_in(part, self.recipe.copies) if final else None,
                resident=self.images,
                progress=self._between_batches if self.may_leave else None,
            )
        except Interrupted:
            if self.ranks.alone:
                raise
        if self.ranks.alone:
            return own
        if self.may_leave:  # whoever was asked to stop is here early; the others come when their share is done
            self._leave(stop=self.ranks.any_wants(self.interrupt.raised))
        return self.ranks.gather(torch.from_numpy(own), len(rows), unit=batch, what="scores").numpy()

    def _between_batches(self, *_: int) -> None:
        """Many copies of many images take long: who asks to stop is heard, and the next call scores them anew."""
        self.interrupt.leave(self.folder)

    def finish(self, write: Callable[[], T]) -> T | None:
        """The leader writes the results; the other ranks score their share of each part it asks for, until it is done.

        The weights come along: the leader may have gone back to those of an earlier stage. Returns what was written,
        None to the others.
        """
        self.may_leave = self.ranks.told(self.folder.checkpoint_path.exists())
        self.finishing = self.ranks.leads and not self.ranks.alone
        written: T | None = None
        if self.ranks.leads:
            written = write()
            self.ranks.told("")
        else:
            while part := self.ranks.told(""):
                self.ranks.send_weights(self.model)
                self.scores(part, final=True)
        self.ranks.wait()
        waited_since = time.monotonic()
        while not self.folder.done and time.monotonic() - waited_since < SHOWN_SECONDS:
            time.sleep(0.1)
        return written

    def _require_same_weights(self) -> None:
        if not self.ranks.alone:
            tensors = (*self.trained.state_dict().values(), *self.objective.state_dict().values())
            self.ranks.require_same("the weights", digest(tensors))

    def _evaluated_weights(self) -> AbstractContextManager[None]:
        if isinstance(self.optimizer, TakesTurns):
            return self.optimizer.weights_in_place()
        return nullcontext() if self.average is None else self.average.in_place_of(self.trained)

    def _write_curves(self) -> None:
        if not self.ranks.leads:
            return
        self.folder.write_rows("history.csv", self.history)
        if self.test_curve:
            self.folder.write_rows("test_curve.csv", self.test_curve)
        if self.alphas:
            rows = [
                {"step": i, **{f"alpha{j}": v for j, v in enumerate(alpha.tolist())}}
                for i, alpha in enumerate(self.alphas)
            ]
            self.folder.write_rows("alpha.csv", rows)

    def save(self) -> None:
        """A checkpoint between two epochs."""
        if self.history:
            self._write_curves()
        self._save()

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if not self.ranks.leads:
            return
        state = {
            "stage": self.stage_number,
            "iteration": self.iteration,
            "model": self.model.state_dict(),
            "head": self.trained.head.state_dict() if isinstance(self.trained, ViewNetwork) else None,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.average,
            "tally": self.tally.state(),
            "history": self.history,
            "test_curve": self.test_curve,
            "alphas": self.alphas,
            "best": self.best,
            "seconds": self.seconds(),
        }
        save_state(self.folder.checkpoint_path, state)
        self._saved_at = time.monotonic()

    def _restore(self, saved: dict[str, Any]) -> None:
        self.iteration = saved["iteration"]
        self.model.load_state_dict(saved["model"])
        if isinstance(self.trained, ViewNetwork):
            self.trained.head.load_state_dict(saved["head"])
        self.objective.load_state_dict(saved["objective"])
        for group, own in zip(saved["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            group |= {name: own[name] for name in ENGINE_OPTIONS if name in own}
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.average is not None:
            self.average.average = [t.to(self.device) for t in saved["average"]]
        self.tally.restore(saved["tally"], self.device)
        self.history, self.test_curve, self.best = saved["history"], saved["test_curve"], saved["best"]
        self.alphas, self._seconds_before = saved["alphas"], saved["seconds"]


def _chosen_by(stage: Stage) -> str:
    """The column of the history that epochs of this stage are chosen by."""
    measure = own_measure(stage.objective)
    return "validation_auc" if measure is None else measure.column
