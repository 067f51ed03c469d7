"""The study of ImageNet weights: what its recipes hold, how images are enlarged, that its page tells what was asked."""

from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import TaskSource
from deepauc.training.engine.loop import can_be_fast
from experiments.clinical.pretrained import (
    BEGINS,
    CPU,
    CPU_RATES,
    KNOWN,
    LOSSES,
    MEDICAL,
    EnlargedSource,
    enlarge,
    pack_of,
    pretrained_set,
    printed,
    started,
)
from experiments.clinical.pretrained_page import PAGE

STUDIES = {study.name: study for study in pretrained_set().studies}


def test_every_set_has_every_start_and_both_losses():
    wanted = {f"{name}-{begin}-{loss}" for name in MEDICAL for begin in BEGINS for loss in LOSSES}
    wanted |= {f"{name}-{begin}-{loss}" for name in KNOWN for begin in BEGINS[1:] for loss in LOSSES}
    wanted |= {f"{CPU}-{begin}-{loss}" for begin in CPU_RATES for loss in LOSSES}
    wanted |= {f"printed-{short}-{loss}" for short in ("lite0", "lite2") for loss in LOSSES}
    assert STUDIES.keys() == wanted
    assert all(study.seeds == (0, 1, 2, 3, 4) for study in STUDIES.values())
    assert all(pack_of(study) >= 1 for study in STUDIES.values())


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_as_the_weights_expect_and_layers_as_the_start_says(channels):
    made = {begin: started(loss="auc_m", begin=begin, channels=channels) for begin in BEGINS}
    assert made["scratch"].input_mean is None
    for begin in BEGINS[1:]:
        recipe = made[begin]
        assert recipe.input_mean == pytest.approx((127 / 255,) * channels)
        assert recipe.input_std == pytest.approx((128 / 255,) * channels)
        assert recipe.model.pretrained
    assert not made["scratch"].model.pretrained
    assert [made[begin].frozen for begin in BEGINS] == [False, True, False]
    assert [can_be_fast(made[begin]) for begin in BEGINS] == [True, False, True]
    assert [made[begin].stages[1].backbone_rate for begin in BEGINS] == [1, 1, 0.1]
    assert made["frozen"].stages[0].augment is None


def test_cross_entropy_alone_lasts_as_long_as_both():
    for begin in BEGINS:
        one, both = (started(loss=loss, begin=begin).stages for loss in LOSSES)
        assert one[0].epochs == sum(stage.epochs for stage in both)
    one, both = (printed(loss=loss).stages for loss in LOSSES)
    assert one[0].epochs == sum(stage.epochs for stage in both) == 51


def test_the_melanoma_recipe_is_the_printed_one():
    first, second = printed(loss="auc_m", network="tf_efficientnet_lite2", margin=0.3).stages
    assert (first.optimizer.lr, first.schedule.period, first.batch_size) == (3e-5, 8, 256)
    assert (second.optimizer.lr, second.optimizer.gamma, second.objective.margin) == (0.01, 1 / 500, 0.3)
    assert (second.reset_classifier, second.schedule.milestones) == (True, (10, 20, 30))
    assert (second.schedule.factor_each, second.epochs) == (0.5, 35)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_enlarged_as_pillow_does(channels):
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 12, channels)).astype(np.uint8)
    found = enlarge(images, 40)
    for mine, image in zip(found, images, strict=True):
        picture = Image.fromarray(image.squeeze(2) if channels == 1 else image).resize((40, 40), Image.BILINEAR)
        theirs = np.asarray(picture).reshape(40, 40, channels).astype(int)
        assert np.abs(mine.astype(int) - theirs).max() <= 1


@dataclass(frozen=True, kw_only=True)
class Two(TaskSource):
    """Two training sets of the same images."""

    name: str = "two"

    def load(self, seed, *, tuning, place):
        return Task(
            name="two",
            kind="binary",
            source=ArrayInputs(IMAGES),
            labels=np.arange(20) % 2,
            label_names=("y",),
            parts={"train": np.arange(seed, 10), "test": np.arange(10, 20)},
        )


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1)).astype(np.uint8)


def test_runs_on_the_same_images_share_the_enlarged_ones():
    first, second = (EnlargedSource(source=Two(), side=16).load(seed, tuning=False, place=None) for seed in (0, 1))
    assert first.source is second.source
    assert first.source.shape == (16, 16, 1)
    assert len(first.part("train")) == len(second.part("train")) + 1


def recorded(results, study, auc, seed, copies=None):
    record = {"study": study, "phase": "final", "run": f"{study} {seed}", "seed": seed, "set": "pretrained"}
    record |= {"config": {}, "fixed": {}, "auc": {"test": [auc, auc - 0.02, auc + 0.02]}, "seconds": 1.0}
    scores = {} if copies is None else {"test_scores": {"tta_auc": copies}}
    RecordBook(results / "pretrained").add({**record, "history": {}, "cut": {}, **scores})


def test_the_page(tmp_path):
    for seed in range(5):
        noise = seed * 1e-3
        recorded(tmp_path, "ham-tuned-ce", 0.90 + noise, seed, copies=0.91 + noise)
        recorded(tmp_path, "ham-tuned-auc_m", 0.92 + 2 * noise, seed, copies=0.93 + 2 * noise)
        recorded(tmp_path, "ham-scratch-auc_m", 0.88, seed, copies=0.89)
        recorded(tmp_path, "C10-frozen-ce", 0.91, seed)
        for number, finding in enumerate(name for name in MEDICAL if name.startswith("nih-")):
            recorded(tmp_path, f"{finding}-tuned-ce", 0.70 + number / 100, seed)
            recorded(tmp_path, f"{finding}-tuned-auc_m", 0.73 + number / 100, seed)
    page = PAGE.markdown(tmp_path)
    rows = [" ".join(line.split()) for line in page.splitlines() if line.startswith("|")]
    (ham,) = [row for row in rows if "| ham | pretrained, fine-tuned | CE, then AUC-M | 0.9" in row]
    assert "| 0.924 ± 0.003 | [0.904, 0.944] | 0.934 ± 0.003 | 5 | +0.022 [+0.020, +0.024] |" in ham
    assert any("| ham | pretrained, fine-tuned | CE, then AUC-M | +0.044 [+0.040, +0.048] |" in row for row in rows)
    assert any("| pretrained, fine-tuned | CE | 5 | 0.720 ± 0.000 |" in row for row in rows)
    assert "pretrained" in page.partition("## C10 and C100")[2].splitlines()[0]
    summary = PAGE.summary(tmp_path)["pretrained"]
    assert summary["nih"]["tuned"]["ce"]["mean"] == pytest.approx(0.72)
    assert summary["nih"]["tuned"]["auc_m-ce"]["mean"] == pytest.approx(0.03)
    assert summary["ham"]["tuned"]["auc_m-ce"]["mean"] == pytest.approx(0.022)
    assert summary["ham"]["tuned"]["auc_m"]["tta"] == pytest.approx(0.934)
    assert summary["ham"]["tuned"]["auc_m-scratch"]["mean"] == pytest.approx(0.044)
