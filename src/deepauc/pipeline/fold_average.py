"""The networks of all folds as one: their recalibrated probabilities averaged, saved as any run's network is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from deepauc.metrics.recalibration import TemperatureScaling
from deepauc.models.average import AverageNetwork, AverageSpec
from deepauc.models.build import architecture
from deepauc.pipeline.candidates import Chosen, Floats, HeldOut, recalibrations
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, save_weights
from deepauc.training.run.operating import thresholds_of


def save_average(out: Path, rows: HeldOut, chosen: Chosen, places: Mapping[str, Sequence[Path]]) -> None:
    """model.safetensors and bundle.json of the average of the kept networks of all folds.

    Its scores are log odds, so that its recalibration is the identity. Thresholds are those of the held-out scores:
    they come from single folds' networks, not from their average.
    """
    members, bundles, scalings, shares = [], [], [], []
    for name, share in chosen.members.items():
        for folder, scaling in zip(places[name], recalibrations(rows, name), strict=True):
            bundle = Bundle.load(folder)
            members.append(bundle.network(folder))
            bundles.append(bundle)
            scalings.append([one for one in scaling.labels if isinstance(one, TemperatureScaling)])
            shares.append(share / len(places[name]))
    first = bundles[0]
    network = AverageNetwork(members, in_channels=first.shape[-1], num_outputs=len(first.label_names))
    with torch.no_grad():
        network.get_buffer("mean").copy_(torch.tensor([bundle.preprocessing.mean for bundle in bundles]))
        network.get_buffer("std").copy_(torch.tensor([bundle.preprocessing.std for bundle in bundles]))
        network.get_buffer("slope").copy_(torch.tensor([[one.slope for one in each] for each in scalings]))
        network.get_buffer("intercept").copy_(torch.tensor([[one.intercept for one in each] for each in scalings]))
        network.get_buffer("share").copy_(torch.tensor(shares))
    as_it_is = TemperatureScaling(slope=1.0, intercept=0.0).to_dict()
    channels = first.shape[-1]
    save_weights(out / "model.safetensors", network)
    replace(
        first,
        model=AverageSpec(members=tuple(architecture(bundle.model) for bundle in bundles)),
        preprocessing=Preprocessing(mean=(0.0,) * channels, std=(1.0,) * channels, images=first.preprocessing.images),
        thresholds=held_out_thresholds(rows, chosen.scores),
        calibration=dict.fromkeys(first.label_names, as_it_is),
    ).save(out)


def held_out_thresholds(rows: HeldOut, odds: Floats) -> dict[str, dict[str, float]]:
    """By label, the held-out log odds (N, L) at which a specificity or a sensitivity is reached."""
    found = {}
    for j, name in enumerate(rows.label_names):
        known = ~np.isnan(rows.labels[:, j])
        scores, labels = odds[known, j], rows.labels[known, j]
        if len(np.unique(labels)) == 2:
            found[name] = thresholds_of(scores, labels)
    return found
