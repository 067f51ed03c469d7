"""AUCTrainer on tiny random models; skips where transformers is not installed."""

import subprocess
import sys

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from deepauc import ClassQuotaSampler, auroc  # noqa: E402
from deepauc.integrations.huggingface import LOSS_FILE, AUCTrainer, auroc_metrics, head_scores  # noqa: E402
from deepauc.objectives.auc_margin import AUCMargin  # noqa: E402
from deepauc.optim.pesg import PESG, PESGSpec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH, QUOTA = 16, 4


def text_rows(count=120, *, labels_of=lambda row: int(row % 6 == 0)):
    draw = np.random.default_rng(0)
    rows = [{"input_ids": draw.integers(1, 20, 6).tolist(), "labels": labels_of(row)} for row in range(count)]
    for row in rows:
        if row["labels"] in (1, [1.0, 0.0]):
            row["input_ids"][0] = 19
    return rows


def text_model(num_labels=1):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_labels,
        problem_type="multi_label_classification" if num_labels > 2 else None,
    )
    return transformers.BertForSequenceClassification(config)


def arguments(folder, **changes):
    settings = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": BATCH,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
        **changes,
    }
    return transformers.TrainingArguments(str(folder), **settings)


def make_trainer(folder, *, rows=None, model=None, changes=None, **options):
    rows = text_rows() if rows is None else rows
    return AUCTrainer(
        text_model() if model is None else model,
        arguments(folder, **(changes or {})),
        train_dataset=rows,
        train_labels=[row["labels"] for row in rows],
        eval_dataset=rows,
        **options,
    )


def state_of(trainer):
    model = getattr(trainer.model, "module", trainer.model)
    return {**model.state_dict(), **{f"loss.{name}": value for name, value in trainer.loss_fn.state_dict().items()}}


def assert_same_state(found, wanted):
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("outputs", [1, 2])
def test_trains_as_a_plain_loop_does(tmp_path, outputs):
    rows = text_rows()
    trainer = make_trainer(
        tmp_path,
        rows=rows,
        model=text_model(outputs),
        positives_per_batch=QUOTA,
        pesg=PESGSpec(lr=0.05, gamma=0.1),
        objective=AUCMargin(margin=0.7),
        milestones=[1],
        lr_factor=0.5,
    )
    trainer.train()

    model, labels = text_model(outputs), torch.tensor([row["labels"] for row in rows])
    tokens = torch.tensor([row["input_ids"] for row in rows])
    sampler = ClassQuotaSampler(labels, BATCH, QUOTA, seed=42)  # TrainingArguments' seed
    loss_fn = AUCMargin(margin=0.7).build(prior=[sampler.prior])
    optimizer = PESG(model.parameters(), loss_fn, lr=0.05, gamma=0.1)
    model.train()
    for epoch in range(3):
        if epoch == 1:
            optimizer.new_stage(lr_factor=0.5)
        for batch in sampler:
            logits = model(input_ids=tokens[batch]).logits
            scores = logits[:, 0] if outputs == 1 else logits[:, 1] - logits[:, 0]
            loss = loss_fn(torch.sigmoid(scores), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05 * 0.5
    wanted = {**model.state_dict(), **{f"loss.{name}": value for name, value in loss_fn.state_dict().items()}}
    assert_same_state(state_of(trainer), wanted)
    model.eval()
    with torch.no_grad():
        scores = head_scores(model(input_ids=tokens).logits)
    assert trainer.evaluate()["eval_auroc"] == pytest.approx(auroc(scores, labels), abs=1e-12)


@pytest.mark.parametrize("save_steps", [8, 11])  # the end of an epoch of eight steps; the middle of the next
def test_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path, save_steps):
    changes = {"save_strategy": "steps", "save_steps": save_steps}
    options = {"positives_per_batch": QUOTA, "pesg": PESGSpec(lr=0.1, gamma=0.1), "milestones": [1, 2]}
    whole = make_trainer(tmp_path / "whole", changes=changes, **options)
    whole.train()
    checkpoint = tmp_path / "whole" / f"checkpoint-{save_steps}"
    assert (checkpoint / LOSS_FILE).exists()
    again = make_trainer(tmp_path / "again", changes=changes, **options)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.loss_fn.alpha.item() > 0
    assert_same_state(state_of(again), state_of(whole))


