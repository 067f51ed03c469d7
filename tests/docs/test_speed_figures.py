"""Figures of docs/speed.md and of README's table of speed are those of the records in results/speed.jsonl.

One row of FIGURES a sentence: the page, the sentence with a group for each figure, and where the figures come from.
What the page says is counted by hand, or what was never written down, is not here.
"""

import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from deepauc.kernels.tile_conv import CONV
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_named

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TILES, STEP = "fast-step-tiles", "fast-step"  # the records of ResNet20 and of DenseNet121


def record(name: str) -> dict:
    return read_named(RESULTS / "speed.jsonl")[name]


def row(rows: list[dict], **wanted: object) -> dict:
    """The one row that has these values."""
    (found,) = [one for one in rows if all(one.get(name) == value for name, value in wanted.items())]
    return found


def step(name: str, model: str, engine: str = "fast", runs: int = 1, loss: str = "AUC-M") -> float:
    """Milliseconds a step and run."""
    return row(record(name)["rows"], model=model, engine=engine, runs=runs, loss=loss)["step_ms_a_run"]


def ms(*values: float, digits: int = 2) -> tuple[str, ...]:
    return tuple(f"{value:.{digits}f}" for value in values)


def beside_libauc(name: str, model: str, runs: int = 1) -> str:
    """How many times as long LibAUC's step takes."""
    return f"{step(name, model, 'libauc') / step(name, model, runs=runs):.0f}"


def over_ce(name: str, model: str, runs: int = 1) -> str:
    return f"{step(name, model, runs=runs) / step(name, model, runs=runs, loss='CE'):.2f}".removeprefix("0")


def both_over_ce(name: str, model: str, runs: int) -> tuple[str, str]:
    return over_ce(name, model), over_ce(name, model, runs)


def lone_and_packed(name: str, model: str, runs: int, digits: int = 2) -> tuple[str, str]:
    return (*ms(step(name, model), digits=digits), *ms(step(name, model, runs=runs)))


def before(what: str) -> list[dict]:
    """Rows of an earlier form of the engine."""
    (found,) = [one["rows"] for one in record("fast-step-history")["sets"] if one["what"].startswith(what)]
    return found


def earlier(what: str, runs: int, model: str = "ResNet20", engine: str = "fast") -> float:
    return row(before(what), model=model, loss="AUC-M", engine=engine, runs=runs)["step_ms_a_run"]


def readme_resnet20() -> tuple[str, ...]:
    return (
        *(beside_libauc(TILES, "ResNet20"), *ms(step(TILES, "ResNet20"))),
        *ms(step(TILES, "ResNet20", "libauc"), digits=1),
        *(beside_libauc(TILES, "ResNet20", 24), *ms(step(TILES, "ResNet20", runs=24))),
        beside_libauc("tile-step", "ResNet20", 24),
    )


def readme_densenet121() -> tuple[str, ...]:
    return (
        *(beside_libauc(STEP, "DenseNet121"), *ms(step(STEP, "DenseNet121"), digits=1)),
        *(beside_libauc(STEP, "DenseNet121", 20), *ms(step(STEP, "DenseNet121", runs=20))),
    )


def pesg_on_a_cpu() -> tuple[str, ...]:
    """A step of PESG over one of fused SGD on both networks, without and with momentum."""
    rows = record("pesg-step-cpu")["rows"]["pesg_step"]

    def ratio(network: str, momentum: str) -> str:
        ours, fused = (row(rows, network=network, contender=name + momentum) for name in ("PESG", "SGD fused"))
        return f"{ours['seconds'] / fused['seconds']:.1f}"

    return tuple(ratio(network, end) for end in ("", ", momentum .9") for network in ("ResNet20", "DenseNet121"))


def pesg_launch(block: int) -> float:
    """Microseconds with the warps that suit it best."""
    return min(one["microseconds"] for one in record("pesg-launch")["pesg"] if one["block"] == block)


