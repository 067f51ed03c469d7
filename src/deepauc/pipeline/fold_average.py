"""The networks of all folds as one: their recalibrated probabilities averaged, saved as any run's network is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deepauc.metrics.recalibration import TemperatureScaling
from deepauc.models.average import (
    AverageNetwork,
    AverageSpec,
    Buildable,
    OnFeatures,
    OnFeaturesSpec,
    OnPictures,
    OnPicturesSpec,
)
from deepauc.models.build import architecture
from deepauc.models.fusion import MetadataEncoder
from deepauc.pipeline.candidates import Chosen, Floats, HeldOut, recalibrations
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, save_weights
from deepauc.training.run.operating import thresholds_of


def save_average(
    out: Path,
    rows: HeldOut,
    chosen: Chosen,
    places: Mapping[str, Sequence[Path]],
    encoder: MetadataEncoder | None = None,
) -> None:
    """model.safetensors and bundle.json of the average of the kept networks of all folds.

    Its scores are log odds, so that its recalibration is the identity. Thresholds are those of the held-out scores:
    they come from single folds' networks, not from their average. encoder: of the metadata of all rows, where some
    networks take metadata, each encoded by its own fold.
    """
    found = [
        (Bundle.load(folder), folder, scaling, share / len(places[name]))
        for name, share in chosen.members.items()
        for folder, scaling in zip(places[name], recalibrations(rows, name), strict=True)
    ]
    pictures = next((bundle for bundle, *_ in found if bundle.metadata is None), None)
    if all(bundle.metadata is None for bundle, *_ in found):
        encoder = None
    both = encoder is not None and pictures is not None
    first = found[0][0] if pictures is None else pictures
    start = prod(first.shape) if both else 0
    members = [_taken_in(bundle, folder, encoder, start, both=both) for bundle, folder, _, _ in found]
    shape = first.shape if encoder is None else (start + len(encoder.feature_names),)
    spec = AverageSpec(members=tuple(own for own, _ in members))
    network = spec.build(in_channels=shape[-1], num_outputs=len(first.label_names))
    assert isinstance(network, AverageNetwork)
    network.members = nn.ModuleList([member for _, member in members])
    with torch.no_grad():
        for number, (bundle, _, scaling, share) in enumerate(found):
            if not isinstance(network.members[number], OnFeatures | OnPictures):  # these standardise by themselves
                network.get_buffer("mean")[number] = torch.tensor(bundle.preprocessing.mean)
                network.get_buffer("std")[number] = torch.tensor(bundle.preprocessing.std)
            linear = [one for one in scaling.labels if isinstance(one, TemperatureScaling)]
            network.get_buffer("slope")[number] = torch.tensor([one.slope for one in linear])
            network.get_buffer("intercept")[number] = torch.tensor([one.intercept for one in linear])
            network.get_buffer("share")[number] = share
    as_it_is = TemperatureScaling(slope=1.0, intercept=0.0).to_dict()
    channels, images = shape[-1], first.preprocessing.images and not both
    save_weights(out / "model.safetensors", network)
    replace(
        first,
        model=spec,
        shape=shape,
        preprocessing=Preprocessing(mean=(0.0,) * channels, std=(1.0,) * channels, images=images),
        thresholds=held_out_thresholds(rows, chosen.scores),
        calibration=dict.fromkeys(first.label_names, as_it_is),
        metadata=None if encoder is None else encoder.to_dict(),
        picture=first.image_shape if both else None,
    ).save(out)


def _taken_in(
    bundle: Bundle, folder: Path, encoder: MetadataEncoder | None, start: int, *, both: bool
) -> tuple[Buildable, nn.Module]:
    """Spec and network of a fold; where inputs are not the same for all, it makes its own of the average's."""
    spec, network, inputs = architecture(bundle.model), bundle.network(folder), bundle.preprocessing
    mean, std = torch.tensor(inputs.mean, dtype=torch.float64), torch.tensor(inputs.std, dtype=torch.float64)
    if encoder is not None and bundle.metadata is not None:
        matrix, offset = MetadataEncoder.from_dict(bundle.metadata).affine_from(encoder)
        features, width = matrix.shape
        wrapped = OnFeatures(network, start=start, inputs=width, features=features)
        wrapped.get_buffer("matrix").copy_(torch.from_numpy(matrix) / std[:, None])
        wrapped.get_buffer("offset").copy_((torch.from_numpy(offset) - mean) / std)
        return OnFeaturesSpec(member=spec, inputs=width, features=features, start=start), wrapped
    if both and bundle.image_shape is not None:
        picture = OnPictures(network, shape=bundle.image_shape)
        picture.get_buffer("mean").copy_(mean)
        picture.get_buffer("std").copy_(std)
        return OnPicturesSpec(member=spec, shape=bundle.image_shape), picture
    return spec, network


def held_out_thresholds(rows: HeldOut, odds: Floats) -> dict[str, dict[str, float]]:
    """By label, the held-out log odds (N, L) at which a specificity or a sensitivity is reached."""
    found = {}
    for j, name in enumerate(rows.label_names):
        known = ~np.isnan(rows.labels[:, j])
        scores, labels = odds[known, j], rows.labels[known, j]
        if len(np.unique(labels)) == 2:
            found[name] = thresholds_of(scores, labels)
    return found
