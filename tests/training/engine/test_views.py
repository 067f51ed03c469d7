"""Stages on views: features trained by two views of each image, with a head that goes; plain, fast, packed, resumed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deepauc.data.augment.batch import Augment
from deepauc.data.counter import hash_key
from deepauc.data.imbalance import imbalance_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import MLPSpec, SmallCNNSpec, build_model
from deepauc.models.classifier import classifier_name
from deepauc.models.projection import FeatureExtractor, ProjectionHead
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.objectives.poly_view import PolyView
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.training.engine import loop, trainer
from deepauc.training.engine.fast.forward import Ends, make_forward, make_inputs, make_network, make_value
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.engine.step import Batch
from deepauc.training.engine.stream import Stream
from deepauc.training.engine.views import ViewNetwork
from deepauc.training.plain import from_plain, recipe_hash, to_plain
from deepauc.training.predict.predict import predict
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.checkpoint import load_state
from deepauc.training.run.interrupt import TrainingStopped
from deepauc.training.schedule import Cosine
from tests.training.watched import Killed, RecordingInputs, killed_at_checkpoint

MODEL = SmallCNNSpec(widths=(4, 8))
AUGMENT = Augment(crop_padding=1, rotation=10, brightness=0.3, coarse_dropout=1)


def views(**options):
    defaults = {"objective": Contrastive(), "optimizer": SGDSpec(lr=0.05), "epochs": 3, "batch_size": 16}
    return Stage(**{**defaults, "views": 2, "projection": (12, 6), "augment": AUGMENT, "schedule": Cosine(), **options})


def auc(**options):
    defaults = {"objective": AUCMargin(), "optimizer": PESGSpec(lr=0.1), "epochs": 2, "batch_size": 16}
    return Stage(**{**defaults, "positives_per_batch": 4, **options})


def recipe(*stages, **options):
    return Recipe(model=MODEL, stages=stages or (views(ema=0.9), auc()), **options)


def files(run):
    return {p.name: p.read_bytes() for p in sorted(run.path.iterdir()) if p.name != "run.json"}


@pytest.fixture
def planted_task(image_task):
    """96 training rows with one planted row of each kind that no stage on views may read.

    Rows 0 and 1 lose their label (patient p0, in train only); row 95 loses its label too, but its patient is in test;
    a positive is removed to make an imbalance.
    """
    labels = image_task.labels.copy()
    labels[[0, 1, 95]] = np.nan
    groups = image_task.groups.copy()
    groups[95] = groups[130]
    task = replace(image_task, source=RecordingInputs(image_task.source.array), labels=labels, groups=groups)
    labelled = imbalance_task(task.with_parts({**task.parts, "train": task.labelled("train")}), imratio=0.2, seed=0)
    assert len(labelled.removed) > 0
    train_rows = np.sort(np.concatenate([labelled.rows, [0, 1, 95]]))
    return task.with_parts({**task.parts, "train": train_rows}), labelled.removed


def forbidden(task, removed):
    return {*removed.tolist(), 95, *task.part("validation").tolist(), *task.part("test").tolist()}


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_it_reads_the_training_rows_and_none_of_the_planted_ones(planted_task, tmp_path, engine):
    task, removed = planted_task
    run = train(recipe(views()), task, seed=0, run_dir=tmp_path / "a", engine=engine, device="cpu")
    expected = set(task.part("train").tolist()) - {95}
    assert {0, 1} <= expected
    assert not expected & forbidden(task, removed)
    if engine == "fast":  # its copy on the device serves the scores of later stages too; `first_stage` reads none of it
        expected |= {*task.part("validation").tolist(), *task.part("test").tolist()}
    assert task.source.asked == expected  # what mean and standard deviation are taken from included
    assert {row["unlabelled_rows"] for row in run.history} == {"2"}


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_no_planted_pixel_changes_the_first_stage(planted_task, tmp_path, engine):
    """The pixels of all that is forbidden are replaced: the features trained are the same to the bit."""
    task, removed = planted_task
    pixels = task.source.array.copy()
    pixels[sorted(forbidden(task, removed))] = 255
    other = replace(task, source=ArrayInputs(pixels))
    weights = []
    for name, one in (("own", task), ("other", other)):
        run = train(recipe(views()), one, seed=0, run_dir=tmp_path / name, engine=engine, device="cpu")
        weights.append((run.path / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    pixels[0] = 255  # an unlabelled row of train does change them
    seen = replace(task, source=ArrayInputs(pixels))
    run = train(recipe(views()), seen, seed=0, run_dir=tmp_path / "seen", engine=engine, device="cpu")
    assert (run.path / "model.safetensors").read_bytes() != weights[0]


def test_unlabelled_rows_join_and_are_counted(planted_task, tmp_path):
    task, _ = planted_task
    stream = Stream(task, views(), seed=0, number=0)
    assert stream.unlabelled == 2
    assert set(stream.rows) == set(task.part("train")) - {95}
    assert stream.prior == ()
    quota = Stream(task, views(objective=SupervisedContrastive(), positives_per_batch=4), seed=0, number=0)
    assert set(quota.rows) == set(task.labelled("train"))
    run = train(recipe(views(), auc()), task, seed=0, run_dir=tmp_path / "a")
    first, last = run.history[0], run.history[-1]
    assert (first["rows"], first["unlabelled_rows"]) == (str(len(stream.rows)), "2")
    assert last["unlabelled_rows"] == ""
    assert run.record.plain["task"]["unlabelled_rows"] == 3


def test_uncertain_and_one_sided_labels_are_no_fault_without_labels(image_task):
    labels = np.zeros(160, dtype=np.float32)
    labels[:10] = -1
    task = image_task.with_labels(labels)
    assert len(Stream(task, views(), seed=0, number=0).rows) == 96
    with pytest.raises(ValueError, match="uncertain"):
        Stream(task, views(objective=SupervisedContrastive()), seed=0, number=0)


@pytest.mark.parametrize("count", [2, 3])
def test_views_have_their_own_rows_of_the_table(image_task, count):
    stage = views() if count == 2 else views(objective=PolyView(views=count), views=count)
    stream = Stream(image_task, stage, seed=3, number=0)
    changes = stream.changes(2)
    assert changes.shape == (6, 16 * count, len(AUGMENT.columns))
    for view in range(count):
        table = AUGMENT.draw(96, seed=stream.seed, epoch=2, view=view).values
        assert torch.equal(changes[:, view * 16 : (view + 1) * 16].reshape(96, -1), table)
    assert not torch.equal(changes[:, :16], changes[:, -16:])
    assert torch.equal(changes, Stream(image_task, stage, seed=3, number=0).changes(2))
    assert not torch.equal(changes, stream.changes(1))
    one = Stream(image_task, auc(augment=AUGMENT), seed=3, number=0)
    first = AUGMENT.draw(one.per_epoch * 16, seed=one.seed, epoch=0).values
    assert torch.equal(one.changes(0).reshape(first.shape), first)


def test_it_is_the_loop_one_would_write(image_task, tmp_path):
    """Eight steps by hand: each view augmented by its own rows, features and head, cosines pair by pair, SGD."""
    stage = views(iterations=8, epochs=None, optimizer=SGDSpec(lr=0.1, weight_decay=1e-3), objective=Contrastive())
    run = train(recipe(stage), image_task, seed=5, run_dir=tmp_path / "a", device="cpu")
    model = build_model(MODEL, in_channels=1, num_outputs=1, seed=5)
    features = FeatureExtractor(model)
    torch.manual_seed(hash_key(5, 0, *b"head") >> 1)
    head = ProjectionHead(8, 12, 6)
    optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-3)
    stream, preprocessing, losses = Stream(image_task, stage, seed=5, number=0), Preprocessing.of(image_task), []
    for step in range(8):
        epoch, position = divmod(step, 6)
        rows = stream.table(epoch)[position]
        inputs = []
        for view in (0, 1):
            table = AUGMENT.draw(96, seed=stream.seed, epoch=epoch, view=view).values[
                16 * position : 16 * position + 16
            ]
            inputs.append(preprocessing(AUGMENT.apply(torch.from_numpy(image_task.inputs(rows)), table)))
        z = head(features(torch.cat(inputs)))
        similarity = torch.cosine_similarity(z[:, None], z[None], dim=2) / 0.2
        loss = 0
        for i in range(32):
            others = [j for j in range(32) if j != i]
            loss = loss + torch.logsumexp(similarity[i, others], 0) - similarity[i, (i + 16) % 32]
        losses.append((loss / 32).item())
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 + np.cos(np.pi * step / 8)) / 2
        optimizer.zero_grad()
        (loss / 32).backward()
        optimizer.step()
    assert float(run.history[0]["loss"]) == pytest.approx(np.mean(losses[:6]), rel=1e-4)
    assert float(run.history[1]["loss"]) == pytest.approx(np.mean(losses[6:]), rel=1e-4)
    by_hand = model.state_dict()
    for name, tensor in load_file(run.path / "model.safetensors").items():
        torch.testing.assert_close(tensor, by_hand[name], rtol=1e-3, atol=1e-4, msg=name)


def test_the_head_is_in_the_checkpoint_and_nowhere_else(image_task, tmp_path, monkeypatch):
    seen = {}
    save = trainer.save_state

    def watch(path, state):
        save(path, state)
        seen[state["stage"]] = load_state(path)

    monkeypatch.setattr(trainer, "save_state", watch)
    run = train(recipe(), image_task, seed=1, run_dir=tmp_path / "a")
    assert seen[0]["head"]["hidden.weight"].shape == (12, 8)
    assert seen[0]["head"]["out.weight"].shape == (6, 12)
    assert seen[1]["head"] is None
    network = build_model(MODEL, in_channels=1, num_outputs=1, seed=0).state_dict()
    weights = load_file(run.path / "model.safetensors")
    assert weights.keys() == network.keys()
    alone = train(recipe(views()), image_task, seed=1, run_dir=tmp_path / "b")
    head = classifier_name(build_model(MODEL, in_channels=1, num_outputs=1, seed=0))
    backbone = load_file(alone.path / "model.safetensors")
    assert backbone.keys() == {name for name in network if not name.startswith(head)}
    assert {p.name for p in alone.path.iterdir()} == {"run.json", "history.csv", "model.safetensors", "DONE"}
    with pytest.raises(ValueError, match="trained features but no classifier"):
        predict(alone.path, image_task.inputs(np.arange(3)))


def test_history_has_loss_and_accuracy_and_no_validation(image_task, tmp_path):
    levels = np.random.default_rng(0).integers(0, 200, (160, 1, 1, 1)) + image_task.source.array // 4
    task = replace(image_task, source=ArrayInputs(levels.astype(np.uint8)))  # images that can be told apart
    stage = views(epochs=12, optimizer=AdamSpec(lr=0.02), augment=Augment(crop_padding=1))
    run = train(recipe(stage, auc()), task, seed=1, run_dir=tmp_path / "a")
    first, second = ([row for row in run.history if row["stage"] == number] for number in "01")
    assert len(first) == 12
    assert all(row["validation_auc"] == "" for row in first)
    assert all(row["view_accuracy"] == "" and row["validation_auc"] for row in second)
    losses, accuracies = ([float(row[column]) for row in first] for column in ("loss", "view_accuracy"))
    assert np.mean(losses[-3:]) < 0.9 * losses[0]
    assert np.mean(accuracies[-3:]) > 4 / 16  # by chance one in 16
    assert max(accuracies) <= 1


@pytest.mark.parametrize(
    "objective", [Contrastive(temperature=0.5), SupervisedContrastive(), VICReg(), PolyView(views=3)]
)
@pytest.mark.parametrize("several", [False, True])
def test_fast_equals_plain(image_task, multilabel_task, tmp_path, objective, several):
    task = multilabel_task if several else image_task
    options = {"iterations": 14, "epochs": None, "ema": 0.9, "gradient_clip": 1.0, "optimizer": AdamSpec()}
    stage = views(objective=objective, views=objective.views, **options)
    runs = [
        train(recipe(stage), task, seed=1, run_dir=tmp_path / engine, engine=engine, device="cpu")
        for engine in ("plain", "fast")
    ]
    for column in ("loss", "view_accuracy", "lr", "rows"):
        np.testing.assert_allclose(
            *([float(row[column]) for row in run.history] for run in runs), rtol=2e-3, atol=1e-3, err_msg=column
        )
    one, two = (load_file(run.path / "model.safetensors") for run in runs)
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-2, atol=1e-3, msg=name)


def test_packed_runs_equal_runs_alone(image_task, tmp_path):
    jobs = [
        Job(recipe=recipe(views(objective=Contrastive(temperature=t)), auc()), task=image_task, seed=seed,
            run_dir=tmp_path / f"{t}-{seed}")
        for t, seed in ((0.2, 1), (0.2, 2), (0.5, 1))
    ]  # fmt: skip
    for job, run in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        alone = train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"alone {job.run_dir.name}",
                      engine="fast", device="cpu")  # fmt: skip
        assert files(run) == files(alone)


def test_packed_runs_on_one_array_with_different_rows(image_task, tmp_path):
    """Two training sets of one array: each needs images that the other never reads."""
    parts = [{"train": np.arange(0, 64)}, {"train": np.arange(64, 128)}]
    tasks = [image_task.with_parts(part) for part in parts]
    jobs = [Job(recipe=recipe(views()), task=t, seed=0, run_dir=tmp_path / str(i)) for i, t in enumerate(tasks)]
    for job, run in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        alone = train(job.recipe, job.task, seed=0, run_dir=tmp_path / f"alone {job.run_dir.name}", engine="fast",
                      device="cpu")  # fmt: skip
        assert files(run) == files(alone)


def test_images_that_do_not_fit_come_through_the_feed(image_task, tmp_path, monkeypatch):
    there = train(recipe(), image_task, seed=1, run_dir=tmp_path / "there", engine="fast", device="cpu")
    monkeypatch.setattr("deepauc.training.engine.fast.feed.HOST_BYTES", 0)
    fed = train(recipe(), image_task, seed=1, run_dir=tmp_path / "fed", engine="fast", device="cpu")
    assert files(fed) == files(there)


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("moment", range(1, 6))
def test_killed_at_any_checkpoint_it_resumes_to_the_bit(image_task, tmp_path, engine, moment):
    options = {"seed": 1, "engine": engine, "device": "cpu"}
    whole = train(recipe(), image_task, run_dir=tmp_path / "whole", **options)
    with pytest.raises(Killed), killed_at_checkpoint(moment):
        train(recipe(), image_task, run_dir=tmp_path / "killed", **options)
    assert files(train(recipe(), image_task, run_dir=tmp_path / "killed", **options)) == files(whole)


def test_saving_inside_an_epoch_and_stopping_there_changes_nothing(image_task, tmp_path, monkeypatch):
    whole = train(recipe(), image_task, seed=1, run_dir=tmp_path / "whole")
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", -1)
    steps = 0

    def die(progress):
        nonlocal steps
        steps += 1
        if steps == 10:  # the fourth step of the second epoch; the third is saved
            raise Killed

    with pytest.raises(Killed):
        train(recipe(), image_task, seed=1, run_dir=tmp_path / "killed", progress=die)
    assert load_state(tmp_path / "killed" / "checkpoint.safetensors")["iteration"] == 9
    assert files(train(recipe(), image_task, seed=1, run_dir=tmp_path / "killed")) == files(whole)


def test_pieces_of_a_batch_give_the_gradients_of_the_whole(image_task, tmp_path):
    """Up to batch normalisation, which works on the pieces: with one that normalises nothing the runs agree."""
    from deepauc.training.engine.step import backward_whole_batch

    inputs = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.full((16, 1), torch.nan)
    found = []
    for pieces in (1, 4):
        model = build_model(MODEL, in_channels=1, num_outputs=1, seed=0)
        network = ViewNetwork(model, projection=(12, 6), seed=0)
        network.eval()  # running statistics instead of the batch's
        stage = views(accumulate=pieces)
        loss, matched = backward_whole_batch(network, Batch(inputs, labels), Contrastive().build(prior=()), stage)
        found.append([loss, matched, *(p.grad for p in network.parameters())])
    for one, four in zip(*found, strict=True):
        torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-6)
    run = train(recipe(views(accumulate=4, epochs=1), auc()), image_task, seed=0, run_dir=tmp_path / "a")
    assert np.isfinite(run.scores("test")[0]).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_forward_is_one_graph_for_the_compiler(image_task, precision):
    """Views, network, loss and accuracy without a break or a look at a value: what a CUDA graph can capture."""
    stage = views(precision=precision)
    network = ViewNetwork(build_model(MODEL, in_channels=1, num_outputs=1, seed=0), projection=(12, 6), seed=0)
    preprocessing = Preprocessing.of(image_task)
    value = make_value(Contrastive().build(prior=()), stage, compiled=False)
    ends = Ends(make_inputs(stage, preprocessing, compiled=False), value)
    forward = make_forward(ends, make_network(network, stage, compiled=False))
    weights = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    weights = {name: t for name, t in weights.items() if not name.endswith("num_batches_tracked")}
    batch = (
        weights, {}, torch.tensor(()), torch.ones(1), preprocessing.constants(torch.device("cpu")),
        Batch(torch.from_numpy(image_task.inputs(np.arange(16))), torch.full((16, 1), torch.nan)),
        Stream(image_task, stage, seed=0, number=0).changes(0)[0],
    )  # fmt: skip
    before = {name: t.detach().clone() for name, t in weights.items()}
    loss, matched, _ = forward(*batch)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(before[name])  # running statistics
    again, matched_again, _ = torch.compile(forward, backend="aot_eager", fullgraph=True)(*batch)
    torch.testing.assert_close(again, loss, rtol=1e-2 if precision == "bfloat16" else 1e-5, atol=1e-5)
    assert matched.shape == matched_again.shape == (16, 1)
    again.backward()
    assert all(p.grad is not None for p in network.parameters())


def test_out_of_memory_names_a_batch_that_fits(image_task, tmp_path, monkeypatch):
    def hungry(model, batch, *rest):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "backward_whole_batch", hungry)
    monkeypatch.setattr("deepauc.training.run.interrupt.fitting_batch", lambda model, inputs: len(inputs) // 4)
    with pytest.raises(TrainingStopped, match=r"batch of 16; 4 fit\. Set batch_size=4, or accumulate=4"):  # 8 views fit
        train(recipe(), image_task, seed=1, run_dir=tmp_path / "a")


def test_guard_leaves_stages_on_views_out(image_task, tmp_path):
    ce = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16)
    run = train(recipe(views(epochs=1), ce, auc(), guard=True), image_task, seed=1, run_dir=tmp_path / "a")
    guard = run.record.plain["results"]["guard"]
    assert guard["validation_auc"].keys() == {"1", "2"}
    assert guard["last_minus_stage"].keys() == {"1"}
    assert guard["winner"] in (1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: views(views=1), "views=2"),
        (lambda: views(objective=PolyView()), "PolyView takes 4 views of each image: set views=4, not 2"),
        (lambda: auc(views=2), "views=1"),
        (lambda: views(augment=None), "augment"),
        (lambda: views(augment=Augment(mixup=0.2)), "mixup"),
        (lambda: views(bound="sigmoid"), "bound"),
        (lambda: views(keep="best"), "validation"),
        (lambda: views(patience=2), "validation"),
        (lambda: views(projection=(12,)), "projection"),
        (lambda: views(projection=(12, 0)), "projection"),
        (lambda: recipe(auc(), views(), guard=True), "trains none"),
        (lambda: recipe(views(), auc(), guard=True), "only one"),
    ],
)
def test_bad_stages_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_there_and_back():
    others = (views(objective=VICReg()), views(objective=PolyView(views=3), views=3))
    made = recipe(views(objective=SupervisedContrastive(temperature=0.1)), *others, auc())
    again = from_plain(json.loads(json.dumps(to_plain(made))))
    assert again == made
    assert recipe_hash(again) == recipe_hash(made)


def test_features_cannot_be_viewed(tmp_path):
    generator = np.random.default_rng(0)
    labels = (generator.random(64) < 0.3).astype(np.float32)
    source = ArrayInputs(generator.normal(size=(64, 5)).astype(np.float32))
    task = Task(name="f", kind="binary", source=source, labels=labels, label_names=("y",), parts={"train": range(64)})
    with pytest.raises(ValueError, match="this task has numbers: leave out the stage that compares views"):
        train(Recipe(model=MLPSpec(), stages=(views(),)), task, seed=0, run_dir=tmp_path / "a")


def test_who_wants_scores_of_features_alone_is_told_what_is_missing(image_task, tmp_path):
    run = train(recipe(views(epochs=1)), image_task, seed=0, run_dir=tmp_path / "features")
    message = (
        r"features trained features but no classifier, .*: train a classifier on them, in a stage with start_from set"
    )
    with pytest.raises(ValueError, match=message):
        predict([run.path], image_task)
    with pytest.raises(ValueError, match=message):
        evaluate_run(run.path)
    onwards = train(recipe(auc(epochs=1, start_from=str(run.path))), image_task, seed=0, run_dir=tmp_path / "whole")
    assert len(predict([onwards.path], image_task)) == len(image_task)
    (onwards.path / "bundle.json").unlink()
    with pytest.raises(ValueError, match=r"whole holds no trained network: it has no bundle.json"):
        predict([onwards.path], image_task)
