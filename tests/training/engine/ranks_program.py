"""Runs scenarios of `test_distributed.py` in processes of their own: `python ranks_program.py FOLDER JOBS`.

JOBS is a JSON list of {"name", "scenario", "ranks", "run", ...options}. One import of torch serves all of them: the
processes are forked. Each rank leaves RUN/../NAME.RANK.json with what it has seen.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import distributed, nn

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import bag_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.kernels.dropout import StepDropout
from deepauc.metrics.recalibration import fit_temperature
from deepauc.models.bags import BagNetwork
from deepauc.models.build import BagSpec, FactorySpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.objectives.poly_view import PolyView
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine import loop
from deepauc.training.engine.distributed import all_ranks, digest
from deepauc.training.engine.global_norm import GlobalBatchNorm
from deepauc.training.engine.views import ViewNetwork
from deepauc.training.first_stage import first_stage
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps

CNN = SmallCNNSpec(widths=(4, 8))


def group_norm_net(in_channels, num_outputs):
    """No batch normalisation: rows do not know of each other."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.ELU(), nn.Flatten(), nn.LazyLinear(num_outputs)
    )


def make_net(in_channels, num_outputs):
    net = group_norm_net(in_channels, num_outputs)
    net(torch.zeros(1, in_channels, 8, 8))
    return net


def make_dropping_net(in_channels, num_outputs):
    net = make_net(in_channels, num_outputs)
    net.insert(3, StepDropout(0.3, layer=0))
    return net


def images_task(*, labels=1, weights=False):
    generator = np.random.default_rng(0)
    truth = (generator.random((700, labels)) < 0.3).astype(np.float32)
    images = generator.integers(0, 150, (700, 8, 8, 1)).astype(np.uint8)
    for number in range(labels):
        images[:, 4 * number : 4 * number + 3, 2:5, 0] += (40 * truth[:, number]).astype(np.uint8)[:, None, None]
    if labels > 1:
        truth[5, 0] = truth[7, 1] = truth[-3, 1] = np.nan
    return Task(
        name="spots",
        kind="binary" if labels == 1 else "multilabel",
        source=ArrayInputs(images),
        labels=truth[:, 0] if labels == 1 else truth,
        label_names=tuple(f"y{number}" for number in range(labels)),
        parts={"train": np.arange(96), "validation": np.arange(96, 660), "test": np.arange(660, 700)},
        weights=generator.uniform(0.5, 1.5, 700).astype(np.float32) if weights else None,
    )


def bags_task():
    """The images in bags of one to four, of which a rank has more images than another."""
    images = images_task()
    sizes = np.tile([1, 4, 2, 3], 70)
    labels = np.repeat(images.labels[: len(sizes)], sizes)
    task = bag_task(replace(images, labels=labels, parts={}), np.repeat(np.arange(len(sizes)), sizes))
    return task.with_parts(
        {"train": np.arange(96), "validation": np.arange(96, 240), "test": np.arange(240, len(sizes))}
    )


