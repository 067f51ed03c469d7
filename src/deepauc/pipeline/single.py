"""The network of one fold instead of the average of all: a fifth of the disk and of the time of a prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from torch import nn

from deepauc.models.average import AverageNetwork, AverageSpec, OnPictures, OnPicturesSpec
from deepauc.pipeline.candidates import METADATA, HeldOut, cross_fitted, network_names
from deepauc.pipeline.fold_average import held_out_thresholds
from deepauc.reporting.folds import candidate_text
from deepauc.reporting.operating_card import operating_card
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, save_weights
from deepauc.training.run.fold_record import FoldsRecord
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import BUNDLE, MODEL, require_own
from deepauc.training.run.record import RunRecord
from deepauc.training.run.run import Run
from deepauc.training.run.scores import OOF, Scores, read_run_scores


@dataclass(frozen=True, kw_only=True)
class Single:
    """Whose network it is. text: the same for people."""

    candidate: str
    fold: str

    @property
    def text(self) -> str:
        return f"fold {self.fold}, {candidate_text(self.candidate)}"


def has_folds(run_dir: str | Path) -> bool:
    """Whether it is a run with folds, whose network is an average; not one is a bundle without its run."""
    folder = RunFolder(Path(run_dir))
    return folder.record_path.exists() and folder.record().folds is not None


def save_single(run_dir: str | Path, folder: Path, *, force: bool = False) -> Single:
    """model.safetensors and bundle.json of one fold's network, as log odds, into a folder that is there.

    Of the kept candidate; of an average, its better network on held-out rows. The fold is the one with the most rows to
    train on, else the first: its held-out AUC is too noisy to go by. The AUC of the report judges such networks.
    """
    place = Path(run_dir)
    run = Run(place)
    record = run.record
    folds = record.folds
    if folds is None or folds.choice is None:
        raise ValueError(f"{place} was trained on one split: its network is a single one already.")
    require_own(place, MODEL, BUNDLE, force=force)
    bundle = Bundle.load(place)
    average = bundle.network(place)
    assert isinstance(bundle.model, AverageSpec)
    assert isinstance(average, AverageNetwork)
    names = network_names(record.recipe())
    held_out = read_run_scores(place).part(OOF)
    number = _largest_training(held_out, folds)
    kept = folds.choice.kept
    of_images = kept.removesuffix(f" with {METADATA}")
    members = (of_images,) if of_images in (*names, METADATA) else names
    name = max(members, key=lambda one: _auc(folds, one))
    position = members.index(name) * len(folds.names) + number
    member, spec = average.members[position], bundle.model.members[position]
    buffers = {buffer: average.get_buffer(buffer)[position] for buffer in ("mean", "std", "slope", "intercept")}
    if isinstance(member, OnPictures) and isinstance(spec, OnPicturesSpec):  # of both inputs it takes the images
        bundle = replace(
            bundle,
            shape=spec.shape,
            preprocessing=Preprocessing(mean=(0.0,) * spec.shape[2], std=(1.0,) * spec.shape[2], images=True),
            metadata=None,
            picture=None,
        )
        buffers |= {buffer: member.get_buffer(buffer) for buffer in ("mean", "std")}
        member, spec = member.member, spec.member
    model = AverageSpec(members=(spec,))
    network = model.build(in_channels=bundle.shape[-1], num_outputs=len(bundle.label_names))
    assert isinstance(network, AverageNetwork)
    network.members = nn.ModuleList([member])
    for buffer, own in buffers.items():
        network.get_buffer(buffer).copy_(own[None])
    alone = kept == name and folds.choice.with_trivial is None
    card = operating_card(place)
    save_weights(folder / MODEL, network)
    replace(
        bundle,
        model=model,
        thresholds=bundle.thresholds if alone else _thresholds(place, record, folds, name),
        features=bundle.features or record.data.feature_columns,
        cautions=bundle.cautions if card is None else card.cautions,
    ).save(folder)
    return Single(candidate=name, fold=folds.names[number])


def _largest_training(held_out: Scores, folds: FoldsRecord) -> int:
    """The fold that holds out the fewest rows; of several the first."""
    assert held_out.folds is not None
    return int(np.argmin([int((held_out.folds == name).sum()) for name in folds.names]))


def _auc(folds: FoldsRecord, candidate: str) -> float:
    assert folds.choice is not None
    return fmean(row.auc.value for row in folds.choice.board if row.candidate == candidate)


def _thresholds(place: Path, record: RunRecord, folds: FoldsRecord, name: str) -> dict[str, dict[str, float]]:
    """Of this network's own held-out log odds, where the bundle has those of an average."""
    each = [place / f"fold-{number + 1}" for number in range(len(folds.names))]
    if name != network_names(record.recipe())[-1]:
        each = [one / (METADATA if name == METADATA else "baseline") for one in each]
    parts = [read_run_scores(one, other_labels="kept").part("test") for one in each]
    rows = HeldOut(
        label_names=record.task.labels,
        labels=np.concatenate([part.labels for part in parts]).astype(np.float64),
        fold=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        groups=None,
        networks={name: np.concatenate([part.scores for part in parts])},
        trivial={},
    )
    return held_out_thresholds(rows, cross_fitted(rows, name))