def test_checkpoint_of_another_trainer_is_refused(tmp_path):
    changes = {"save_strategy": "steps", "save_steps": 9, "max_steps": 9}
    trainer = make_trainer(tmp_path, changes=changes)
    trainer.train()
    (tmp_path / "checkpoint-9" / LOSS_FILE).unlink()
    with pytest.raises(ValueError, match="not made by AUCTrainer"):
        make_trainer(tmp_path, changes=changes).train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_accumulated_batches_are_averaged(tmp_path):
    """Two halves with equal quotas, accumulated, are the whole batch: the loss is a mean and the prior is fixed."""
    states = []
    for size, pieces in ((16, 1), (8, 2)):
        rows = text_rows()
        order = ClassQuotaSampler([row["labels"] for row in rows], 16, 4).epoch_table(0)
        quota = order[:, [0, 1, *range(4, 10), 2, 3, *range(10, 16)]].reshape(-1)  # either half has two positives
        changes = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": pieces,
            "num_train_epochs": 1,
            "train_sampling_strategy": "sequential",
        }
        try:
            trainer = make_trainer(tmp_path, rows=[rows[i] for i in quota], changes=changes, pesg=PESGSpec(lr=0.1))
        except TypeError:
            pytest.skip("this transformers cannot read a training set in its order")
        trainer.train()
        states.append(state_of(trainer))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-5, atol=1e-6, msg=name)


def picture_rows(count=120):
    pictures = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    rows = [{"pixel_values": picture, "labels": int(i % 6 == 0)} for i, picture in enumerate(pictures)]
    for row in rows:
        row["pixel_values"][0, :4, :4] += row["labels"]
    return rows


def picture_model(seed=0):
    """ViT, whose checkpoints transformers 5 writes under the names that its weights had in version 4."""
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize("shard_size", [None, "4KB"])
def test_resumed_image_classifier_has_all_of_its_weights(tmp_path, monkeypatch, shard_size):
    if shard_size is not None:
        save = transformers.PreTrainedModel.save_pretrained
        monkeypatch.setattr(
            transformers.PreTrainedModel,
            "save_pretrained",
            lambda model, *given, **options: save(model, *given, **{**options, "max_shard_size": shard_size}),
        )
    options = {"rows": picture_rows(), "positives_per_batch": QUOTA, "pesg": PESGSpec(lr=0.1, gamma=0.1)}
    options["changes"] = {"save_strategy": "steps", "save_steps": 11}
    whole = make_trainer(tmp_path / "whole", model=picture_model(), **options)
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-11"
    assert (checkpoint / "model.safetensors").exists() == (shard_size is None)
    again = make_trainer(tmp_path / "again", model=picture_model(seed=1), **options)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert_same_state(state_of(again), state_of(whole))


def test_best_image_classifier_is_loaded_with_all_of_its_weights(tmp_path):
    changes = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    marks = iter([0.1, 0.9, 0.2])
    trainer = make_trainer(
        tmp_path,
        rows=picture_rows(),
        model=picture_model(),
        changes={**changes, "metric_for_best_model": "mark"},
        positives_per_batch=QUOTA,
        compute_metrics=lambda _: {"mark": next(marks)},
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best == str(tmp_path / f"checkpoint-{trainer.state.global_step * 2 // 3}")
    wanted = transformers.ViTForImageClassification.from_pretrained(best).state_dict()
    assert_same_state(trainer.model.state_dict(), wanted)


def test_image_classifier(tmp_path):
    rows, model = picture_rows(), picture_model()
    changes = {"num_train_epochs": 6}  # enough whatever first weights a version of torch draws
    trainer = make_trainer(tmp_path, rows=rows, model=model, changes=changes, positives_per_batch=QUOTA)
    before = trainer.evaluate()["eval_auroc"]
    trainer.train()
    assert trainer.evaluate()["eval_auroc"] > before + 0.2


def test_several_labels_with_missing_ones(tmp_path):
    rows = text_rows(labels_of=lambda row: [float(row % 6 == 0), float(row % 4 == 0), float(row % 3 == 0)])
    rows[1]["labels"][2] = float("nan")
    trainer = make_trainer(tmp_path, rows=rows, model=text_model(3), changes={"num_train_epochs": 1})
    assert trainer.loss_fn.num_labels == 3
    assert trainer.loss_fn.prior[2] == pytest.approx(np.nanmean([row["labels"][2] for row in rows]))
    trainer.train()
    assert (trainer.loss_fn.alpha > 0).all()
    assert 0 <= trainer.evaluate()["eval_auroc"] <= 1


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0.1), ("weight_decay", 1e-4)])
def test_options_that_would_not_be_used_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match="PESGSpec"):
        make_trainer(tmp_path, changes={name: value})


