"""The folder of a run: run.json, history.csv, scores.csv, model.safetensors, DONE. All written atomically."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from deepauc.names import counted
from deepauc.training.run.output_file import write_atomically
from deepauc.training.run.record import Identity, RunRecord

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scikit-learn", "safetensors")
# Goes up when a change of the code can alter the results of a run, and then the changelog says so. `study status` flags
# records of another version; a change that cannot alter results leaves it, and them, alone.
NUMERICS_VERSION = 1


class RunFolder:
    """Where a run lives. The identity (recipe, data, seed) is written first; a folder never holds two runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def claim(cls, path: str | Path, identity: Identity, entries: Mapping[str, Any]) -> RunFolder:
        """A new folder with this identity, or the one that holds it already; any other content is refused.

        entries: of run.json besides.
        """
        folder = cls(Path(path))
        folder.path.mkdir(parents=True, exist_ok=True)
        if not folder.record_path.exists():
            if any(p for p in folder.path.iterdir() if not p.name.startswith(".")):
                raise ValueError(f"{folder.path} is not empty and is not a run: choose another folder.")
            folder.write_record(RunRecord.of({"identity": asdict(identity), **entries}))
            return folder
        saved = folder.record().identity
        if saved == Identity():
            raise ValueError(f"{folder.record_path} is damaged: it has no identity. Choose another folder.")
        if saved != identity:
            differs = ", ".join(f.name for f in fields(saved) if getattr(saved, f.name) != getattr(identity, f.name))
            raise ValueError(
                f"{folder.path} holds another run (different {differs}). Choose another folder; nothing was changed."
            )
        return folder

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    def stage_path(self, number: int) -> Path:
        """The weights at the end of a stage, kept where the recipe's guard compares stages, or it asks for them."""
        return self.path / f"stage-{number}.safetensors"

    @property
    def done(self) -> bool:
        return os.path.exists(self.path / "DONE")  # False for a name that is too long, too

    def require_classifier(self) -> None:
        """Said where scores are wanted: a run that ended with a stage on views is finished, and gives none."""
        missing = self.done and not (self.path / "bundle.json").exists()
        if missing and any(stage.views > 1 for stage in self.record().stages[-1:]):
            raise ValueError(
                f"{self.path} trained features but no classifier, because its last stage compares views: train a "
                "classifier on them, in a stage with start_from set to this folder."
            )

    def record(self) -> RunRecord:
        if not self.record_path.is_file():  # opening a pipe would wait for ever
            raise ValueError(f"{self.path} is not a run: it has no run.json.")
        try:
            plain = json.loads(self.record_path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise ValueError(f"{self.record_path} is damaged: {error}.") from None
        if not isinstance(plain, dict):
            raise ValueError(f"{self.record_path} is damaged: it is not the record of a run.")
        return RunRecord.of(plain)

    def write_record(self, record: RunRecord) -> None:
        write_atomically(self.record_path, (json.dumps(record.plain, indent=2) + "\n").encode())

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A csv whose columns are the keys of the rows, in the order they come up."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path / name, text.getvalue().encode())

    def finish(self) -> None:
        """DONE last; then what a killed process may have left behind in the middle of a write goes too."""
        write_atomically(self.path / "DONE", b"")
        self.checkpoint_path.unlink(missing_ok=True)
        for left in self.path.glob(".*.part"):
            left.unlink(missing_ok=True)


def surroundings(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and code, for the record."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    hardware = f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    if device.type != "cpu":
        on_cuda = device.type == "cuda"
        hardware = torch.cuda.get_device_name(device) if on_cuda else f"{platform.machine()}, {device.type}"
    return {"versions": versions, "hardware": hardware, "commit": git_commit(), "numerics": NUMERICS_VERSION}


def code_text(record: Mapping[str, Any]) -> str:
    """Which code made a record, for people."""
    commit = f"commit {record['commit'][:12]}, " if record.get("commit") else ""
    return f"{commit}numerics version {record.get('numerics', 1)}"


def by_other_numerics(records: Iterable[Mapping[str, Any]]) -> int:
    """How many of these runs were made by another numerics version than this code's."""
    return sum(record.get("numerics", 1) != NUMERICS_VERSION for record in records)


@cache
def git_commit(package: Path = Path(__file__).parents[2]) -> str | None:
    """The commit of the checkout that the package is imported from; None for an installed package.

    Read from git's own files, so that no git is needed. Changes that are not committed do not show.
    """
    root = package.resolve().parent.parent
    if package.resolve().parent.name != "src":  # an environment may lie inside a checkout of something else
        return None
    try:
        place = root / ".git"
        if place.is_file():  # a worktree of its own
            place = (root / place.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (place / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return _full_hash(head)
        name = head.removeprefix("ref:").strip()
        shared = place / "commondir"
        common = place / shared.read_text(encoding="utf-8").strip() if shared.exists() else place
        for path in (place / name, common / name):
            if path.is_file():
                return _full_hash(path.read_text(encoding="utf-8").strip())
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((_full_hash(line.split()[0]) for line in packed if line.endswith(f" {name}")), None)
    except (OSError, ValueError):
        return None


def _full_hash(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