def pesg_on_a_gpu() -> tuple[str, ...]:
    rows = [one for one in record("gpu")["rows"]["pesg_step"] if one["network"] == "DenseNet121"]
    ours, fused, libauc = (row(rows, contender=name) for name in ("PESG", "SGD fused", "LibAUC PESG"))
    return (
        *(f"{1e6 * ours['graph']:.0f}", f"{ours['graph'] / ours['floor']:.1f}", f"{pesg_launch(1024):.0f}"),
        *(f"{1e6 * fused['graph']:.0f}", f"{1e3 * libauc['eager']:.0f}"),
    )


def one_optimizer_step() -> tuple[str, ...]:
    ours = row(record("gpu")["rows"]["pesg_step"], network="DenseNet121", contender="PESG")
    assert ours["words"] == 6
    return f"{pesg_launch(1024):.0f}", f"{ours['parameters'] / 1e6:.0f}", f"{1e6 * ours['floor']:.0f}"


def losses() -> tuple[str, ...]:
    found = row(record("cpu")["rows"]["losses"], size=65_536)
    return f"{found['over_bce']['AUCMarginLoss']:.1f}", f"{found['libauc_over_ours']:.0f}"


def beside_sklearn(name: str, size: int, contender: str) -> tuple[str, ...]:
    rows = [one for one in record("cpu")["rows"]["auroc"] if one["name"].startswith(name)]
    return tuple(f"{row(rows, size=size, positive_share=p)['ratio'][contender]:.0f}" for p in (0.01, 0.5))


def beside_timm() -> tuple[float, float]:
    rows = record("throughput")["rows"]
    return tuple(
        row(rows, what=what, size=224)["step_ms"]
        for what in ("timm, AMP, channels_last, CE", "fast engine, uncompiled, CE")
    )


def through_a_loader() -> tuple[str, ...]:
    """Least and most of LibAUC's epochs, and ours in that call."""
    rows = record("throughput")["rows"]
    theirs = [one["step_ms"] for one in rows if one["what"].startswith("LibAUC")]
    ours = row(rows, section="libauc", what="fast engine")["step_ms"]
    return *ms(min(theirs), max(theirs), digits=0), *ms(ours)


def libaucs_steps() -> tuple[str, ...]:
    return ms(*(step(name, "ResNet20", "libauc") for name in (STEP, "stacked-resnet", "tile-step", TILES)), digits=1)


def first_stage() -> dict:
    (found,) = record("first-stage")["rows"]
    assert (found["packed"], found["epochs"], found["batch"]) == (1, 100, 512)
    return found


def first_stages_in_packs() -> tuple[str, ...]:
    """Rows, and the seconds a run of each pack of five."""
    found = [run.get("first_stage") for run in RecordBook(RESULTS / "best").tuning("levers-auc_m-01-first")]
    seconds = [one["seconds"] for one in found if one]
    by_pack = sorted(set(seconds))
    assert [seconds.count(one) for one in by_pack] == [5, 5]
    return f"{min(one['rows'] for one in found if one):,}", *ms(*by_pack, digits=1)


def same_result() -> tuple[str, ...]:
    """Mean test AUC by the plain loop and the fast engine, their difference with its standard error, the largest."""
    rows = record("same-result")["rows"]
    plain, fast = ([r["test_auc"] for r in rows if r["engine"] == engine] for engine in ("plain", "fast"))
    pairs = [b - a for a, b in zip(plain, fast, strict=True)]
    assert len(pairs) == 5
    values = (fmean(plain), fmean(fast), fmean(pairs), stdev(pairs) / 5**0.5, max(map(abs, pairs)))
    return tuple(f"{value:.3f}".replace("0.", ".", 1) for value in values)


def profile(network: str, runs: int) -> tuple[int, float, dict[str, tuple[float, float]]]:
    """Kernels a step, milliseconds of them, and of each its microseconds and how often it runs."""
    text = record(f"profile-{network.lower()}")["text"]
    (part,) = [one for one in re.split(r"\n(?=\S)", text) if one.startswith(f"{network}/AUC-M/{runs}:")]
    head = re.search(r": (\d+) kernels.*? ([\d.]+) ms", part)
    kernels = re.findall(r"([\d.]+) us +([\d.]+) x +(\S+)", part)
    return int(head[1]), float(head[2]), {name: (float(us), float(times)) for us, times, name in kernels}


