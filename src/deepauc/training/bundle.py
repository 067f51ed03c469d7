"""What `predict` and ten lines of plain torch load: weights as safetensors, everything else as json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from deepauc.models.build import ModelSpec, architecture, build_model
from deepauc.training.checkpoint import write_atomically
from deepauc.training.plain import from_plain, to_plain
from deepauc.training.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A trained network with its preprocessing, label names, thresholds and recalibration (both from validation).

    thresholds: by label, specificity -> threshold. calibration: by label, a recalibrator as plain data.
    metadata: a `MetadataEncoder` as plain data where the inputs are encoded metadata columns.
    """

    model: ModelSpec
    shape: tuple[int, ...]
    kind: str
    label_names: tuple[str, ...]
    preprocessing: Preprocessing
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None

    def save(self, folder: Path) -> None:
        """bundle.json beside model.safetensors."""
        plain = {
            "format": 1,
            "model": to_plain(self.model),
            "shape": list(self.shape),
            "kind": self.kind,
            "label_names": list(self.label_names),
            "preprocessing": {
                "mean": list(self.preprocessing.mean),
                "std": list(self.preprocessing.std),
                "images": self.preprocessing.images,
            },
            "thresholds": self.thresholds,
            "calibration": self.calibration,
            "metadata": self.metadata,
        }
        write_atomically(folder / "bundle.json", (json.dumps(plain, indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """From a run folder, or any folder with the two files."""
        path = Path(folder) / "bundle.json"
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                model=from_plain(plain["model"]),
                shape=tuple(int(n) for n in plain["shape"]),
                kind=plain["kind"],
                label_names=tuple(plain["label_names"]),
                preprocessing=Preprocessing(
                    mean=tuple(plain["preprocessing"]["mean"]),
                    std=tuple(plain["preprocessing"]["std"]),
                    images=bool(plain["preprocessing"]["images"]),
                ),
                thresholds=plain["thresholds"],
                calibration=plain["calibration"],
                metadata=plain["metadata"],
            )
        except FileNotFoundError:
            raise ValueError(f"{folder} holds no trained network: bundle.json is not there.") from None
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is damaged or of another version ({error!r}).") from error

    def network(self, folder: str | Path) -> nn.Module:
        """The network with its weights, in eval mode, on the CPU."""
        model = build_model(
            architecture(self.model), in_channels=self.shape[-1], num_outputs=len(self.label_names), seed=0
        )
        load_weights(Path(folder) / "model.safetensors", model)
        return model.eval()


def save_weights(path: Path, model: nn.Module) -> None:
    """A network's state dict as safetensors."""
    from safetensors.torch import save

    write_atomically(path, save({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}))


def load_weights(path: Path, model: nn.Module) -> None:
    """A safetensors file into a network; names and shapes must fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        state = load(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: train first, or name the folder of a finished run.") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}). Pickled weights are refused.") from error
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {path} belong to another network: {str(error).splitlines()[-1].strip()}"
        ) from error