@pytest.mark.parametrize(
    "labels_of",
    [lambda row: int(row % 6 == 0), lambda row: [float(row % 6 == 0), row % 4 / 3 if row % 4 % 3 == 0 else np.nan]],
)
def test_labels_in_another_order_than_the_data_set_are_refused(tmp_path, labels_of):
    rows = text_rows(labels_of=labels_of)
    given = [row["labels"] for row in rows]
    options = {"train_dataset": rows, "positives_per_batch": QUOTA}
    AUCTrainer(text_model(2), arguments(tmp_path), train_labels=given, **options)
    with pytest.raises(ValueError, match=r"train_labels\[[25]\] is .* in its order"):
        AUCTrainer(text_model(2), arguments(tmp_path), train_labels=[*given[1:], given[0]], **options)


def test_labels_of_another_length(tmp_path):
    rows = text_rows()
    with pytest.raises(ValueError, match="train_labels has 3 rows"):
        AUCTrainer(text_model(), arguments(tmp_path), train_dataset=rows, train_labels=[0, 1, 0])


def test_labels_that_are_not_0_or_1(tmp_path):
    rows = text_rows(labels_of=lambda row: 1 if row % 6 == 0 else -1)
    with pytest.raises(ValueError, match=r"pass \(labels > 0\)"):
        make_trainer(tmp_path, rows=rows)


def test_batch_without_labels(tmp_path):
    trainer = make_trainer(tmp_path)
    with pytest.raises(ValueError, match="no 'labels'"):
        trainer.compute_loss(trainer.model, {"input_ids": torch.ones(2, 6, dtype=torch.long)})


def test_heads():
    logits = torch.tensor([[1.0, 3.0], [2.0, 0.5]])
    assert head_scores(logits).tolist() == [2.0, -1.5]
    assert head_scores(logits[:, :1]).tolist() == [1.0, 2.0]
    assert head_scores(logits, num_labels=2) is logits
    with pytest.raises(ValueError, match="1 or 2 outputs"):
        head_scores(torch.zeros(4, 5))
    with pytest.raises(ValueError, match="3 outputs"):
        head_scores(torch.zeros(4, 5), num_labels=3)


def test_metrics_of_the_evaluation_set():
    labels = np.array([0, 1, 0, 1])
    given = transformers.EvalPrediction(
        predictions=np.array([[0.0, 1.0], [0.0, 4.0], [3.0, 0.0], [0.0, 0.5]]), label_ids=labels
    )
    assert auroc_metrics(given) == {"auroc": 0.75}


TWO_PROCESSES = """
import importlib.util, os, sys
import torch

spec = importlib.util.spec_from_file_location("here", sys.argv[1])
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
world = int(os.environ.get("WORLD_SIZE", "1"))
changes = {"per_device_train_batch_size": here.BATCH // world, "ddp_backend": "gloo" if world > 1 else None}
options = {"positives_per_batch": here.QUOTA, "pesg": here.PESGSpec(lr=0.1, gamma=0.1), "milestones": [1]}
trainer = here.make_trainer(sys.argv[2], changes=changes, **options)
trainer.train()
if trainer.args.process_index == 0:
    torch.save(here.state_of(trainer), sys.argv[3])
if world > 1:  # nobody leaves while another still speaks
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
    """Quota and batch are global, the gradients of a, b and alpha averaged: the same state up to rounding."""
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    for name, prefix in (("one", []), ("two", launch)):
        command = [sys.executable, *prefix, str(script), __file__, str(tmp_path / name), str(tmp_path / f"{name}.pt")]
        subprocess.run(command, check=True, timeout=300)
    one, two = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("quota", [None, QUOTA])
def test_columns_that_the_model_does_not_take_are_left_out(tmp_path, quota):
    rows = [{**row, "sentence": f"row {number}", "idx": number} for number, row in enumerate(text_rows())]
    plain = make_trainer(tmp_path / "plain", positives_per_batch=quota)
    more = make_trainer(tmp_path / "more", rows=rows, positives_per_batch=quota)
    for trainer in (plain, more):
        trainer.train()
    assert_same_state(state_of(more), state_of(plain))
    assert more.evaluate()["eval_auroc"] == plain.evaluate()["eval_auroc"]


class OnlyScores(torch.nn.Module):
    """A model without a loss of its own: its forward knows no labels."""

    def __init__(self):
        super().__init__()
        self.inner = text_model()

    def forward(self, input_ids):
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.inner(input_ids).logits)


@pytest.mark.parametrize("quota", [None, QUOTA])
def test_a_model_that_knows_no_labels_trains_and_is_evaluated(tmp_path, quota):
    trainer = make_trainer(tmp_path, model=OnlyScores(), positives_per_batch=quota)
    trainer.train()
    found = trainer.evaluate()
    assert 0 <= found["eval_auroc"] <= 1
    assert "eval_loss" in found


def test_milestones_beside_a_schedule_that_watches_are_refused(tmp_path):
    watches = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}
    with pytest.raises(ValueError, match="both lower lr"):
        make_trainer(tmp_path, changes=watches, milestones=[1])