def scenarios():
    shifted = Augment(crop_padding=1, rotation=10)
    cross_entropy = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), iterations=10, batch_size=16)
    auc = Stage(
        objective=AUCMargin(margin=0.5),
        optimizer=PESGSpec(lr=0.05, momentum=0.5),
        iterations=50,
        batch_size=16,
        positives_per_batch=4,
    )
    released = replace(auc.optimizer, reference="zero", alpha_step="closed", clip_value=0.002)
    views = Stage(
        objective=Contrastive(),
        optimizer=SGDSpec(lr=0.02),
        iterations=20,
        batch_size=14,
        views=2,
        projection=(8, 8),
        augment=replace(shifted, brightness=0.2),
    )
    own_net = FactorySpec(factory="ranks_program:make_net")
    return {
        # batch normalisation, a quota, both stages, clipping, averaging, selection, the guard
        "two stages": lambda: (
            Recipe(
                model=CNN,
                stages=(
                    replace(cross_entropy, gradient_clip=0.5, keep="best", augment=shifted),
                    replace(auc, ema=0.9, schedule=Steps(milestones=(20,), unit="iterations"), reset_classifier=True),
                ),
                guard=True,
                alpha_curve=True,
            ),
            images_task(),
        ),
        # BatchScoreNorm; 17 rows do not divide by 2 or 3
        "score norm": lambda: (
            Recipe(model=CNN, stages=(replace(auc, bound="l2", positives_per_batch=None, batch_size=17),)),
            images_task(weights=True),
        ),
        "several labels": lambda: (
            Recipe(model=CNN, stages=(replace(auc, batch_size=14, optimizer=released),)),
            images_task(labels=2),
        ),
        # losses that remember, and an optimizer with two kinds of steps, of which the last is one's own
        "beyond AUROC": lambda: (
            Recipe(
                model=CNN,
                stages=(
                    replace(auc, objective=PartialAUC(max_fpr=0.05, min_tpr=0.8), optimizer=SGDSpec(lr=0.05)),
                    replace(auc, objective=AveragePrecision(memory=0.5), optimizer=SGDSpec(lr=0.05)),
                    replace(auc, optimizer=PDSCASpec(lr=0.05), iterations=25),
                ),
            ),
            images_task(labels=2, weights=True),
        ),
        "views": lambda: (
            Recipe(
                model=CNN,
                stages=(
                    views,
                    replace(views, objective=VICReg(), optimizer=SGDSpec(lr=0.001), iterations=10),
                    replace(views, objective=PolyView(views=3), views=3, iterations=10),
                    replace(auc, iterations=20),
                ),
            ),
            images_task(),
        ),
        # partners of a mixup lie on other ranks; the loss sees the pieces of all ranks as one batch; copies in the end
        "mixup in pieces": lambda: (
            Recipe(
                model=own_net,
                stages=(
                    replace(
                        auc,
                        objective=AUCMargin(soft_labels=True),
                        optimizer=AdamSpec(lr=0.01),
                        bound="rms",
                        batch_size=14,
                        positives_per_batch=None,
                        accumulate=2,
                        augment=replace(shifted, mixup=0.5),
                    ),
                ),
                tta=3,
            ),
            images_task(weights=True),
        ),
        # with one rank the pieces are others: only that the ranks agree, and the bytes, can be looked at
        "batch norm in pieces": lambda: (
            Recipe(model=CNN, stages=(replace(cross_entropy, batch_size=14, accumulate=2),)),
            images_task(),
        ),
        # what is dropped of a row does not depend on the rank that has it
        "dropout": lambda: (
            Recipe(
                model=FactorySpec(factory="ranks_program:make_dropping_net"),
                stages=(replace(views, iterations=10), replace(auc, batch_size=14, iterations=20)),
            ),
            images_task(),
        ),
        "dropout in pieces": lambda: (
            Recipe(
                model=FactorySpec(factory="ranks_program:make_dropping_net"),
                stages=(replace(auc, batch_size=14, accumulate=2, iterations=20),),
            ),
            images_task(),
        ),
        "bags": lambda: (
            Recipe(
                model=BagSpec(image=CNN, pooling="attention"),
                stages=(
                    replace(cross_entropy, images_per_bag=3, augment=shifted),
                    replace(auc, images_per_bag=2, iterations=20, augment=shifted),
                ),
                tta=2,
            ),
            bags_task(),
        ),
        "bags in pieces": lambda: (
            Recipe(
                model=BagSpec(image=FactorySpec(factory="ranks_program:make_dropping_net"), pooling="smooth-max"),
                stages=(replace(auc, images_per_bag=3, batch_size=14, accumulate=2, iterations=20),),
            ),
            bags_task(),
        ),
        "too few rows": lambda: (Recipe(model=CNN, stages=(replace(cross_entropy, batch_size=2),)), images_task()),
    }


