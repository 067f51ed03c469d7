"""All speed benchmarks: deepauc beside its peers, ratios from interleaved runs, in one record.

    python benchmarks/run.py [--gpu] [--only NAME ...] [--name NAME] [--json FILE]

Prints a markdown table for each module here that has `cpu_rows` (with --gpu: `gpu_rows`, and `gpu_checks` before), and
writes rows, hardware, versions, date, git commit and numerics version to results/speed.jsonl, as cpu or gpu.
Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from deepauc.studies.records.file import append
from deepauc.training.run.folder import NUMERICS_VERSION, git_commit

HERE = Path(__file__).resolve().parent
MODULES = ("losses", "pesg_step", "auroc", "pairwise", "partial_auc")
PACKAGES = ("torch", "triton", "numpy", "scikit-learn", "torchmetrics", "libauc")


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="the rows of one CUDA device instead of the CPU's")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=MODULES, metavar="NAME", help=", ".join(MODULES))
    parser.add_argument("--name", help="of the record in results/speed.jsonl; default: cpu or gpu")
    parser.add_argument("--json", type=Path, help="where the record goes instead")
    options = parser.parse_args()
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu: there is no CUDA device.")
    torch.set_num_threads(1)
    kind = "gpu" if options.gpu else "cpu"
    record: dict[str, Any] = {
        **circumstances(gpu=options.gpu),
        "threads": torch.get_num_threads(),
        "checks": [],
        "seconds": {},
        "rows": {},
    }
    for name in ("hardware", "versions", "threads", "commit", "numerics"):
        print(f"{name}: {record[name]}", flush=True)
    for name in options.only:
        module = _module(name)
        if module is None or not hasattr(module, f"{kind}_rows"):
            continue
        began = time.perf_counter()
        for check in getattr(module, f"{kind}_checks", list)():
            print("holds:" if check["holds"] else "FAILS:", check["what"], flush=True)
            record["checks"].append(check)
        rows = getattr(module, f"{kind}_rows")()
        record["rows"][name] = [dataclasses.asdict(r) if dataclasses.is_dataclass(r) else r for r in rows]
        record["seconds"][name] = round(time.perf_counter() - began, 1)
        table = getattr(module, "as_table", None) or module.markdown
        print(f"\n## {name}\n\n{table(rows)}", flush=True)
    path = options.json or HERE.parent / "results" / "speed.jsonl"
    if options.json is None:
        append(path, {"name": options.name or kind, **record})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nRecord: {path}")
    return 0 if all(check["holds"] for check in record["checks"]) else 1


def circumstances(*, gpu: bool) -> dict[str, Any]:
    """What every record of a measurement begins with."""
    return {
        "hardware": hardware(gpu=gpu),
        "versions": versions(),
        "commit": git_commit(),
        "numerics": NUMERICS_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware(*, gpu: bool) -> dict[str, str]:
    """Names of the processor and of the CUDA device that is used."""
    names = {"cpu": cpu_name()}
    if gpu:
        names["gpu"] = torch.cuda.get_device_name()
        names["cuda"] = str(torch.version.cuda)
    return names


def cpu_name() -> str:
    """The processor's model, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Python and the packages that are compared; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"\n{name}: not run, {error.name} is not installed", flush=True)
        return None


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
