"""Scores from run folders: alone or together, augmented, fused with metadata; bundles that plain torch can load."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.data.augment.batch import Augment
from deepauc.data.packed.sets import pack
from deepauc.data.table.read import read_table
from deepauc.metrics.auroc import auroc
from deepauc.models.build import MLPSpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.predict.table import predict_table
from deepauc.training.prepare.encoded_metadata import metadata_task
from deepauc.training.prepare.in_memory import InMemoryInputs
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.bundle import Bundle, load_weights
from deepauc.training.test_time import score_copies

MODEL = SmallCNNSpec(widths=(4, 8))


def ce(**options):
    return Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16, **options)


def auc(**options):
    return Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=4, batch_size=16, **options)


@pytest.fixture
def runs(image_task, tmp_path):
    first = train(Recipe(model=MODEL, stages=(ce(augment=Augment(crop_padding=1)),)), image_task, seed=0,
                  run_dir=tmp_path / "ce")  # fmt: skip
    second = train(Recipe(model=MODEL, stages=(auc(),)), image_task, seed=1, run_dir=tmp_path / "auc")
    return first, second


def test_predict_gives_the_scores_of_the_run(runs, image_task):
    first, _ = runs
    np.testing.assert_allclose(predict(first, image_task, rows=np.arange(128, 160)), first.scores("test")[0], rtol=1e-6)
    assert predict(str(first.path), image_task).shape == (160,)


@pytest.mark.parametrize("kept", ["files", "memory", "rows", "packed"])
def test_deep_grey_is_windowed_as_in_training(tmp_path, kept):
    """By each image's own range, as without a window, the scores would be others."""
    generator, lines = np.random.default_rng(0), ["file,target,split"]
    for row in range(40):
        pixels = generator.integers(500, 500 + 40 * (row + 10), (8, 8)).astype(np.uint16)
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{row % 2},{'test' if row % 5 == 0 else 'train'}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    task, _ = read_table(
        tmp_path / "t.csv",
        label_columns=["target"],
        kind="binary",
        image_column="file",
        split_column="split",
        window=(0, 4000),
    )
    if kept == "memory":
        task = replace(task, source=InMemoryInputs(task.source))
    if kept == "packed":
        task = pack(task, tmp_path / "packed").task()
    task = task.subset(np.arange(40)) if kept == "rows" else task
    run = train(Recipe(model=MODEL, stages=(ce(),)), task, seed=0, run_dir=tmp_path / "run")
    found = predict_table([run.path], tmp_path / "t.csv", image_column="file").scores[:, 0]
    np.testing.assert_allclose(found, predict(run, task), rtol=1e-6)
    assert Bundle.load(run.path).window == (0, 4000)


def test_one_image_scores_the_same_alone_and_in_a_batch(runs, image_task):
    whole = predict(runs[0], image_task)
    alone = np.concatenate([predict(runs[0], image_task, rows=[i]) for i in range(0, 160, 23)])
    np.testing.assert_allclose(alone, whole[::23], atol=1e-5)


def test_tta_is_deterministic_differs_by_seed_and_does_not_depend_on_the_batch(runs, image_task):
    one, two = (predict(runs[0], image_task, tta=5, seed=3) for _ in range(2))
    assert (one == two).all()
    assert (one != predict(runs[0], image_task, tta=5, seed=4)).any()
    assert (one != predict(runs[0], image_task)).any()
    some = predict(runs[0], image_task, rows=[7, 50], tta=5, seed=3)
    np.testing.assert_allclose(some, one[[7, 50]], atol=1e-5)
    with pytest.raises(ValueError, match="augment="):
        predict(runs[1], image_task, tta=2)
    given = predict(runs[1], image_task, tta=2, augment=Augment(crop_padding=1))
    assert given.shape == (160,)