def launches() -> tuple[str, ...]:
    kernels, busy, _ = profile("ResNet20", 1)
    return str(kernels), f"{1e3 * busy / kernels:.0f}", *ms(busy, step(STEP, "ResNet20"))


def joining_kernels() -> tuple[str, ...]:
    """Those that join what others have summed, their microseconds each, and their share of the step."""
    _, _, by_name = profile("ResNet20", 1)
    joining = [by_name[name] for name in ("join_moments_kernel", "join_sums_kernel", "sum_programs_kernel")]
    spent, count = sum(us for us, _ in joining), sum(times for _, times in joining)
    assert round(1e3 * step(STEP, "ResNet20") / spent) == 5  # a fifth
    return f"{count:.0f}", f"{spent / count:.1f}"


def packed_kernels() -> tuple[str, ...]:
    """Of 24 runs: kernels a step, microseconds between two, and how many run at a time (in words)."""
    kernels, busy, _ = profile("ResNet20", 24)
    (*_, last) = record("lanes")["rows"]
    assert (last["engine"], last["runs"]) == ("fast", 24)
    at_once = {4: "four", 5: "five", 6: "six"}[round(busy / last["step_ms"])]
    return f"{kernels:,}", f"{1e3 * last['step_ms'] / kernels:.1f}", at_once


def densenet121_kernels() -> tuple[str, ...]:
    (alone, alone_ms, _), (packed, packed_ms, _) = (profile("DenseNet121", runs) for runs in (1, 20))
    return f"{alone:,}", f"{alone_ms:.1f}", f"{packed:,}", f"{packed_ms:.1f}", f"{(packed - alone) / 19:.0f}"


def noted_kernels() -> tuple[str, ...]:
    """Kernels a step and the rate of normalisation's backward pass, which that record has in words."""
    (note,) = [one["note"] for one in record("fast-step-history")["sets"] if "note" in one]
    return re.search(r"alone: (\d+) kernels.* moves ([\d.]+) TB/s and is bound by bytes", note).groups()


def taps() -> tuple[str]:
    """Which share of DenseNet121's packed step is spreading and gathering them."""
    _, whole, by_name = profile("DenseNet121", 20)
    spent = by_name["spread_kernel"][0] + by_name["gather_kernel"][0]
    return ({5: "fifth", 6: "sixth", 7: "seventh"}[round(1e3 * whole / spent)],)


def convolution(work: str, channels: int, launch: str = "as set") -> dict:
    return row(record("norm-backward")["rows"], work=work, channels=channels, launch=launch)


def faster_blocks() -> tuple[str, ...]:
    """By how many per cent the sums in the convolution make a block's backward pass faster, packed and alone."""
    return tuple(
        f"{100 * (1 - convolution('block, sums in conv', c)[how] / convolution('block, sums apart', c)[how]):.0f}"
        for how in ("packed", "alone")
        for c in (16, 32, 64)
    )


def more_tiles() -> tuple[str, ...]:
    more, now = (convolution("weight gradient", 64, one) for one in ("64 x 16, 8 w, 2 st, row, one", "as set"))
    return (
        *ms(more["packed"], now["packed"], digits=1),
        *ms(more["alone"], now["alone"], digits=0),
    )


def tap_loads() -> tuple[str]:
    in_turn = convolution("forward", 32, "64 x 2, 4 w, 1 st, rows, pair, in turn")
    return ms(convolution("forward", 32)["packed"] - in_turn["packed"], digits=1)


def tiles() -> tuple[str, ...]:
    """A step packed and alone; a convolution of 16 channels by Triton, by the fastest tiles, by those in use."""
    rows = [one for one in record("tile_conv")["rows"] if (one["kind"], one["channels"]) == ("forward", 16)]
    in_use = {"height": 8, "width": 32, "warps": 4, "rows": 2, "each": 2, "blocks": 5}
    times = (row(rows, tile=None)["packed"], min(r["packed"] for r in rows), row(rows, tile=in_use)["packed"])
    return *ms(step(TILES, "ResNet20", runs=24), step(TILES, "ResNet20")), *ms(*times, digits=1)


