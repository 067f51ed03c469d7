"""A trained run for other programs: as an ONNX file that is checked against torch, or as a copy of its bundle."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.images.decode import ImageError, decode_image, read_image_file
from deepauc.models.bags import PoolsImages
from deepauc.models.build import is_of_bags
from deepauc.reporting.operating_card import operating_card
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.output_file import require_output, require_output_folder, write_atomically, write_output
from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own
from deepauc.training.run.scores import read_run_scores
from deepauc.training.test_time import Copies

COMPARED = 32  # inputs that both programs score
TOLERANCE = 1e-3  # of the largest score, or absolutely where scores are small
BUNDLE_FILES = (MODEL, BUNDLE)
INPUT, OUTPUT = "inputs", "scores"


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """The file, and by how much its scores differ from torch's on `compared` inputs (`source` says which).

    copies: of an image, which the file makes and whose mean score it gives, as the run's own scores are; 0: none.
    """

    path: Path
    max_difference: float
    tolerance: float
    compared: int
    source: str
    copies: int = 0


def export_onnx(
    run_dir: str | Path, path: str | Path, *, force: bool = False, images_of: str | Path | None = None
) -> OnnxExport:
    """An ONNX file that takes inputs as they are and gives raw scores, (N, L); compared with torch before it stays.

    Of a run on bags the N inputs are the images of one bag, as many as it has, and there is one score, (1, L).

    Inputs: uint8 images (N, H, W, C) at the run's size, or float32 features (N, F): normalisation is part of the file,
    and so are the copies of an image, where the run's scores are means over them. force: also of a network that is not
    the one that the run in this folder trained. images_of: the run whose images both are compared on; this one.
    """
    onnx, onnxruntime = onnx_packages()
    folder, path = Path(run_dir), Path(path)
    bundle = Bundle.load(folder)
    require_own(folder, *BUNDLE_FILES, force=force)
    of_bags = is_of_bags(bundle.model)
    network = _AsScored(bundle.network(folder), bundle.preprocessing, bundle.copies, of_bags=of_bags).eval()
    inputs, source = _examples(Path(images_of or folder), bundle)
    require_output(path, "the ONNX file")
    with tempfile.TemporaryDirectory() as place:
        draft = Path(place) / "draft.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's remarks on its own workings
            torch.onnx.export(
                network,
                (torch.from_numpy(inputs[:2]),),
                draft,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        model = onnx.load(draft)
        known = replace(bundle, cautions=_cautions(folder, bundle))
        for key, value in _properties(known, _feature_names(folder, bundle)).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(model, draft)
        session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
        theirs = session.run([OUTPUT], {INPUT: inputs})[0]
        with torch.no_grad():
            ours = network(torch.from_numpy(inputs)).numpy()
        difference = float(np.abs(theirs - ours).max())
        tolerance = TOLERANCE * max(1.0, float(np.abs(ours).max()))
        if not difference <= tolerance:
            raise ValueError(
                f"the ONNX file's scores differ from torch's by {difference:.2g}, more than {tolerance:.2g}: "
                "it was not kept. The exporter may not support this network."
            )
        write_output(path, draft.read_bytes())
    return OnnxExport(
        path=path,
        max_difference=difference,
        tolerance=tolerance,
        compared=len(inputs),
        source=source,
        copies=0 if bundle.copies is None else bundle.copies.number,
    )


def copy_bundle(run_dir: str | Path, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
    """The two files that `predict` and plain torch load a network from, into a new or empty folder. force: as above."""
    source, target = Path(run_dir), Path(folder)
    bundle = Bundle.load(source)
    require_own(source, *BUNDLE_FILES, force=force)
    bundle.network(source)  # fails here, not at the user's, where weights and description do not fit
    require_output_folder(target)
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} exists and is not empty: choose another folder for the bundle.")
    target.mkdir(parents=True, exist_ok=True)
    files = tuple(target / name for name in BUNDLE_FILES)
    # Without run.json nothing else tells one column from another, and nothing says what the report warns of.
    known = replace(bundle, features=_feature_names(source, bundle), cautions=_cautions(source, bundle))
    try:
        for file in files:
            write_atomically(file, (source / file.name).read_bytes())
        if known != bundle:
            known.save(target)
    except OSError:  # a half-filled folder would refuse the next attempt
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return files


def _cautions(folder: Path, bundle: Bundle) -> tuple[str, ...]:
    """Those of the report; of a bundle without its run the bundle's own."""
    card = operating_card(folder)
    return bundle.cautions if card is None else card.cautions


def _feature_names(folder: Path, bundle: Bundle) -> tuple[str, ...]:
    """The columns of numbers that the network takes, in order; none where they are not known."""
    if bundle.features or len(bundle.shape) == 3 or bundle.metadata is not None:
        return bundle.features
    run = RunFolder(folder)
    names = run.record().data.feature_columns if run.record_path.exists() else ()
    return names if len(names) == bundle.shape[0] else ()