class Watched(loop.Trainer):
    """Notes the trainer, and does at one step of one rank what the job says."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        Watched.last = self

    def after_step(self, epoch, position):
        happening = Watched.job.get("happens")
        if happening and self.ranks.rank == Watched.job.get("to", 1) and self._steps() == Watched.job["at"]:
            if happening == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if happening == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            if happening == "error":
                raise ValueError("image 7 cannot be read")
        super().after_step(epoch, position)

    def scores(self, part, *, final=False):
        if final and Watched.job.get("in_scores_of") == part and self.ranks.rank == Watched.job["to"]:
            Watched.batches = 0
            os.kill(os.getpid(), signal.SIGINT)
        return super().scores(part, final=final)

    def _between_batches(self, *at):
        Watched.batches += 1
        super()._between_batches(*at)

    def _steps(self):
        before = sum(stage.iterations for stage in self.recipe.stages[: self.stage_number])
        return before + self.iteration


def train(job, folder):
    loop.Trainer, Watched.job, Watched.last, Watched.batches = Watched, job, None, 0
    recipe, task = scenarios()[job["scenario"]]()
    if job.get("differs") and int(os.environ["RANK"]) == 1:
        task = replace(task, labels=1 - task.labels)
    seen = {}
    try:
        loop.train(recipe, task, seed=3, run_dir=folder / job["run"], device="cpu")
        seen["ended"] = "done"
    except (Exception, KeyboardInterrupt) as error:
        seen |= {"ended": type(error).__name__, "message": str(error)}
    trainer = Watched.last
    if trainer is not None:
        seen |= {
            "history": trainer.history,
            "weights": digest([*trainer.model.parameters()]),
            "batches": Watched.batches,
            "exchanged": dict(trainer.ranks.exchanged),
            "expected": expected_bytes(recipe, task, job["ranks"]),
        }
    return seen


def expected_bytes(recipe, task, ranks):
    """Of the results that all steps' exchanges leave on a rank, counted from the recipe: every number is float32, int32
    for the flag, but for the statistics of batch normalisation, which are float64.

    Gradients are summed in one message; outputs gathered, each rank's slice padded to the longest; two numbers a
    channel and a count are summed on the way forward, two numbers a channel on the way back.
    """
    total = dict.fromkeys(("gradients", "outputs", "statistics", "flags"), 0)
    for stage in recipe.stages if ranks > 1 else ():
        counted = BytesCounted()
        with torch.device("meta"):
            network = recipe.model.build(in_channels=task.source.shape[-1], num_outputs=task.num_labels)
            if stage.on_views:
                network = ViewNetwork(network, projection=stage.projection, seed=0)
            network.train()
            of_bags = isinstance(network, BagNetwork)
            forward = network.image_outputs if of_bags else network  # pooling has no weights, and needs real images
            with GlobalBatchNorm(counted):
                output = forward(torch.zeros(2, task.source.shape[-1], *task.source.shape[:-1]))
            on_the_way = counted.bytes
            output.sum().backward()
        passes = 1 if stage.accumulate == 1 else 2 * stage.accumulate  # of the pieces, without and with gradient
        rows = -(-stage.batch_size // ranks) * ranks * stage.views
        width = task.num_labels if of_bags else output.shape[1]
        weights = sum(p.numel() for p in network.parameters() if p.grad is not None)
        total["gradients"] += stage.iterations * 4 * weights
        total["outputs"] += stage.iterations * 4 * rows * width
        back = counted.bytes - on_the_way
        total["statistics"] += stage.iterations * (on_the_way * passes + back * stage.accumulate)
        total["flags"] += stage.iterations * 4
    return total


class BytesCounted:
    """Stands for the ranks, and exchanges nothing."""

    bytes = 0

    def add_up(self, values, what):
        self.bytes += values.numel() * values.element_size()


def batch_norm(job, folder):
    """y, dx, the weight's and bias's gradients and the running statistics of a slice, in double precision."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, 2, 2, generator=generator, dtype=torch.float64) * 2 + 5
    dy = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    norm = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
    with all_ranks() as ranks:
        share = ranks.share(len(x))
        own = x[share].clone().requires_grad_()
        with ranks.global_statistics():
            y = norm(own)
        y.backward(dy[share])
        ranks.sum_gradients(norm.parameters(), check=True)
        found = [ranks.gather(t, len(x), what="") for t in (y.detach(), own.grad)]
    found += [norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
    return {"found": [t.tolist() for t in found]}


def kept_first_stage(job, folder):
    """Where the stages on views of a recipe are kept, once their ranks have trained them together."""
    recipe, task = scenarios()["views"]()
    found = [first_stage(recipe, task, seed=3, cache_dir=folder / job["name"], device="cpu") for _ in range(2)]
    return {"kept": sorted({path.name for path in found})}


def work(job, folder, rank):
    os.environ["RANK"] = str(rank)
    if job["ranks"] > 1:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder / (job['name'] + '.store')}",
            rank=rank,
            world_size=job["ranks"],
            timeout=timedelta(seconds=300),
        )
    others = {"batch norm": batch_norm, "first stage": kept_first_stage, "slow to join": slow_to_join}
    seen = others.get(job["scenario"], train)(job, folder)
    (folder / f"{job['name']}.{rank}.json").write_text(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)  # a process that has lost another one is not to wait for it on its way out


def slow_to_join(job, folder):
    """When this rank had connected, the last one late, and when it left."""
    new_group, late = distributed.new_group, distributed.get_rank() == job["ranks"] - 1
    connected = []

    def connect(**options):
        group = new_group(**options)
        time.sleep(0.5 * late)
        connected.append(time.monotonic())
        return group

    with patch.object(distributed, "new_group", connect), all_ranks():
        pass
    return {"connected": connected[0], "left": time.monotonic()}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # this and the next line import what every process would import again
    fit_temperature(np.array([0.0, 1.0, 0.5, 2.0]), np.array([0, 1, 1, 0]))
    folder, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
    context = multiprocessing.get_context("fork")
    for job in jobs:
        processes = [context.Process(target=work, args=(job, folder, rank)) for rank in range(job["ranks"])]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