def shared_memory() -> tuple[str, ...]:
    """Kilobytes that a block of the tiles in use takes, and its warps."""
    (warps,) = {tile.warps for tile in CONV.values()}
    return (*(f"{CONV[channels].shared(channels) / 1e3:.0f}" for channels in (16, 32)), str(warps))


def start_ups() -> tuple[str, ...]:
    """With the cache; without it; with tiles, in two calls; and of later packs of a process, from least to most."""
    packs = [
        one["start_up_s"]
        for name in (STEP, "lanes", "tile-step", TILES)
        for one in [r for r in record(name)["rows"] if "start_up_s" in r][1:]
        if one["engine"] == "fast" and one["model"] == "ResNet20" and one["runs"] > 1
    ]
    first = [next(r for r in record(name)["rows"] if "start_up_s" in r) for name in (STEP, "lanes", TILES, "tile-step")]
    assert [one["runs"] for one in first] == [1, 24, 24, 24]
    return *ms(*(one["start_up_s"] for one in first), digits=0), *ms(min(packs), max(packs), digits=0)


def densenet121_start_ups() -> tuple[str, ...]:
    rows = record(STEP)["rows"]
    return ms(
        *(row(rows, model="DenseNet121", loss="AUC-M", engine="fast", runs=n)["start_up_s"] for n in (1, 20)), digits=0
    )


