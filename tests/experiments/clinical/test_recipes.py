"""The medical recipes say what the paper prints (D5 to D8), and a stand-in changes no more than it may."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from deepauc.data.task import UNCERTAIN
from deepauc.models.build import TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec
from deepauc.training.engine.loop import train
from experiments.clinical import studies
from experiments.clinical.chest import PRINTED_STAND_IN, REAL
from experiments.clinical.recipes import CHEXPERT, DDSM, MELANOMA, METHODS, PCAM, arguments, network_of

auc_m, ce = METHODS["auc_m"], METHODS["ce"]

LENGTHS = {"epochs", "auc_epochs", "milestones"}


def of(loss, settings):
    return METHODS[loss](**arguments(loss, settings))


def lr(stage, iteration, per_epoch, total=10**6):
    return stage.optimizer.lr * stage.schedule.factor(iteration, total=total, per_epoch=per_epoch)


@pytest.mark.parametrize("settings", [CHEXPERT, MELANOMA, DDSM, PCAM])
def test_auc_losses_have_two_stages_and_the_others_one(settings):
    for loss in METHODS:
        recipe = of(loss, settings)
        assert not recipe.guard
        assert isinstance(recipe.stages[0].optimizer, AdamSpec)
        if loss in ("ce", "focal"):
            assert len(recipe.stages) == 1
            continue
        first, last = recipe.stages
        assert isinstance(first.objective, CrossEntropy)
        assert isinstance(last.optimizer, PESGSpec)
        assert last.reset_classifier
        assert not first.reset_classifier
        assert last.resolved_bound == "sigmoid"


def test_chexpert_as_printed():
    first, last = of("auc_m", CHEXPERT).stages
    assert (first.optimizer.lr, first.optimizer.weight_decay, first.epochs, first.batch_size) == (1e-5, 1e-5, 2, 32)
    assert (last.epochs, last.optimizer.weight_decay) == (2, 0)
    assert [lr(last, t, 6981) for t in (1999, 2000, 8000)] == pytest.approx([0.1, 0.1 / 3, 0.1 / 9])
    assert last.schedule.renews(2000, per_epoch=6981)
    assert first.augment.rotation
    assert first.augment.translation
    assert first.augment.scale != (1.0, 1.0)


def test_melanoma_as_printed():
    (alone,) = of("ce", MELANOMA).stages
    assert (alone.epochs, alone.batch_size, alone.optimizer.weight_decay) == (16, 256, 1e-5)
    assert [lr(alone, t, 10) for t in (0, 40, 80)] == pytest.approx([3e-5, 2.4e-4, 3e-5])
    last = of("auc_m", MELANOMA).stages[-1]
    assert (last.epochs, last.optimizer.gamma) == (35, 1 / 500)
    assert [lr(last, 10 * epoch, 10) for epoch in (9, 10, 20, 30)] == pytest.approx([0.01, 0.005, 0.0025, 0.00125])
    change = alone.augment
    assert change.flip
    assert all((change.rotation, change.shear, change.coarse_dropout))
    assert change.scale != (1.0, 1.0)


def test_ddsm_and_patchcamelyon_as_printed():
    for settings, batch in ((DDSM, 32), (PCAM, 64)):
        first, last = of("auc_m", settings).stages
        assert (first.batch_size, first.epochs, last.epochs) == (batch, 5, 1)
        assert (first.optimizer.weight_decay, last.optimizer.weight_decay) == (1e-5, 0)
        assert of("ce", settings).model.name == "densenet121"
    sizes = {loss: len(study.configs) for loss, study in zip(METHODS, studies.ddsm().studies, strict=True)}
    assert sizes == {"ce": 5, "focal": 45, "auc_s": 9, "auc_m": 36}


@pytest.mark.parametrize(
    ("stand_in", "original"), [(studies.SMALL_SETS["path"][1], PCAM), (studies.HAM, MELANOMA)], ids=["path", "ham"]
)
def test_stand_ins_differ_in_length_alone(stand_in, original):
    assert {key for key in stand_in if stand_in[key] != original.get(key)} <= LENGTHS


def timeless(recipe):
    """Without its length, and without weights from elsewhere: none are at hand for a stand-in."""
    stages = tuple(replace(stage, epochs=1) for stage in recipe.stages)
    model = replace(recipe.model, pretrained=False) if isinstance(recipe.model, TimmSpec) else recipe.model
    return replace(recipe, model=model, stages=stages)


@pytest.mark.parametrize(
    ("stand_in", "original", "real"),
    [
        ("breast-printed", "ddsm-D", studies.ddsm),
        ("path-printed", "pcam-D", studies.pcam),
        ("ham-printed-B5-32", "melanoma-B5-384", studies.melanoma),
        ("ham-printed-meta", "melanoma-meta", studies.melanoma),
    ],
)
def test_a_printed_stand_in_differs_in_task_size_and_epochs_alone(stand_in, original, real):
    """Recipe by recipe: all that is tried, how it is chosen, and from where the rest is taken."""
    by_name = {study.name: study for study in (*studies.medical().studies, *real().studies)}
    for loss in METHODS:
        own, its = by_name[f"{stand_in}-{loss}"], by_name[f"{original}-{loss}"]
        assert own.configs == its.configs
        assert own.select == its.select
        recipes = [[timeless(study.recipe(config, "tuning")) for config in study.configs] for study in (own, its)]
        assert recipes[0] == recipes[1]
        inherited = [(study.inherits.study.rpartition("-")[2], study.inherits.axes) if study.inherits else None
                     for study in (own, its)]  # fmt: skip
        assert inherited[0] == inherited[1]


def test_printed_networks_of_skin_inherit_from_the_first():
    by_name = {study.name: study for study in studies.medical().studies}
    others = [name for name in by_name if name.startswith("ham-printed-B") and "-B5-32" not in name]
    assert others
    for name in others:
        loss = name.rpartition("-")[2]
        inherits = by_name[name].inherits
        assert (None if inherits is None else inherits.study) == (
            "ham-printed-B5-32-auc_m" if loss == "auc_m" else None
        )


def test_the_printed_chest_design_is_chexperts_but_for_epochs():
    same = ("networks", "seeds", "losses", "masked")
    assert all(getattr(PRINTED_STAND_IN, name) == getattr(REAL, name) for name in same)
    assert PRINTED_STAND_IN.settings.keys() == REAL.settings.keys()
    changed = {name for name, value in REAL.settings.items() if PRINTED_STAND_IN.settings[name] != value}
    assert changed == {"epochs", "auc_epochs"}


def test_one_stage_lasts_as_long_as_two():
    by_name = {study.name: study for study in studies.medical().studies}
    for cell in ("breast-R-paper", "pneumonia-R-ours", "path-printed", "ham-R-64", "ham-printed-B5-32", "isic-M"):
        lengths = {}
        for loss in METHODS:
            study = by_name[f"{cell}-{loss}"]
            lengths[loss] = sum(stage.epochs for stage in study.recipe(study.configs[0], "final").stages)
            assert study.seeds == (0, 1, 2, 3, 4)
        assert len(set(lengths.values())) == 1, lengths


def test_smoothed_labels_make_a_soft_first_stage_and_a_hard_second():
    recipe = auc_m(uncertain="smooth_ones", hard="ones")
    assert [stage.objective.soft_labels for stage in recipe.stages] == [True, False]
    assert [stage.uncertain for stage in recipe.stages] == ["smooth_ones", "ones"]
    assert not ce(uncertain={"a": "zeros"}).stages[0].objective.soft_labels


def test_the_focal_loss_takes_smoothed_labels_too(spots_task, tmp_path):
    task = spots_task()
    train_rows = task.part("train")
    task = task.with_labels(np.where(np.isin(np.arange(len(task)), train_rows[::5]), UNCERTAIN, task.labels))
    for uncertain in ("smooth_ones", {"spot": "smooth_zeros"}):
        recipe = METHODS["focal"](
            network="S", epochs=1, batch_size=16, augment="none", precision="float32", uncertain=uncertain
        )
        assert recipe.stages[0].objective.soft_labels
        assert train(recipe, task, seed=0, run_dir=tmp_path / str(len(uncertain)), device="cpu").history
    assert not METHODS["focal"](uncertain="ones").stages[0].objective.soft_labels


def test_networks_by_name():
    assert network_of("tf_efficientnet_b5", pretrained=True) == TimmSpec(name="tf_efficientnet_b5", pretrained=True)
    assert network_of("D").activation == "elu"
    with pytest.raises(ValueError, match="leave pretrained out"):
        network_of("R", pretrained=True)
    with pytest.raises(ValueError, match="augment must be one of"):
        ce(augment="chests")
    with pytest.raises(ValueError, match="set one of them"):
        ce(cycle=8, cosine=True)


def test_methods_are_told_apart():
    assert isinstance(METHODS["focal"](focal_alpha=0.5).stages[0].objective, Focal)
    assert METHODS["auc_m"](margin=0.3).stages[-1].objective == AUCMargin(margin=0.3)
    for method in METHODS.values():
        kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}
