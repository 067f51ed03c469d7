"""`AUCTrainer`: any image or text classifier of Hugging Face's, trained with an AUC loss and PESG.

This module, and nothing that `import deepauc` loads, imports transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    EvalPrediction,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from deepauc.data.samplers import ClassQuotaSampler, Labels
from deepauc.labels import invalid_labels, label_message
from deepauc.metrics.auroc import auroc
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.optim.pesg import PESG, PESGSpec, require_factor

LOSS_FILE = "auc_loss.safetensors"
"""a, b and alpha beside the optimizer in each checkpoint: without them a resumed run would start them at 0."""

CHECKED_ROWS = 8  # of the positives, and of the others, whose labels are looked up in the data set


class AUCTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """`transformers.Trainer` with AUC-M (or AUC-S) on sigmoid scores, PESG, and batches with a quota of positives.

    The head may have one output, two (the score is the difference of the logits), or one per label for several labels.
    Labels are 0/1 under `labels`, (N,) or (N, L), NaN where missing. The model is called without them: its own loss
    is not used. Not for DeepSpeed and FSDP, which shard the optimizer's state.

    Args:
        model: The classifier.
        args: The training arguments, with learning_rate and weight_decay at their defaults, since they would not be
            used.
        train_dataset: The training set.
        train_labels: Its labels in its order, (N,) or (N, L): prior and quota come from them.
        objective: The spec of the loss.
        pesg: Learning rate, gamma, weight decay and momentum.
        positives_per_batch: Positives in the global batch, per_device_train_batch_size times the processes; None is the
            Trainer's own shuffling.
        milestones: Epochs at whose start a stage begins (`PESG.new_stage`).
        lr_factor: What the learning rate is multiplied with there; with lr_scheduler_type="constant" nothing else
            changes it.
        eval_dataset: The validation set.
        data_collator: As in the Trainer.
        processing_class: As in the Trainer.
        compute_metrics: `auroc_metrics` unless given.
        callbacks: As in the Trainer.
    """

    loss_is_scaled_for_ga = False  # a mean over the batch: the Trainer divides by the accumulation steps

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        train_dataset: Dataset[Any],
        train_labels: Labels,
        objective: AUCMargin | AUCSquare = AUCMargin(),  # noqa: B008  (frozen)
        pesg: PESGSpec = PESGSpec(),  # noqa: B008
        positives_per_batch: int | None = None,
        milestones: Sequence[int] = (),
        lr_factor: float = 0.1,
        eval_dataset: Dataset[Any] | None = None,
        data_collator: Callable[..., Any] | None = None,
        processing_class: Any = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        _require_pesg_decides(args)
        labels = np.asarray(train_labels.detach().cpu() if isinstance(train_labels, Tensor) else train_labels)
        if len(labels) != len(train_dataset):  # type: ignore[arg-type]
            raise ValueError(f"train_labels has {len(labels)} rows, but train_dataset has {len(train_dataset)}.")  # type: ignore[arg-type]
        values = torch.as_tensor(labels.astype(np.float64))
        if (bad := invalid_labels(values, soft=objective.soft_labels)).any():
            raise ValueError(label_message(values[bad].numpy(), soft=objective.soft_labels))
        _require_same_order(labels, train_dataset)
        self._quota: ClassQuotaSampler | None = None
        if positives_per_batch is not None:
            self._quota = ClassQuotaSampler(
                labels,
                args.per_device_train_batch_size * args.world_size,
                positives_per_batch,
                args.seed if args.data_seed is None else args.data_seed,
                rank=args.process_index,
                world_size=args.world_size,
            )
        prior = np.nanmean(values.numpy(), axis=0) if self._quota is None else self._quota.prior
        self.loss_fn = objective.build(prior=np.atleast_1d(prior).tolist()).to(args.device)
        self.pesg = pesg
        if milestones and args.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError("milestones and lr_scheduler_type='reduce_lr_on_plateau' both lower lr: give one of them.")
        stages = [_Stages(milestones, lr_factor)] if milestones else []
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=auroc_metrics if compute_metrics is None else compute_metrics,
            callbacks=[*callbacks, *stages],
        )
        if args.label_names is None:  # not those of the model's own loss, which is not used
            self.label_names = ["labels"]
        self.model_accepts_loss_kwargs = False  # what loss_is_scaled_for_ga says, to transformers before 5

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The AUC loss of the batch's sigmoid scores."""
        given = dict(inputs)
        labels = given.pop("labels", None)
        if labels is None:
            raise ValueError("the batch has no 'labels': name the column of 0/1 labels so, or map it in data_collator.")
        outputs = model(**given)
        scores = head_scores(outputs.logits, num_labels=self.loss_fn.num_labels)
        loss = self.loss_fn(torch.sigmoid(scores.float()), labels)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """The Trainer's; a, b and alpha are not the model's, so the ranks average their gradients here."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.args.world_size > 1:
            for parameter in self.loss_fn.parameters():
                if parameter.grad is not None:
                    parameter.grad.copy_(self.accelerator.reduce(parameter.grad, reduction="mean"))
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """PESG over the trainable parameters and the loss's own."""
        if self.optimizer is None:
            trained = [p for p in (self.model if model is None else model).parameters() if p.requires_grad]
            optimizer = self.pesg.build(trained, self.loss_fn)
            # The Trainer calls model.zero_grad(), which would leave the gradients of a, b and alpha to pile up.
            optimizer.register_step_post_hook(lambda *_: self.loss_fn.zero_grad())
            self.optimizer: torch.optim.Optimizer = optimizer
        return self.optimizer

    def get_train_dataloader(self) -> DataLoader[Any]:
        """With a quota, each process draws its share of the batch itself; otherwise the Trainer's."""
        if self._quota is None:
            return super().get_train_dataloader()
        return _QuotaLoader(
            self.train_dataset,
            batch_sampler=self._quota,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            state = {name: value.detach().cpu().contiguous() for name, value in self.loss_fn.state_dict().items()}
            save_file(state, Path(output_dir) / LOSS_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / LOSS_FILE
        if not path.exists():
            raise ValueError(
                f"{path} is missing: this checkpoint was not made by AUCTrainer, or with save_only_model=True. Start "
                "without resuming."
            )
        self.loss_fn.load_state_dict(load_file(path))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not _restored_by_other_names(self.model if model is None else model, Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if not _restored_by_other_names(self.model, Path(self.state.best_model_checkpoint)):
            super()._load_best_model()


def head_scores(logits: Tensor, *, num_labels: int = 1) -> Tensor:
    """Scores (N,) for one label, (N, L) for several, from the logits of a classification head.

    One output is the score; of two outputs, class 0 and class 1, it is the difference, the logit of a softmax.

    Args:
        logits: (N, C) of the head.
        num_labels: L; 1 where two outputs are the two classes.
    """
    if logits.ndim == 1 or (num_labels > 1 and logits.ndim == 2 and logits.shape[1] == num_labels):
        return logits
    if num_labels == 1 and logits.ndim == 2 and logits.shape[1] in (1, 2):
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    wanted = "1 or 2 outputs" if num_labels == 1 else f"{num_labels} outputs"
    raise ValueError(
        f"logits of shape {tuple(logits.shape)} for {num_labels} label{'s' * (num_labels > 1)}: "
        f"give the classification head {wanted}."
    )


def auroc_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """`auroc` of the evaluation set, the mean over labels where there are several; for `compute_metrics`.

    Args:
        prediction: What the Trainer hands over: logits and labels.
    """
    given = prediction.predictions
    logits = torch.as_tensor(np.asarray(given[0] if isinstance(given, tuple) else given)).double()
    labels = np.asarray(prediction.label_ids)
    scores = head_scores(logits, num_labels=1 if labels.ndim == 1 else labels.shape[1])
    return {"auroc": float(np.mean(auroc(scores.numpy(), labels)))}


def _restored_by_other_names(model: nn.Module, checkpoint: Path) -> bool:
    """Load weights that the checkpoint holds under names the model does not have; False where all names are its own.

    `save_pretrained` writes some models (ViT in transformers 5) with the names of older versions. `from_pretrained`
    knows both; the Trainer does not (huggingface/transformers#43701): it warns, and goes on with the weights that the
    model was built with.
    """
    if not isinstance(model, PreTrainedModel) or _saved_names(checkpoint) <= set(model.state_dict()):
        return False
    model.load_state_dict(type(model).from_pretrained(checkpoint, local_files_only=True).state_dict())
    return True


def _saved_names(checkpoint: Path) -> set[str]:
    """The names of the weights in a checkpoint's safetensors; none where it has no such file, as with adapters."""
    single, index = checkpoint / "model.safetensors", checkpoint / "model.safetensors.index.json"
    if single.exists():
        with safe_open(single, framework="pt") as file:
            return set(file.keys())
    return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"]) if index.exists() else set()


class _QuotaLoader(DataLoader[Any]):
    """Tells the sampler the epoch, which is how the Trainer resumes in the middle of one."""

    def set_epoch(self, epoch: int) -> None:
        assert isinstance(self.batch_sampler, ClassQuotaSampler)
        self.batch_sampler.set_epoch(epoch)


class _Stages(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """`new_stage` at the start of the milestones; a run resumed inside an epoch has passed its milestone already."""

    def __init__(self, milestones: Sequence[int], lr_factor: float) -> None:
        if any(epoch != int(epoch) or epoch < 1 for epoch in milestones):
            raise ValueError(f"milestones are epochs of at least 1, not {list(milestones)}: a stage ends before them.")
        require_factor(lr_factor)
        self.milestones, self.lr_factor = {int(epoch) for epoch in milestones}, lr_factor

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch = float(state.epoch or 0.0)
        if abs(epoch - round(epoch)) > 1e-6 or round(epoch) not in self.milestones:
            return
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])  # accelerate wraps it
        assert isinstance(optimizer, PESG)
        optimizer.new_stage(lr_factor=self.lr_factor)
        # Every scheduler of the Trainer's sets lr to a multiple of what it was at the start: that decays, too.
        scheduler = kwargs["lr_scheduler"]
        scheduler.base_lrs = [base * self.lr_factor for base in scheduler.base_lrs]


def _require_same_order(labels: np.ndarray[Any, Any], dataset: Dataset[Any]) -> None:
    """ValueError where some rows, half of them positives, have other labels in the data set: the quota would miss."""
    columns = labels.astype(np.float64).reshape(len(labels), -1)
    positive = (columns == 1).any(axis=1)
    for rows in (np.flatnonzero(positive), np.flatnonzero(~positive)):
        for row in rows[:: max(1, len(rows) // CHECKED_ROWS)][:CHECKED_ROWS].tolist():
            item = dataset[row]
            found = item.get("labels", item.get("label")) if isinstance(item, Mapping) else None
            if found is None:
                continue  # data_collator makes them
            theirs = np.asarray(found, dtype=np.float64).reshape(-1)
            if not np.array_equal(columns[row], theirs, equal_nan=True):
                raise ValueError(
                    f"train_labels[{row}] is {_written(columns[row])}, and train_dataset has {_written(theirs)} in row "
                    f"{row}: give the labels of the data set, in its order."
                )


def _written(values: np.ndarray[Any, Any]) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())


def _require_pesg_decides(args: TrainingArguments) -> None:
    defaults = {"learning_rate": 5e-5, "weight_decay": 0.0}
    for name, default in defaults.items():
        if getattr(args, name) != default:
            short = "lr" if name == "learning_rate" else name
            raise ValueError(
                f"TrainingArguments({name}={getattr(args, name)}) would not be used: "
                f"give it to the optimizer, pesg=PESGSpec({short}={getattr(args, name)})."
            )
