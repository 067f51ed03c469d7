"""The fast engine beside whole training loops of others, on one GPU.

    PYTHONPATH=src:benchmarks python3 benchmarks/throughput.py --sections libauc sizes timm --json throughput.json

libauc: three epochs with LibAUC 2.0.1's loss, optimizer and sampler behind a DataLoader, as its CIFAR-10 example has
it. sizes: images a second and peak memory of the engine against batch and image size. timm: DenseNet121 at 224 pixels
against a plain loop with AMP and channels_last. same: five epochs of both engines on the same recipe and data, which
are C2 at 10 % from DEEPAUC_DATA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from deepauc.data.augment.batch import Augment
from deepauc.data.datasets.benchmarks.load import load
from deepauc.models.build import ResNet20Spec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.optim.pesg import PESGSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from fast_step import MODELS, c10_like, epoch_seconds, recipe
from run import circumstances


class Images(Dataset):
    """LibAUC's example: pictures through PIL, random crop of 24 pixels enlarged again, flip."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        from torchvision import transforms

        self.images, self.labels = images, labels
        self.change = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomCrop((24, 24)),
                transforms.RandomHorizontalFlip(),
                transforms.Resize((32, 32)),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, np.float32]:
        return self.change(self.images[i]), self.labels[i]


def libauc_loop(epochs: int = 3) -> Iterator[dict]:
    from libauc.losses import AUCMLoss
    from libauc.optimizers import PESG as TheirPESG
    from libauc.sampler import DualSampler

    task = c10_like()
    data = Images(task.source.array, task.labels)
    sampler = DualSampler(data, batch_size=128, sampling_rate=0.1, labels=task.labels)
    loader = DataLoader(data, batch_size=128, sampler=sampler, num_workers=2, pin_memory=True)
    model = MODELS["ResNet20"].build(in_channels=3, num_outputs=1).cuda()
    loss_fn = AUCMLoss()
    optimizer = TheirPESG(model.parameters(), loss_fn=loss_fn, lr=0.1, margin=1.0, epoch_decay=0.002, weight_decay=1e-4)
    for epoch in range(epochs):
        torch.cuda.synchronize()
        began, steps = time.perf_counter(), 0
        for images, labels in loader:
            loss = loss_fn(torch.sigmoid(model(images.cuda())), labels.cuda().unsqueeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        yield {"what": "LibAUC, its sampler, DataLoader with 2 workers", "epoch": epoch, "steps": steps,
               "step_ms": 1e3 * seconds / steps}  # fmt: skip
    ours = epoch_seconds([recipe("ResNet20", "AUC-M")], task, engine="fast", epochs=3)
    yield {"what": "fast engine", "step_ms": ours["step_ms"]}


def sizes() -> Iterator[dict]:
    for size, batches in ((32, (128, 512)), (96, (128,)), (224, (32,))):
        task = c10_like(size, negatives=4000, positives=96)
        for batch in batches:
            found = epoch_seconds([recipe("ResNet20", "AUC-M", batch=batch)], task, engine="fast", epochs=2)
            yield {"what": "ResNet20, AUC-M, fast", "size": size, "batch": batch, **found}


def timm_loop(size: int = 224, batch: int = 32, steps: int = 60) -> Iterator[dict]:
    """A plain loop with what everybody uses: AMP, channels_last, fused SGD, BCE, data on the GPU, no augmentation."""
    import timm

    task = c10_like(size, negatives=1900, positives=20)
    model = timm.create_model("densenet121", num_classes=1).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    images, labels = torch.from_numpy(task.source.array).cuda(), torch.from_numpy(task.labels.copy()).cuda()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        rows = torch.randint(len(labels), (batch,), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        x = (images[rows].permute(0, 3, 1, 2).float() / 255).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores.float().squeeze(1), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 1e9
    yield {"what": "timm, AMP, channels_last, CE", "size": size, "batch": batch,
           "step_ms": 1e3 * float(np.median(times[10:])), "memory_gb": peak}  # fmt: skip
    del model, optimizer, images
    torch.cuda.empty_cache()
    for loss in ("CE", "AUC-M"):
        made = recipe("DenseNet121", loss, batch=batch, augment=False)
        found = epoch_seconds([made], task, engine="fast", epochs=2, compiled=False)
        yield {"what": f"fast engine, uncompiled, {loss}", "size": size, "batch": batch, **found}


def same_result(epochs: int = 5, seeds: int = 5) -> Iterator[dict]:
    """Test AUC of both engines, seed by seed: what differs is the order of sums and the rounding of kernels."""
    stage = Stage(objective=AUCMargin(), optimizer=PESGSpec(weight_decay=1e-4), epochs=epochs, bound="l2",
                  augment=Augment(), precision="bfloat16")  # fmt: skip
    made = Recipe(model=ResNet20Spec(), stages=(stage,))
    for seed in range(seeds):
        task = load("C2", imratio=0.1, seed=seed)
        for engine in ("plain", "fast"):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                run = train(made, task, seed=seed, run_dir=Path(folder) / "run", device="cuda", engine=engine)
                seconds = time.perf_counter() - began
                (estimate,) = run.auc("test").values()
                yield {"what": f"C2 at 10 %, {epochs} epochs", "engine": engine, "seed": seed, "seconds": seconds,
                       "test_auc": estimate.value}  # fmt: skip


SECTIONS = {"libauc": libauc_loop, "sizes": sizes, "timm": timm_loop, "same": same_result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = {**circumstances(gpu=True), "rows": []}
    for name in options.sections:
        try:
            for row in SECTIONS[name]():
                record["rows"].append({"section": name, **row})
                print(json.dumps(record["rows"][-1]), flush=True)
                if options.json is not None:  # after every row: what was measured stays, whatever comes next
                    options.json.write_text(json.dumps(record, indent=1) + "\n")
        except Exception as error:  # one section must not cost the others
            print(f"failed: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
