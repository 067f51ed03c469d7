"""Figures of results/speed.jsonl by name, for the pages: `speed` in results/summary.json.

speed.RECORD.NETWORK.ENGINE.RUNS is a step of AUC-M: `ms` a run, `ce_ms` with cross-entropy, `over_ce`, how many times
as long LibAUC's takes in that record (`libauc`), and `start_up_s`. The rest is named after what was measured;
before-WORD is a set of `fast-step-history`, by the first word it is described with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from deepauc.kernels.tile_conv import CONV
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_named

Rows = list[dict[str, Any]]
STEPS = ("fast-step", "fast-step-tiles", "tile-step", "stacked-resnet", "lanes", "deep-networks", "dropout")


def speed_figures(results: Path) -> dict[str, Any]:
    """All of them; multi-label-gpu.NETWORK is a step on five labels over one on one label."""
    records = read_named(results / "speed.jsonl")
    labels = {name: records[name]["rows"] for name in sorted(records) if name.startswith("multi-label-")}
    before = {f"before-{re.findall('[A-Za-z]+', one['what'])[0]}": one for one in records["fast-step-history"]["sets"]}
    steps = {name: records[name]["rows"] for name in STEPS}
    return {
        **{name: {row["network"]: row["ratio"] for row in rows} for name, rows in labels.items()},
        **{name: _steps(rows) for name, rows in steps.items()},
        **{name: _steps(one["rows"]) for name, one in before.items()},
        "start_up": _start_up(steps),
        "first_stage": _first_stage(records["first-stage"]["rows"][0], results),
        "same_result": _same_result(records["same-result"]["rows"]),
        "epochs": _epochs(records["throughput"]["rows"]),
        "kernels": _kernels(records),
        "blocks": _blocks(records["norm-backward"]["rows"]),
        "tiles": _tiles(records["tile_conv"]["rows"]),
        "pesg": _pesg(records),
        "cpu": _cpu(records["cpu"]["rows"]),
    }


def _row(rows: Iterable[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    """The one row that has these values."""
    (found,) = [one for one in rows if all(one.get(name) == value for name, value in wanted.items())]
    return found


def _steps(rows: Rows) -> dict[str, Any]:
    """Where a case was measured twice, its first."""
    found: dict[str, Any] = {}
    for row in rows:
        network = re.sub(r"\W+", "_", row["model"])
        step = found.setdefault(network, {}).setdefault(row["engine"], {}).setdefault(str(row["runs"]), {})
        step.setdefault("ce_ms" if row["loss"] == "CE" else "ms", row["step_ms_a_run"])
        if row["loss"] != "CE" and "start_up_s" in row:
            step.setdefault("start_up_s", row["start_up_s"])
    for engines in found.values():
        theirs = engines.get("libauc", {}).get("1", {}).get("ms")
        for step in (step for runs in engines.values() for step in runs.values() if "ms" in step):
            if "ce_ms" in step:
                step["over_ce"] = step["ms"] / step["ce_ms"]
            if theirs is not None:
                step["libauc"] = theirs / step["ms"]
    return found


def _start_up(steps: dict[str, Rows]) -> dict[str, Any]:
    """Seconds of ResNet20: of a process's first pack by record, and of later ones from the least to the most."""
    timed = {name: [row for row in rows if "start_up_s" in row] for name, rows in steps.items()}
    later = [
        row["start_up_s"]
        for name in ("fast-step", "lanes", "tile-step", "fast-step-tiles")
        for row in timed[name][1:]
        if row["engine"] == "fast" and row["model"] == "ResNet20" and row["runs"] > 1
    ]
    return {**{name: rows[0]["start_up_s"] for name, rows in timed.items()}, "later": [min(later), max(later)]}


def _first_stage(row: dict[str, Any], results: Path) -> dict[str, Any]:
    found = [run.get("first_stage") for run in RecordBook(results / "best").tuning("levers-auc_m-01-first")]
    packs = [one for one in found if one]
    return {
        "seconds": row["seconds"],
        "epochs": row["epochs"],
        "one_epoch": row["seconds_of_one_epoch"],
        "images": min(one["rows"] for one in packs),
        "packs": sorted({one["seconds"] for one in packs}),
    }


def _same_result(rows: Rows) -> list[float]:
    """Mean test AUC by the plain loop and the fast engine, their difference with its standard error, the largest."""
    plain, fast = ([r["test_auc"] for r in rows if r["engine"] == engine] for engine in ("plain", "fast"))
    pairs = [b - a for a, b in zip(plain, fast, strict=True)]
    return [fmean(plain), fmean(fast), fmean(pairs), stdev(pairs) / len(pairs) ** 0.5, max(map(abs, pairs))]


def _epochs(rows: Rows) -> dict[str, Any]:
    """Milliseconds a step: LibAUC's loop through a loader, and timm's at 224 pixels, each beside ours."""
    theirs = [one["step_ms"] for one in rows if one["what"].startswith("LibAUC")]
    timm, ours = (
        _row(rows, what=what, size=224)["step_ms"]
        for what in ("timm, AMP, channels_last, CE", "fast engine, uncompiled, CE")
    )
    beside = _row(rows, section="libauc", what="fast engine")["step_ms"]
    return {"libauc": [min(theirs), max(theirs), beside], "timm": timm, "ours": ours, "timm_over_ours": timm / ours}