def views():
    """A first stage on views: its crops are far from what the classifier is trained on."""
    return Stage(objective=Contrastive(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=16, views=2,
                 augment=Augment(resized_crop=(0.2, 1.0)))  # fmt: skip


def test_tta_never_borrows_the_augmentation_of_another_stage(image_task, tmp_path):
    shifted = Augment(crop_padding=1)
    for name, stages in {"views": (views(), ce()), "earlier": (ce(augment=shifted), auc())}.items():
        run = train(Recipe(model=MODEL, stages=stages), image_task, seed=0, run_dir=tmp_path / name)
        with pytest.raises(ValueError, match="augment="):
            predict(run, image_task, tta=2)
    run = train(
        Recipe(model=MODEL, stages=(views(), ce(augment=shifted))), image_task, seed=0, run_dir=tmp_path / "own"
    )
    np.testing.assert_array_equal(predict(run, image_task, tta=2), predict(run, image_task, tta=2, augment=shifted))


@pytest.mark.parametrize("winner", [0, 1])
def test_tta_takes_the_augmentation_of_the_stage_that_the_guard_kept(image_task, tmp_path, winner):
    """The other stage does not learn: its rate is too small, or it starts again from fresh weights."""
    idle = SGDSpec(lr=1e-9)
    small, large = Augment(crop_padding=1), Augment(crop_padding=2)
    first, last = ce(augment=small), ce(augment=large)
    stages = (first, replace(last, optimizer=idle, reset_classifier=True)) if winner == 0 else (
        replace(first, optimizer=idle), last)  # fmt: skip
    run = train(Recipe(model=MODEL, stages=stages, guard=True), image_task, seed=0, run_dir=tmp_path / "guarded")
    assert run.record.plain["results"]["guard"]["winner"] == winner
    own, other = (small, large) if winner == 0 else (large, small)
    scores = predict(run, image_task, tta=2)
    np.testing.assert_array_equal(scores, predict(run, image_task, tta=2, augment=own))
    assert (scores != predict(run, image_task, tta=2, augment=other)).any()


def test_ensembles_after_a_sigmoid_or_as_ranks(runs, image_task):
    parts = [predict(run, image_task).astype(float) for run in runs]
    expected = np.mean([1 / (1 + np.exp(-p)) for p in parts], axis=0)
    np.testing.assert_allclose(predict(runs, image_task), expected, rtol=1e-5)
    ranks = predict(runs, image_task, scale="rank")
    assert ranks.min() > 0
    assert ranks.max() <= 1
    weighted = predict(runs, image_task, weights=(1.0, 0.0))
    assert (np.argsort(weighted) == np.argsort(parts[0])).all()


@pytest.mark.parametrize("scale", ["sigmoid", "rank"])
@pytest.mark.parametrize("one", [lambda run: run, lambda run: [run.path]])
def test_one_run_has_nothing_to_average(runs, image_task, monkeypatch, scale, one):
    monkeypatch.setattr(
        "deepauc.training.predict.predict.score_copies", lambda *a, **k: pytest.fail("rows were scored")
    )
    with pytest.raises(ValueError, match=r"scale is for the average of several runs.*leave it out, or name more runs"):
        predict(one(runs[0]), image_task, scale=scale)
    with pytest.raises(ValueError, match=r"weights are for the average of several runs.*leave them out"):
        predict(one(runs[0]), image_task, weights=[1.0])
    with pytest.raises(ValueError, match="scale is for"):
        predict_table([runs[0].path], "never-read.csv", scale=scale)


def test_an_unknown_scale_is_refused_before_anything_is_scored(runs, image_task, monkeypatch):
    monkeypatch.setattr(
        "deepauc.training.predict.predict.score_copies", lambda *a, **k: pytest.fail("rows were scored")
    )
    with pytest.raises(ValueError, match="'sigmoid' or 'rank', not 'mean'"):
        predict(runs, image_task, scale="mean")


def test_several_labels(multilabel_task, tmp_path):
    made = [
        train(Recipe(model=MODEL, stages=(auc(),)), multilabel_task, seed=s, run_dir=tmp_path / str(s)) for s in (0, 1)
    ]
    assert predict(made, multilabel_task, scale="rank").shape == (160, 2)
    assert predict(made[0], multilabel_task, rows=[3]).shape == (1, 2)


def test_metadata_fusion(runs, image_task, tmp_path):
    recipe = Recipe(model=MLPSpec(hidden=(8, 4)), stages=(auc(),))
    metadata, _ = metadata_task(image_task)
    run = train(recipe, metadata, seed=0, run_dir=tmp_path / "metadata")
    assert run.auc("test")["spot"].value > 0.6  # older patients have the spot
    fused = predict([runs[1], run], image_task)
    parts = [predict(r, image_task).astype(float) for r in (runs[1], run)]
    np.testing.assert_allclose(fused, np.mean([1 / (1 + np.exp(-p)) for p in parts], axis=0), rtol=1e-5)
    again = train(recipe, metadata, seed=0, run_dir=tmp_path / "metadata")
    assert (predict(again, image_task) == parts[1].astype(np.float32)).all()


def test_ten_lines_of_plain_torch_load_a_bundle(runs, image_task):
    from safetensors.torch import load_file

    folder = runs[0].path
    card = json.loads((folder / "bundle.json").read_text())
    model = MODEL.build(in_channels=card["shape"][-1], num_outputs=len(card["label_names"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model.eval()
    x = torch.from_numpy(image_task.inputs(np.arange(5))).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(card["preprocessing"][k])[None, :, None, None] for k in ("mean", "std"))
    with torch.no_grad():
        scores = model((x - mean) / std).squeeze(1).numpy()
    np.testing.assert_allclose(scores, predict(runs[0], image_task, rows=np.arange(5)), atol=1e-5)


def test_bad_input_names_the_remedy(runs, image_task, multilabel_task, tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        predict([], image_task)
    with pytest.raises(ValueError, match="no trained network"):
        predict(tmp_path, image_task)
    with pytest.raises(ValueError, match="at least 0"):
        predict(runs[0], image_task, tta=-1)
    from deepauc.data.task import ArrayInputs, Task

    larger = Task(name="l", kind="binary", source=ArrayInputs(np.zeros((2, 9, 9, 1), np.uint8)), labels=[0, 1],
                  label_names=("y",), parts={})  # fmt: skip
    with pytest.raises(ValueError, match="at that size"):
        predict(runs[0], larger)
    other = train(Recipe(model=MODEL, stages=(auc(),)), multilabel_task, seed=0, run_dir=tmp_path / "two")
    with pytest.raises(ValueError, match="different labels"):
        predict([runs[0], other], image_task)
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="refused"):
        load_weights(tmp_path / "weights.pt", MODEL.build(in_channels=1, num_outputs=1))
    with pytest.raises(ValueError, match="another network"):
        load_weights(runs[0].path / "model.safetensors", MODEL.build(in_channels=3, num_outputs=1))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bundle.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Bundle.load(tmp_path / "broken")


def doubled(**options):
    """Two stages that are augmented alike, and copies of each image in the end."""
    shifted = Augment(crop_padding=2)
    mixed = Stage(objective=CrossEntropy(soft_labels=True), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16,
                  augment=replace(shifted, mixup=0.4))  # fmt: skip
    return Recipe(model=MODEL, stages=(mixed, auc(augment=shifted)), tta=3, **options)


def test_a_run_with_copies_is_scored_thresholded_and_predicted_by_their_mean(image_task, tmp_path):
    run = train(doubled(), image_task, seed=0, run_dir=tmp_path / "copies")
    plain = train(replace(doubled(), tta=0), image_task, seed=0, run_dir=tmp_path / "plain")
    shifted = Augment(crop_padding=2)
    for part in ("validation", "test"):
        rows = image_task.labelled(part)
        mean = predict(plain, image_task, rows=rows, tta=3, augment=shifted)
        np.testing.assert_allclose(run.scores(part)[0], mean, rtol=1e-5)
        np.testing.assert_allclose(predict(run, image_task, rows=rows), mean, rtol=1e-5)
        np.testing.assert_array_equal(predict(run, image_task, rows=rows, tta=0), predict(plain, image_task, rows=rows))
        assert (mean != plain.scores(part)[0]).any()
        assert run.record.plain["results"]["auc"][part]["spot"][0] == pytest.approx(
            float(auroc(mean, image_task.labels[rows]))
        )
    assert (run.scores("train")[0] == plain.scores("train")[0]).all()  # as they are: nothing is decided by these
    assert run.history[-1]["validation_auc"] == plain.history[-1]["validation_auc"]  # likewise, during training
    assert Bundle.load(run.path).thresholds != Bundle.load(plain.path).thresholds
    assert Bundle.load(run.path).calibration != Bundle.load(plain.path).calibration
    told = []
    assert predict([run, plain], image_task, progress=lambda *at: told.append(at)).shape == (160,)
    assert told[-1] == (4 * 160, 4 * 160)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_copies_of_images_that_lie_on_the_device_are_the_same(image_task, tmp_path):
    run = train(doubled(), image_task, seed=0, run_dir=tmp_path / "run")
    bundle, rows = Bundle.load(run.path), np.arange(20, 60)
    given = (bundle.network(run.path), image_task, rows, bundle.preprocessing, torch.device("cpu"))
    read = score_copies(*given, copies=bundle.copies)
    resident = score_copies(*given, copies=bundle.copies, resident=torch.from_numpy(image_task.inputs(np.arange(160))))
    np.testing.assert_array_equal(resident, read)


def test_a_bundle_alone_knows_its_copies(image_task, tmp_path):
    run = train(doubled(), image_task, seed=0, run_dir=tmp_path / "run")
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("bundle.json", "model.safetensors"):
        (alone / name).write_bytes((run.path / name).read_bytes())
    np.testing.assert_array_equal(predict(alone, image_task), predict(run, image_task))
    entry = json.loads((alone / "bundle.json").read_text())
    damaged = ({"number": 0}, {"number": 3}, {"number": 2.5, "augment": entry["copies"]["augment"]}, 5, "many",
               {"number": 10**9, "augment": entry["copies"]["augment"]}, {"number": 3, "augment": {"type": "SGDSpec"}},
               {"number": 3, "augment": {**entry["copies"]["augment"], "mixup": 1.0}})  # fmt: skip
    for copies in damaged:
        (alone / "bundle.json").write_text(json.dumps({**entry, "copies": copies}))
        with pytest.raises(ValueError, match="damaged or of another version"):
            Bundle.load(alone)
    (alone / "bundle.json").write_text("{")
    with pytest.raises(ValueError, match=r"another version \(Expecting"):  # words, and no JSONDecodeError('...')
        Bundle.load(alone)
    del entry["copies"]  # as it was before there were any
    (alone / "bundle.json").write_text(json.dumps(entry))
    np.testing.assert_array_equal(predict(alone, image_task), predict(run, image_task, tta=0))


def test_a_guarded_run_compares_and_tells_of_copies(image_task, tmp_path):
    run = train(doubled(guard=True), image_task, seed=0, run_dir=tmp_path / "guarded")
    first = baseline_run(run, image_task)
    assert first is not None
    rows = image_task.labelled("test")
    np.testing.assert_allclose(predict(first, image_task, rows=rows), first.scores("test")[0], rtol=1e-5)
    assert (predict(first, image_task, rows=rows, tta=0) != first.scores("test")[0]).any()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((ce(),), "give the last stage an augment"),
        ((ce(augment=Augment(crop_padding=1)), auc()), "give the last stage an augment"),
        ((ce(), auc(augment=Augment(crop_padding=1))), "needs the same augment"),
        ((ce(augment=Augment(crop_padding=1)), auc(augment=Augment(crop_padding=2))), "needs the same augment"),
        ((views(),), "give the last stage an augment"),
    ],
)
def test_copies_that_no_stage_can_make_are_refused_before_training(stages, message):
    with pytest.raises(ValueError, match=message):
        Recipe(model=MODEL, stages=stages, tta=2)


@pytest.mark.parametrize("number", [-1, 1.5, 1001])
def test_a_number_of_copies_is_whole_and_in_reach(number):
    with pytest.raises(ValueError, match="1 to 1000 copies"):
        Recipe(model=MODEL, stages=(ce(augment=Augment(crop_padding=1)),), tta=number)
