"""How many medical runs go side by side on a GPU where nobody says: by the images, the batches and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepauc.models.build import MLPSpec, ModelSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.studies.study import Study
from deepauc.training.plain import valid_name
from deepauc.training.recipe import Recipe
from experiments.clinical.tasks import MedicalSource

MOST = 24
LARGE = 128  # pixels a side: above it one run keeps a GPU busy, and several only need its memory
MEMORY = 16 * 2**30  # bytes for the activations of all of them: a card of 24 GB has them, weights and images besides
# Bytes that the backward pass keeps for a pixel of the batch in bfloat16, counted on tensors without content.
_RESNET20, _SMALL, _OTHER = 742, 350, 3100
_TIMM: Mapping[str, int] = {
    "densenet121": 1287,
    "densenet161": 2403,
    "densenet169": 1556,
    "densenet201": 2011,
    "inception_resnet_v2": 1036,
    "tf_efficientnet_b3": 1760,
    "tf_efficientnet_b5": 3088,
    "tf_efficientnet_b6": 4070,
}
_OWN_SIDES: Mapping[str, int] = {"breastmnist": 28, "pneumoniamnist": 28, "pathmnist": 28, "ham10000": 64, "pcam": 96,
                                 "ddsm": 224, "melanoma": 384}  # fmt: skip
_TABLES = ("isic2020",)  # data sets without images


def side_by_side(recipe: Recipe, shape: Sequence[int]) -> int:
    """For images of this shape, (H, W, C); 1 above 128 pixels, else as many as the memory holds, at most 24."""
    if len(shape) != 3 or isinstance(recipe.model, MLPSpec):
        return MOST
    height, width = shape[:2]
    if max(height, width) > LARGE:
        return 1
    images = max(stage.views * -(-stage.batch_size // stage.accumulate) for stage in recipe.stages)
    return max(1, min(MOST, MEMORY // (images * height * width * _bytes_a_pixel(recipe.model))))


def pack_of(study: Study) -> int:
    """For a study of `medical`, `melanoma`, `ddsm` or `pcam`, before its images are read."""
    source = study.task
    assert isinstance(source, MedicalSource)
    side = 0
    if not source.metadata and source.dataset not in _TABLES:
        # Taken for a table, images whose side nobody has named would be packed by dozens.
        side = source.size or _OWN_SIDES[valid_name(source.dataset, list(_OWN_SIDES), "data set of known image size")]
    recipe = study.recipe(study.configs[0], "final")
    return side_by_side(recipe, (side, side, 3) if side else (1,))


def _bytes_a_pixel(model: ModelSpec) -> int:
    if isinstance(model, ResNet20Spec):
        return _RESNET20
    if isinstance(model, SmallCNNSpec):
        return _SMALL
    return _TIMM.get(model.name, _OTHER) if isinstance(model, TimmSpec) else _OTHER