def _profile(records: dict[str, Any], network: str, runs: int) -> tuple[int, float, dict[str, tuple[float, float]]]:
    """Kernels a step, milliseconds of them, and of each its microseconds and how often it runs."""
    text = records[f"profile-{network.lower()}"]["text"]
    (part,) = [one for one in re.split(r"\n(?=\S)", text) if one.startswith(f"{network}/AUC-M/{runs}:")]
    head = re.search(r": (\d+) kernels.*? ([\d.]+) ms", part)
    assert head is not None
    kernels = re.findall(r"([\d.]+) us +([\d.]+) x +(\S+)", part)
    return int(head[1]), float(head[2]), {name: (float(us), float(times)) for us, times, name in kernels}


def _kernels(records: dict[str, Any]) -> dict[str, Any]:
    count, busy, by_name = _profile(records, "ResNet20", 1)
    joining = [by_name[name] for name in ("join_moments_kernel", "join_sums_kernel", "sum_programs_kernel")]
    spent, joins = sum(us for us, _ in joining), sum(times for _, times in joining)
    packed, packed_busy, _ = _profile(records, "ResNet20", 24)
    step = records["lanes"]["rows"][-1]["step_ms"]
    dense, dense_busy, _ = _profile(records, "DenseNet121", 1)
    denser, denser_busy, of_denser = _profile(records, "DenseNet121", 20)
    taps = of_denser["spread_kernel"][0] + of_denser["gather_kernel"][0]
    return {
        "ResNet20": {"count": count, "us": 1e3 * busy / count, "busy": busy},
        "joining": {"count": round(joins), "us": spent / joins},
        "packed": {"count": packed, "every_us": 1e3 * step / packed, "at_once": packed_busy / step},
        "DenseNet121": {"count": dense, "busy": dense_busy, "packed": denser, "packed_busy": denser_busy},
        "more_a_run": (denser - dense) / 19,
        "taps": 1e-3 * taps / denser_busy,
        "shared_kb": [CONV[channels].shared(channels) / 1e3 for channels in (16, 32)],
    }


def _blocks(rows: Rows) -> dict[str, Any]:
    """Microseconds; `faster`: by which share the sums in the convolution make a block's backward pass faster."""

    def of(work: str, channels: int, launch: str = "as set") -> dict[str, Any]:
        return _row(rows, work=work, channels=channels, launch=launch)

    more, now = (of("weight gradient", 64, one) for one in ("64 x 16, 8 w, 2 st, row, one", "as set"))
    in_turn = of("forward", 32, "64 x 2, 4 w, 1 st, rows, pair, in turn")
    return {
        "forward_16": of("forward", 16)["packed"],
        **{
            f"faster_{how}": [
                100 * (1 - of("block, sums in conv", c)[how] / of("block, sums apart", c)[how]) for c in (16, 32, 64)
            ]
            for how in ("packed", "alone")
        },
        **{f"more_tiles_{how}": [more[how], now[how]] for how in ("packed", "alone")},
        "in_turn": of("forward", 32)["packed"] - in_turn["packed"],
    }


def _tiles(rows: Rows) -> list[float]:
    """A convolution of 16 channels: by Triton, by the fastest tiles, by those in use."""
    rows = [one for one in rows if (one["kind"], one["channels"]) == ("forward", 16)]
    in_use = {"height": 8, "width": 32, "warps": 4, "rows": 2, "each": 2, "blocks": 5}
    return [_row(rows, tile=None)["packed"], min(r["packed"] for r in rows), _row(rows, tile=in_use)["packed"]]


def _pesg(records: dict[str, Any]) -> dict[str, Any]:
    """On DenseNet121, in microseconds; `cpu`: over fused SGD on both networks, without and with momentum."""
    dense = [one for one in records["gpu"]["rows"]["pesg_step"] if one["network"] == "DenseNet121"]
    ours, fused, libauc = (_row(dense, contender=name) for name in ("PESG", "SGD fused", "LibAUC PESG"))
    on_cpu = records["pesg-step-cpu"]["rows"]["pesg_step"]

    def seconds(contender: str, network: str) -> float:
        value: float = _row(on_cpu, network=network, contender=contender)["seconds"]
        return value

    return {
        "graph": 1e6 * ours["graph"],
        "over_floor": ours["graph"] / ours["floor"],
        "floor": 1e6 * ours["floor"],
        "millions": ours["parameters"] / 1e6,
        "blocks_of_1024": min(one["microseconds"] for one in records["pesg-launch"]["pesg"] if one["block"] == 1024),
        "fused": 1e6 * fused["graph"],
        "libauc_ms": 1e3 * libauc["eager"],
        "cpu": [
            seconds(f"PESG{momentum}", network) / seconds(f"SGD fused{momentum}", network)
            for momentum in ("", ", momentum .9")
            for network in ("ResNet20", "DenseNet121")
        ],
    }


def _cpu(rows: dict[str, Rows]) -> dict[str, Any]:
    """65,536 scores beside torch's BCE and LibAUC; AUROC and its bootstrap at 1 and 50 % of positives."""
    losses = _row(rows["losses"], size=65_536)

    def faster(name: str, size: int, contender: str) -> list[float]:
        of = [one for one in rows["auroc"] if one["name"].startswith(name)]
        return [_row(of, size=size, positive_share=share)["ratio"][contender] for share in (0.01, 0.5)]

    return {
        "over_bce": losses["over_bce"]["AUCMarginLoss"],
        "libauc": losses["libauc_over_ours"],
        "auroc": faster("AUROC, one", 10_000_000, "scikit-learn"),
        "bootstrap": faster("AUROC bootstrap, 2,000", 100_000, "scikit-learn in a loop"),
    }