R, ALL, OWN, CUDNN = r"([\d.]+)", "all 3x3", "with the small", "cuDNN"
FIGURES = [
    ("speed.md", rf"\| ResNet20 alone \| 1\.0 ms \| {R} ms \| {R} ms: (\d+) times",
     lambda: (*ms(step(TILES, "ResNet20")), *ms(step(TILES, "ResNet20", "libauc"), digits=1),
              beside_libauc(TILES, "ResNet20"))),
    *(("speed.md", rf"\| ResNet20, a run of {n} side by side \| 0\.38 ms \| {R} ms \| (\d+) times",
       lambda n=n: (*ms(step(TILES, "ResNet20", runs=n)), beside_libauc(TILES, "ResNet20", n))) for n in (8, 24)),
    ("speed.md", rf"\| DenseNet121 alone \| 6 ms \| {R} ms \| (\d+) ms: (\d+) times",
     lambda: (*ms(step(STEP, "DenseNet121"), digits=1), *ms(step(STEP, "DenseNet121", "libauc"), digits=0),
              beside_libauc(STEP, "DenseNet121"))),
    ("speed.md", rf"\| DenseNet121, a run of 20 side by side \| 2 ms \| {R} ms \| (\d+) times",
     lambda: (*ms(step(STEP, "DenseNet121", runs=20)), beside_libauc(STEP, "DenseNet121", 20))),
    ("speed.md", rf"same engine, ResNet20 \| 1\.05 \| {R} \|", lambda: (over_ce(TILES, "ResNet20"),)),
    ("speed.md", rf"batch 512, 100 epochs \| 25 s \| {R} s", lambda: ms(first_stage()["seconds"], digits=1)),
    ("speed.md", r"channels_last, (\d+) ms \| (\d+) ms", lambda: ms(*beside_timm(), digits=0)),
    ("speed.md", rf"a step took (\d+) to (\d+) ms, where ours took {R}\. Machines", through_a_loader),
    ("speed.md", rf"same kind of GPU took {R}, {R}, {R} and {R} ms in four calls", libaucs_steps),
    ("speed.md", r"has compiled its step \((\d+) s before",
     lambda: ms(first_stage()["seconds_of_one_epoch"], digits=0)),
    ("speed.md", rf"100 epochs on ([\d,]+) real images took {R} s a run in one pack and {R} in another",
     first_stages_in_packs),
    ("speed.md", rf"others take {R} ms packed, (\d+) times less than LibAUC in that call, but {R} alone",
     lambda: (*ms(step("tile-step", "ResNet20", runs=24)), beside_libauc("tile-step", "ResNet20", 24),
              *ms(step("tile-step", "ResNet20")))),
    ("speed.md", r"AUC of (\.\d+) by the plain loop and (\.\d+) by the fast engine, a difference of (-?\.\d+) with a "
     r"standard error of (\.\d+); single seeds differ by up to (\.\d+)\.", same_result),
    ("speed.md", rf"launches\.\*\* (\d+) kernels one after the other, (\d+) us each on average, {R} ms of them in a "
     rf"step of {R} \(", launches),
    ("speed.md", r"possible at all: the plain loop took (\d+) ms",
     lambda: ms(earlier(CUDNN, 1, engine="plain"), digits=0)),
    ("speed.md", rf"(\d+) of them only join what other kernels have summed, {R} us each, a fifth", joining_kernels),
    ("speed.md", rf"A 16-channel convolution takes {R} us packed where its",
     lambda: ms(convolution("forward", 16)["packed"], digits=1)),
    ("speed.md", rf"24 runs are ([\d,]+) kernels a step, one every {R} us, (\w+) at a time", packed_kernels),
    ("speed.md", rf"([\d,]+) kernels take {R} ms alone, ([\d,]+) take {R} ms for 20 runs: (\d+) more for each "
     r"further run", densenet121_kernels),
    ("speed.md", rf"compiled, one graph \| {R} ms, {R} packed", lambda: ms(earlier(CUDNN, 1), earlier(CUDNN, 24))),
    ("speed.md", rf"channels in Triton \| {R}, {R} \|", lambda: ms(earlier(OWN, 1), earlier(OWN, 24))),
    ("speed.md", rf"backward in two kernels \| {R}, {R} \|", lambda: ms(earlier(ALL, 1), earlier(ALL, 24))),
    ("speed.md", rf"\| (\d+) kernels a step alone; packed, the backward pass of normalisation moves {R} TB/s",
     noted_kernels),
    ("speed.md", rf"no add of the shortcut \| {R}, {R} to {R} \|",
     lambda: ms(*(step(STEP, "ResNet20", runs=n) for n in (1, 8, 24)))),
    ("speed.md", r"is (\d+), (\d+) and (\d+) % faster at 16, 32 and 64 channels packed, (\d+), (\d+) and (\d+) % alone",
     faster_blocks),
    ("speed.md", rf"\| {R}, {R} and {R} ms a run beside {R} with a stream each \(`lanes`\)",
     lambda: ms(*(step("lanes", "ResNet20", f"lanes{n}", 24) for n in (4, 8, 12)),
                record("lanes")["rows"][0]["step_ms_a_run"])),
    ("speed.md", rf"\| {R}, {R}, {R} and {R} ms a run beside {R} with a stream each, all in one call \(by 6: {R} as "
     rf"its first case, {R} with CE later\)",
     lambda: ms(*(step("stacked-resnet", "ResNet20", engine, 24)
                  for engine in ("fast", "stacked12", "stacked3", "stacked2", "streams", "stacked6")),
                step("stacked-resnet", "ResNet20", "stacked6", 24, "CE"))),
    ("speed.md", rf"GPU works on this one \| {R} packed \| {R} to {R} before",
     lambda: ms(record("lanes")["rows"][0]["step_ms_a_run"], *(step(STEP, "ResNet20", runs=n) for n in (8, 24)))),
    ("speed.md", r"(\d+) and (\d+) kB of shared memory a block of (\d) warps at 16 and 32 channels", shared_memory),
    ("speed.md", rf"32 channels \| {R} packed, {R} alone \| a 16-channel convolution packed {R} us before, {R} to "
     rf"{R} now", tiles),
    ("speed.md", rf"at 64 channels {R} us instead of {R} packed, (\d+) instead of (\d+) alone", more_tiles),
    ("speed.md", rf"cuDNN, compiled \(3x3 stem\) \| {R} ms \| (\d+) s to compile",
     lambda: (*ms(earlier(CUDNN, 1, "DenseNet121"), digits=1),
              *ms(row(before(CUDNN), model="DenseNet121", engine="fast")["start_up_s"], digits=0))),
    ("speed.md", rf"not compiled, one graph \| {R} ms \| 3x3 stem: (\d+) ms",
     lambda: (*ms(step(STEP, "DenseNet121", "streams-uncompiled"), digits=1),
              *ms(earlier(CUDNN, 1, "DenseNet121", "uncompiled"), digits=0))),
    ("speed.md", rf"for all runs \| {R} ms, {R} packed \| (\d+) s of start-up",
     lambda: (*lone_and_packed(STEP, "DenseNet121", 20, digits=1), densenet121_start_ups()[0])),
    ("speed.md", rf"at 32 channels \({R} us a convolution when packed\)", tap_loads),
    ("speed.md", r"gathering of taps, a (\w+) of its packed step", taps),
    ("speed.md", r"for a run alone \((\d+) ms, where cuDNN took (\d+) in another call\)",
     lambda: ms(step(STEP, "DenseNet121-small-stem"), earlier(CUDNN, 1, "DenseNet121", "uncompiled"), digits=0)),
    ("speed.md", r"is its compilation: (\d+) s where torch's cache on the disk knows it, (\d+) s .*?, (\d+) and (\d+) "
     r"s .*? and (\d+) to (\d+) s for each later pack", start_ups),
    ("speed.md", r"compiles inputs and losses only: (\d+) to (\d+) s", densenet121_start_ups),
    ("speed.md", rf"where 12 runs take {R} ms each and {R} with a stream each",
     lambda: ms(*(row["step_ms_a_run"] for row in record("deep-networks")["rows"][:2]), digits=1)),
    ("speed.md", r"all parameters: (\d+) us on DenseNet121's (\d) million in blocks of 1024 .*? take (\d+) at",
     one_optimizer_step),
    ("../README.md", rf"one CPU thread \| {R} times torch's BCE; LibAUC 2\.0\.1 takes (\d+) times as long", losses),
    ("../README.md", r"\| (\d+) times faster than scikit-learn at 1 % positives, (\d+) times at 50 %",
     lambda: beside_sklearn("AUROC, one", 10_000_000, "scikit-learn")),
    ("../README.md", r"\| (\d+) times faster than a loop over scikit-learn at 1 %, (\d+) times at 50 %",
     lambda: beside_sklearn("AUROC bootstrap, 2,000", 100_000, "scikit-learn in a loop")),
    ("../README.md", rf"ResNet20 (\d+) times faster alone \({R} ms; LibAUC's step {R}\), (\d+) times a run with 24 "
     rf"side by side \({R} ms; with other tiles (\d+) times, but slower alone\)", readme_resnet20),
    ("../README.md", rf"DenseNet121 (\d+) times alone \({R} ms\), (\d+) times with 20 side by side \({R} ms a run\)",
     readme_densenet121),
    ("../README.md", rf"{R} on ResNet20, alone and with 24 side by side; {R} and {R} on DenseNet121, alone and with 20",
     lambda: (*set(both_over_ce(TILES, "ResNet20", 24)), *both_over_ce(STEP, "DenseNet121", 20))),
    ("../README.md", rf"AMP and channels_last \| {R} times faster",
     lambda: (f"{beside_timm()[0] / beside_timm()[1]:.1f}",)),
    ("../README.md", rf"\| (\d+) us, {R} times the floor of its bytes, in blocks of 4096 \(blocks of 1024, used now, "
     r"took (\d+) us in a trial\); torch's fused SGD without momentum (\d+) us, LibAUC's PESG (\d+) ms \(eager\)",
     pesg_on_a_gpu),
    ("../README.md", rf"the time of {R} fused SGD steps on ResNet20 and of {R} on DenseNet121, with momentum in both "
     rf"of {R} and {R} \(", pesg_on_a_cpu),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "sentence", "source"), FIGURES, ids=[f"{page}-{n}" for n, (page, *_) in enumerate(FIGURES)]
)
def test_a_page_quotes_the_record(page, sentence, source):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    (found,) = re.finditer(sentence, text)
    assert found.groups() == source()
