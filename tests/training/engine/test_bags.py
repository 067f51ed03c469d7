"""Training on bags: what a step sees, scores of whole bags, resume to the bit, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import BagInputs, bag_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.bags import Bags, BagSpec
from deepauc.models.build import MLPSpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin, AUCMarginLoss
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.training.engine import loop
from deepauc.training.engine.loop import can_be_fast, train
from deepauc.training.engine.stream import Stream
from deepauc.training.plan.timing import measure_pace
from deepauc.training.predict.predict import predict
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.interrupt import fitting_batch
from deepauc.training.scoring import BATCH, score_rows
from tests.training.watched import ctrl_c_at

CNN = SmallCNNSpec(widths=(4, 8))
CE = Stage(
    objective=CrossEntropy(),
    optimizer=AdamWSpec(lr=0.01),
    epochs=4,
    batch_size=12,
    images_per_bag=3,
    augment=Augment(crop_padding=1),
)
AUC = replace(
    CE, objective=AUCMargin(), optimizer=PESGSpec(lr=0.05), positives_per_batch=4, epochs=3, reset_classifier=True
)


def bright_bags(bags=90, seed=0, largest=6):
    """A bag is positive if one of its images has a bright spot."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, largest + 1, bags)
    bag_of = np.repeat(np.arange(bags), sizes)
    labels = (generator.random(bags) < 0.35).astype(np.float32)
    images = generator.integers(0, 90, (len(bag_of), 8, 8, 1)).astype(np.uint8)
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for bag in np.flatnonzero(labels):
        images[firsts[bag] + generator.integers(sizes[bag]), 2:6, 2:6] += 140
    task = Task(
        name="spots",
        kind="binary",
        source=ArrayInputs(images),
        labels=labels[bag_of],
        label_names=("spot",),
        parts={},
    )
    parts = {
        "train": np.arange(bags * 5 // 9),
        "validation": np.arange(bags * 5 // 9, bags * 7 // 9),
        "test": np.arange(bags * 7 // 9, bags),
    }
    return bag_task(task, bag_of).with_parts(parts)


@pytest.fixture(scope="module")
def task():
    return bright_bags()


def recipe(*stages, pooling="attention", **options):
    return Recipe(model=BagSpec(image=CNN, pooling=pooling), stages=stages or (CE, AUC), **options)


def files(run):
    return {name: (run.path / name).read_bytes() for name in ("history.csv", "scores.csv", "model.safetensors")}


@pytest.mark.parametrize("pooling", ["max", "smooth-max"])
def test_cross_entropy_and_auc_m_learn_what_one_image_decides(task, tmp_path, pooling):
    run = train(recipe(pooling=pooling, guard=True), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    assert run.auc("test")["spot"].value > 0.9
    scores, labels = run.scores("test")
    assert len(scores) == len(labels) == len(task.part("test"))  # a row is a bag


def test_scores_are_of_all_images_whatever_a_step_has_seen(task, tmp_path):
    run = train(recipe(replace(CE, images_per_bag=1)), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    model, preprocessing = Bundle.load(run.path).network(run.path), Preprocessing.of(task)
    for row, score in zip(task.part("test"), run.scores("test")[0], strict=True):
        images = preprocessing(torch.from_numpy(task.inputs([row])))
        with torch.no_grad():
            alone = model(Bags(images, (len(images),), torch.arange(len(images))))
        assert float(alone) == pytest.approx(float(score), abs=1e-5)
    np.testing.assert_array_equal(predict(run.path, task, rows=task.part("test"), device="cpu"), run.scores("test")[0])


def test_a_bag_of_ten_thousand_images_is_scored_in_pieces_and_trained_on(monkeypatch, tmp_path):
    small = bright_bags(bags=40, seed=1)
    images, many = small.source.images.array, 10_000
    crowd = np.concatenate([images, np.tile(images[:100], (many // 100, 1, 1, 1))])
    members = np.concatenate([small.source.members, np.arange(len(images), len(images) + many)])
    source = BagInputs(ArrayInputs(crowd), members, [*small.source.starts, len(members)])
    task = replace(
        small,
        source=source,
        labels=np.append(small.labels, 1).astype(np.float32),
        parts={**small.parts, "train": np.append(small.part("train"), 40)},
        ids=None,
    )
    run = train(recipe(replace(CE, epochs=1)), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    model = Bundle.load(run.path).network(run.path)
    seen = []
    whole = model.image.forward
    monkeypatch.setattr(model.image, "forward", lambda x: seen.append(len(x)) or whole(x))
    found = score_rows(model, task, np.array([40, 0]), Preprocessing.of(task), torch.device("cpu"))
    assert max(seen) <= BATCH
    assert sum(seen) == many + task.source.sizes[0]
    hundred = replace(task, source=BagInputs(ArrayInputs(crowd), np.arange(100), [0, 100]), labels=np.ones(1), parts={})
    few = score_rows(model, hundred, np.array([0]), Preprocessing.of(task), torch.device("cpu"))
    assert float(found[0, 0]) == pytest.approx(float(few[0, 0]), abs=1e-4)  # each image a hundred times


def test_a_step_sees_at_most_so_many_images_drawn_by_seed_and_epoch(task, tmp_path, monkeypatch):
    seen = []
    read = loop.read_bags

    def noted(trainer, stage, rows, *, key):
        batch = read(trainer, stage, rows, key=key)
        seen.append((batch.inputs.sizes, batch.inputs.images.sum().item()))
        return batch

    monkeypatch.setattr(loop, "read_bags", noted)
    train(recipe(CE), task, seed=0, run_dir=tmp_path / "a", device="cpu")
    sizes = {size for step, _ in seen for size in step}
    assert sizes == {1, 2, 3}
    first = list(seen)
    seen.clear()
    train(recipe(CE), task, seed=0, run_dir=tmp_path / "b", device="cpu")
    assert seen == first
    seen.clear()
    train(recipe(CE), task, seed=1, run_dir=tmp_path / "c", device="cpu")
    assert seen != first


def test_prior_and_quota_are_of_bags(task):
    stream = Stream(task, AUC, seed=0, number=0)
    assert stream.prior == pytest.approx((4 / 12,))
    assert (task.labels[stream.table(0)].sum(axis=1) == 4).all()
    assert Stream(task, CE, seed=0, number=0).prior == pytest.approx((task.labels[task.part("train")].mean(),))


def test_alpha_stands_still_where_the_mean_scores_of_bags_say():
    """LibAUC's loss of bags lacks the factor 2 of alpha's square: its alpha ends at twice the right value."""
    model = BagSpec(image=MLPSpec(hidden=()), pooling="smooth-max").build(in_channels=3, num_outputs=1)
    sizes, labels = (2, 3, 1, 4), torch.tensor([1.0, 0.0, 1.0, 0.0])
    scores = torch.sigmoid(model(Bags(torch.randn(10, 3), sizes, torch.arange(10)))).squeeze(1)
    loss = AUCMarginLoss(prior=0.5, margin=1.0)
    best = 1 + scores[labels == 0].mean() - scores[labels == 1].mean()  # m + b* - a*
    for alpha, falls in ((best, 0.0), (2 * best, 1.0), (best / 2, -1.0)):
        loss.alpha.data.fill_(float(alpha.detach()))
        loss.a.data.fill_(float(scores[labels == 1].mean().detach()))
        loss.b.data.fill_(float(scores[labels == 0].mean().detach()))
        loss.zero_grad()
        loss(scores, labels).backward(retain_graph=True)
        assert torch.sign(loss.alpha.grad.round(decimals=5)) == falls


def test_a_stop_in_the_middle_of_an_epoch_resumes_to_the_bit(task, tmp_path):
    whole = train(recipe(guard=True, tta=2), task, seed=1, run_dir=tmp_path / "whole", device="cpu")
    for wanted in (3, 14):
        folder = tmp_path / str(wanted)
        with pytest.raises(KeyboardInterrupt, match="the same command"):
            train(recipe(guard=True, tta=2), task, seed=1, run_dir=folder, device="cpu", progress=ctrl_c_at(wanted))
        resumed = train(recipe(guard=True, tta=2), task, seed=1, run_dir=folder, device="cpu")
        assert files(resumed) == files(whole)


def test_in_pieces_the_loss_sees_the_same_bags(task, tmp_path):
    """Without batch normalisation pieces give what the whole batch gives."""
    features = np.random.default_rng(0).normal(size=(len(task.source.images), 5)).astype(np.float32)
    features[:, 0] += task.source.images.array.max(axis=(1, 2, 3)) / 100
    rows = replace(task, source=BagInputs(ArrayInputs(features), task.source.members, task.source.starts))
    stage = replace(AUC, augment=None, reset_classifier=False)
    runs = [
        train(
            Recipe(
                model=BagSpec(image=MLPSpec(hidden=(6,)), pooling="attention"),
                stages=(replace(stage, accumulate=pieces),),
            ),
            rows,
            seed=0,
            run_dir=tmp_path / str(pieces),
            device="cpu",
        )
        for pieces in (1, 3)
    ]
    np.testing.assert_allclose(runs[1].scores("test")[0], runs[0].scores("test")[0], rtol=1e-4, atol=1e-5)


def test_copies_are_of_all_images_of_a_bag_alike(task, tmp_path):
    run = train(recipe(replace(CE, epochs=1), tta=3), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    model, copies = Bundle.load(run.path).network(run.path), Bundle.load(run.path).copies
    row = task.part("test")[0]
    images = torch.from_numpy(task.inputs([row]))
    total = 0.0
    for change in copies.changes():
        changed = copies.augment.apply(images, change.expand(len(images), -1))
        with torch.no_grad():
            bags = Bags(Preprocessing.of(task)(changed), (len(images),), torch.arange(len(images)))
            total += float(model(bags))
    assert total / 3 == pytest.approx(float(run.scores("test")[0][0]), abs=1e-5)


def test_memory_that_runs_out_is_told_in_bags():
    model = BagSpec(image=MLPSpec(hidden=())).build(in_channels=2, num_outputs=1)
    whole = model.image.forward

    def small(rows, most):
        if len(rows) > most:
            raise RuntimeError("not enough memory")
        return whole(rows)

    bags = Bags(torch.randn(20, 2), (5, 5, 5, 5))
    model.image.forward = lambda rows: small(rows, 10)
    assert fitting_batch(model, bags) == 2
    model.image.forward = lambda rows: small(rows, 4)
    assert fitting_batch(model, bags) is None


def test_the_pace_is_measured_on_bags(task):
    pace = measure_pace(recipe(CE, tta=2), task, seed=0, device=torch.device("cpu"))
    assert pace.row > 0
    assert pace.copy > 0


def test_the_fast_engine_leaves_bags_to_the_plain_loop(task, tmp_path):
    assert not can_be_fast(recipe())
    with pytest.raises(ValueError, match="leave engine out"):
        train(recipe(), task, seed=0, run_dir=tmp_path / "run", device="cpu", engine="fast")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": CNN}, "make the network a BagSpec"),
        ({"frozen": True, "stages": (replace(CE, augment=None),)}, "backbone trained"),
        (
            {
                "stages": (
                    replace(CE, objective=Contrastive(), views=2, images_per_bag=None, augment=Augment(crop_padding=1)),
                    CE,
                )
            },
            "first stage none",
        ),
        (
            {"stages": (replace(CE, objective=CrossEntropy(soft_labels=True), augment=Augment(mixup=0.2)),)},
            "leave mixup out",
        ),
    ],
)
def test_what_bags_cannot_is_refused_before_anything_is_written(task, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(replace(recipe(), **change), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "run.json").exists()


def test_images_are_refused_by_a_network_of_bags(tmp_path):
    source = bright_bags().source.images
    labels = np.tile([0, 1], len(source))[: len(source)].astype(np.float32)
    images = Task(
        name="images",
        kind="binary",
        source=source,
        labels=labels,
        label_names=("spot",),
        parts={"train": np.arange(len(source))},
    )
    with pytest.raises(ValueError, match="name the bag column"):
        train(recipe(CE), images, seed=0, run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="images_per_bag"):
        train(Recipe(model=CNN, stages=(CE,)), images, seed=0, run_dir=tmp_path / "run", device="cpu")
