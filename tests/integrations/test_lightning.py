"""NewStage and quota_loader inside real Lightning training; skips where lightning is not installed."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl = pytest.importorskip("lightning.pytorch")

from deepauc import PESG, AUCMarginLoss, ClassQuotaSampler  # noqa: E402
from deepauc.integrations.lightning import NewStage, quota_loader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about loggers and workers
BATCH, QUOTA = 16, 4


def make_data():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(120) % 6 == 0).float()
    return torch.randn(120, 5, generator=generator) + labels[:, None], labels


class Module(pl.LightningModule):
    def __init__(self, *, optimizer=PESG):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(5, 1)
        self.loss_fn = AUCMarginLoss(prior=QUOTA / BATCH)
        self.optimizer_class = optimizer
        self.x, self.y = make_data()
        self.rows_seen = []

    def configure_optimizers(self):
        if self.optimizer_class is not PESG:
            return self.optimizer_class(self.parameters(), lr=0.1)
        return PESG(self.network.parameters(), self.loss_fn, lr=0.1, gamma=0.1)

    def train_dataloader(self):
        data = TensorDataset(self.x, self.y, torch.arange(len(self.y)))
        return quota_loader(data, self.y, trainer=self.trainer, batch_size=BATCH, positives_per_batch=QUOTA, seed=3)

    def training_step(self, batch, _):
        features, labels, rows = batch
        self.rows_seen.append(rows.tolist())
        return self.loss_fn(torch.sigmoid(self.network(features).squeeze(1)), labels)


def trainer(epochs, folder, *callbacks, **options):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def plain_loop(epochs, milestones):
    """What Lightning should do, without it."""
    module = Module()
    optimizer = module.configure_optimizers()
    sampler = ClassQuotaSampler(module.y, BATCH, QUOTA, seed=3)
    for epoch in range(epochs):
        if epoch in milestones:
            optimizer.new_stage(lr_factor=0.5)
        for rows in sampler:
            module.rows_seen.append(rows)
            loss = module.loss_fn(torch.sigmoid(module.network(module.x[rows]).squeeze(1)), module.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module


def assert_same(module, other):
    assert module.rows_seen == other.rows_seen
    for (name, value), (_, wanted) in zip(module.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=0, atol=0, msg=name)


def test_lightning_trains_as_the_plain_loop_does(tmp_path):
    module = Module()
    run = trainer(4, tmp_path, NewStage(milestones=[1, 3], lr_factor=0.5))
    run.fit(module)
    assert run.optimizers[0].param_groups[0]["lr"] == 0.1 * 0.25
    assert_same(module, plain_loop(4, {1, 3}))


def test_a_callback_that_has_served_before_begins_anew(tmp_path):
    """As in a loop over folds: each run meets all of its milestones. A resumed one still meets none twice."""
    stages = NewStage(milestones=[1, 3], lr_factor=0.5)
    for fold in range(2):
        module = Module()
        run = trainer(4, tmp_path, stages)
        run.fit(module)
        run.save_checkpoint(tmp_path / f"{fold}.ckpt")
        assert run.optimizers[0].param_groups[0]["lr"] == 0.1 * 0.25
        assert_same(module, plain_loop(4, {1, 3}))
    run = trainer(5, tmp_path, stages)
    run.fit(Module(), ckpt_path=tmp_path / "1.ckpt")
    assert run.optimizers[0].param_groups[0]["lr"] == 0.1 * 0.25


def test_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    """Stopped after the epoch of a milestone: it is not met twice, and the sampler goes on with the next epoch."""
    first = Module()
    run = trainer(2, tmp_path, NewStage(milestones=[1, 3], lr_factor=0.5))
    run.fit(first)
    run.save_checkpoint(tmp_path / "stopped.ckpt")
    second = Module()
    run = trainer(4, tmp_path, NewStage(milestones=[1, 3], lr_factor=0.5))
    run.fit(second, ckpt_path=tmp_path / "stopped.ckpt")
    second.rows_seen = first.rows_seen + second.rows_seen
    assert_same(second, plain_loop(4, {1, 3}))


@pytest.mark.parametrize("after", [8, 11])  # steps: the last of an epoch of eight, and in the middle of the next
def test_run_resumed_from_a_step_ends_where_the_uninterrupted_one_does(tmp_path, after):
    """Lightning alone would train on the first batches of the epoch again, and never on its last ones."""

    class SaveAfter(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == after:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    whole = Module()
    trainer(3, tmp_path, NewStage(milestones=[1], lr_factor=0.5), SaveAfter()).fit(whole)
    assert len(whole.rows_seen) == 24
    again = Module()
    run = trainer(3, tmp_path, NewStage(milestones=[1], lr_factor=0.5))
    run.fit(again, ckpt_path=tmp_path / "middle.ckpt")
    again.rows_seen = whole.rows_seen[:after] + again.rows_seen
    assert_same(again, whole)


@pytest.mark.parametrize(("asked", "batches"), [(2, 2), (0.5, 4)])
def test_overfit_batches_are_the_same_in_every_epoch(tmp_path, asked, batches):
    module = Module()
    trainer(3, tmp_path, overfit_batches=asked).fit(module)
    first = ClassQuotaSampler(module.y, BATCH, QUOTA, seed=3).epoch_table(0)[:batches]
    assert module.rows_seen == 3 * first.tolist()


def test_without_pesg_the_callback_says_so_at_once(tmp_path):
    with pytest.raises(ValueError, match="configure_optimizers"):
        trainer(1, tmp_path, NewStage(milestones=[1])).fit(Module(optimizer=torch.optim.SGD))


@pytest.mark.parametrize("milestones", [[0], [1.5], [-2]])
def test_impossible_milestones(milestones):
    with pytest.raises(ValueError, match="epochs of at least 1"):
        NewStage(milestones=milestones)


@pytest.mark.parametrize("factor", [0, 10])
def test_impossible_factor(factor):
    with pytest.raises(ValueError, match="lr_factor"):
        NewStage(milestones=[1], lr_factor=factor)


def test_labels_of_another_length_than_the_data_set():
    x, y = make_data()
    options = {"trainer": trainer(1, None), "batch_size": BATCH, "positives_per_batch": QUOTA}
    with pytest.raises(ValueError, match="labels has 60 rows, but dataset has 120"):
        quota_loader(TensorDataset(x, y), y[:60], **options)


def test_each_rank_draws_its_share_of_the_global_batch():
    class Rank:
        world_size, current_epoch, overfit_batches = 2, 3, 0.0

        def __init__(self, rank):
            self.global_rank = rank

    x, y = make_data()
    loaders = [
        quota_loader(TensorDataset(x, y), y, trainer=Rank(rank), batch_size=BATCH, positives_per_batch=QUOTA)
        for rank in range(2)
    ]
    assert all(isinstance(loader, DataLoader) for loader in loaders)
    whole = ClassQuotaSampler(y, BATCH, QUOTA).epoch_table(3).tolist()
    shares = [list(loader.batch_sampler) for loader in loaders]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]
    assert all(y[batch].sum() == QUOTA // 2 for share in shares for batch in share)


@pytest.mark.slow
def test_two_ranks_train_as_one_does(tmp_path, monkeypatch):
    """The prior is fixed and the shares are equal, so DDP's mean of the ranks' gradients is the batch's gradient."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where the ranks find this file by its name: tests...
    module = Module()
    run = trainer(
        2,
        tmp_path,
        NewStage(milestones=[1], lr_factor=0.5),
        devices=2,
        strategy="ddp_spawn",
        use_distributed_sampler=False,
    )
    run.fit(module)
    run.save_checkpoint(tmp_path / "two.ckpt")
    wanted = plain_loop(2, {1}).state_dict()
    found = torch.load(tmp_path / "two.ckpt", weights_only=False)["state_dict"]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
