"""What a campaign leaves behind: its entry of results/reliability.json, from which `summary.py` writes the page."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from deepauc.training.run.folder import NUMERICS_VERSION, git_commit

RESULTS = Path(__file__).resolve().parent.parent / "results"
FILE = "reliability.json"
PACKAGES = ("torch", "numpy", "safetensors", "pillow", "hypothesis")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One part of a campaign: so many trials, so many of them survived as they should, of this code."""

    what: str
    trials: int
    survivors: int
    note: str = ""
    commit: str | None = field(default_factory=git_commit)

    @property
    def holds(self) -> bool:
        return self.trials == self.survivors


def read_records(folder: Path = RESULTS) -> dict[str, Any]:
    """The records of all campaigns, by name."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def earlier_rows(name: str, out: Path | None = None) -> list[Row]:
    """The rows of the record that is there, for a campaign that is done again in part."""
    record = read_records(RESULTS if out is None else out).get(name)
    if record is None:
        return []
    return [Row(**{"commit": record.get("commit"), **row}) for row in record["rows"]]


def write_record(
    name: str,
    *,
    command: str,
    about: str,
    rows: Sequence[Row],
    seconds: float,
    out: Path | None = None,
    figures: Any = None,
) -> bool:
    """Write the record and print its rows; whether every trial survived."""
    record = {
        "campaign": name,
        "command": command,
        "about": about,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "hardware": _processor(),
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": git_commit(),
        "numerics": NUMERICS_VERSION,
        "rows": [asdict(row) for row in rows],
    }
    if figures is not None:
        record["figures"] = figures
    folder = RESULTS if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    records = dict(sorted({**read_records(folder), name: record}.items()))
    (folder / FILE).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{'holds' if row.holds else 'FAILS'}: {row.what}: {row.survivors} of {row.trials}. {row.note}")
    return all(row.holds for row in rows)


def _versions() -> dict[str, str]:
    """Of the packages that are installed: a machine with a GPU need not have those that only some campaigns use."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