class _AsScored(nn.Module):
    """Inputs as they come -> raw scores, as the run's own are made. Numbers are buffers: they travel in the file."""

    def __init__(
        self, network: nn.Module, preprocessing: Preprocessing, copies: Copies | None, *, of_bags: bool
    ) -> None:
        super().__init__()
        self.network, self.images, self.copies, self.of_bags = network, preprocessing.images, copies, of_bags
        self.register_buffer("changes", None if copies is None else copies.changes())
        shape = (1, -1, 1, 1) if preprocessing.images else (1, -1)
        self.register_buffer("mean", torch.tensor(preprocessing.mean).reshape(shape))
        self.register_buffer("std", torch.tensor(preprocessing.std).reshape(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        if isinstance(self.network, PoolsImages) and self.of_bags:
            return self._bag_score(self.network, inputs)
        if self.copies is None:
            return self._scores(inputs.permute(0, 3, 1, 2).float() / 255 if self.images else inputs)
        rows, number = inputs.shape[0], self.copies.number
        many = inputs.unsqueeze(1).expand(-1, number, -1, -1, -1).flatten(0, 1)
        changes = self.get_buffer("changes").unsqueeze(0).expand(rows, -1, -1).flatten(0, 1)
        scores = self._scores(self.copies.augment.apply(many, changes))
        return scores.reshape(rows, number, -1).mean(1)

    def _scores(self, inputs: Tensor) -> Tensor:
        return self.network(self._standardised(inputs))

    def _bag_score(self, network: PoolsImages, inputs: Tensor) -> Tensor:
        """(1, L), of the images of one bag; of copies the mean, all images of the bag changed alike in each."""
        images, number = inputs.shape[0], 1
        if self.copies is None:
            seen = inputs.permute(0, 3, 1, 2).float() / 255 if self.images else inputs
        else:
            number = self.copies.number
            many = inputs.unsqueeze(0).expand(number, -1, -1, -1, -1).flatten(0, 1)
            changes = self.get_buffer("changes").unsqueeze(1).expand(-1, images, -1).flatten(0, 1)
            seen = self.copies.augment.apply(many, changes)
        outputs = network.image_outputs(self._standardised(seen)).reshape(number, images, -1)
        present = torch.ones(number, images, dtype=torch.bool, device=inputs.device)
        return network.pool(outputs, present).mean(0, keepdim=True)

    def _standardised(self, inputs: Tensor) -> Tensor:
        return (inputs - self.get_buffer("mean")) / self.get_buffer("std")


def _properties(bundle: Bundle, features: tuple[str, ...] = ()) -> dict[str, str]:
    copies = ""
    if bundle.copies is not None:
        copies = f"; the mean over {bundle.copies.number} augmented copies of an image, which the file makes itself"
    named = {"features": json.dumps(features)} if features else {}  # the columns, in order
    inputs = "uint8 images (N, H, W, C)" if bundle.preprocessing.images else "float32 features (N, F)"
    if is_of_bags(bundle.model):
        inputs += ", those of one bag, which get one score"
    if bundle.metadata is not None:
        named["metadata"] = json.dumps(bundle.metadata)
        inputs += ": the columns as `metadata` encodes them"
    if bundle.picture is not None:
        named["picture"] = json.dumps(list(bundle.picture))
        inputs = (
            "float32 (N, H * W * C + F): the pixels of an image of shape `picture`, divided by 255, row by row, "
            "then the columns as `metadata` encodes them"
        )
    return named | {
        "labels": json.dumps(list(bundle.label_names)),
        "thresholds": json.dumps(bundle.thresholds),
        "calibration": json.dumps(bundle.calibration),
        "cautions": json.dumps(list(bundle.cautions)),
        "inputs": inputs,
        "scores": "raw, higher for more likely positive; `calibration` makes probabilities of them" + copies,
        "notice": "not a medical device",
    }


def _examples(folder: Path, bundle: Bundle) -> tuple[npt.NDArray[Any], str]:
    """Inputs to compare on: the run's own images where they are still there, else made ones."""
    if bundle.preprocessing.images:
        found = _own_images(folder, bundle)
        if len(found) >= 2:
            return np.stack(found), f"{len(found)} images of the run's own table"
    generator = np.random.default_rng(0)
    if bundle.preprocessing.images:
        made = generator.integers(0, 256, (COMPARED, *bundle.shape), dtype=np.uint8)
        return made, f"{COMPARED} images of noise (the run's own image files were not found)"
    normal = generator.normal(size=(COMPARED, *bundle.shape))
    features = normal * np.array(bundle.preprocessing.std) + np.array(bundle.preprocessing.mean)
    return features.astype(np.float32), f"{COMPARED} rows drawn at the mean and spread of the training data"


def _own_images(folder: Path, bundle: Bundle) -> list[npt.NDArray[np.uint8]]:
    run = RunFolder(folder)
    table = run.record().data.table if run.record_path.exists() else None
    if not table or not (folder / SCORES).exists():
        return []
    scores = read_run_scores(folder)
    names = [] if scores.ids is None else scores.ids[scores.parts != "train"].tolist()
    images = []
    for name in names[:: max(1, len(names) // COMPARED)][:COMPARED]:
        try:
            content = read_image_file(str(Path(table).parent / name))
            size = bundle.shape[0], bundle.shape[1]
            images.append(decode_image(content, channels=bundle.shape[2], size=size, window=bundle.window))
        except ImageError:
            continue
    return images


def onnx_packages() -> tuple[Any, Any]:
    """onnx and onnxruntime, or a ValueError with the remedy."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX needs {', '.join(missing)}: pip install 'deepauc[onnx]'.")
    return import_module("onnx"), import_module("onnxruntime")
