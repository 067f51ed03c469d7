"""results/pretrained.md: what ImageNet weights are worth on small medical sets, frozen and fine-tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record
from experiments.clinical.pretrained import BEGINS, CPU, CPU_RATES, KNOWN, LOSSES, MEDICAL, SET, pretrained_set

TITLES = {"ce": "CE", "auc_m": "CE, then AUC-M"}
WORDS = {"scratch": "from scratch", "frozen": "pretrained, frozen", "tuned": "pretrained, fine-tuned"}


def with_copies(records: Sequence[Record]) -> dict[int, float]:
    """By seed or fold, of the mean over copies of an image where there are any, else of the image."""
    found = {}
    for record in records:
        copies = record.get("test_scores", {}).get("tta_auc")
        found[record["seed"]] = record["auc"]["test"][0] if copies is None else float(copies)
    return found


def _copies_text(line: t.Line) -> str:
    return t.mean_text(list(with_copies(line.final).values()))


def _interval_text(line: t.Line) -> str:
    """DeLong's of one run, the mean of both ends: how large the test part is, which seeds do not show."""
    low, high = (fmean(record["auc"]["test"][end] for record in line.final) for end in (1, 2))
    return f"[{low:.3f}, {high:.3f}]"


COPIES = t.Column("with copies", _copies_text)
ONE_RUN = t.Column("a run's interval", _interval_text)
COLUMNS = (t.MEAN, ONE_RUN, COPIES, t.SETS, t.DIFFERENCE, t.SETTINGS, t.TUNING, t.SECONDS, t.CUT, t.DIVERGED)


def _rows(names: Sequence[str], begins: Sequence[str]) -> tuple[t.Row, ...]:
    return tuple(
        t.Row(
            labels=(name, WORDS[begin], TITLES[loss]),
            study=f"{name}-{begin}-{loss}",
            versus=f"{name}-{begin}-ce" if loss == "auc_m" else None,
            key=(SET, name, begin, loss),
        )
        for name in names
        for begin in begins
        for loss in LOSSES
    )


def _nih(books: t.Books) -> Iterator[list[str]]:
    """Mean of the five findings by seed."""
    for begin, loss, means in _nih_means(books):
        interval = mean_interval(list(means.values())) if len(means) > 1 else None
        shown = "-" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]"
        yield [WORDS[begin], TITLES[loss], str(len(means)), t.mean_text(list(means.values())), shown]


def _nih_means(books: t.Books) -> Iterator[tuple[str, str, dict[int, float]]]:
    for begin in BEGINS:
        for loss in LOSSES:
            each = [with_copies(books(SET).final(f"nih-{one}-{begin}-{loss}")) for one in COMPETITION_FINDINGS]
            common = set.intersection(*(set(one) for one in each))
            if common:
                yield begin, loss, {seed: fmean(one[seed] for one in each) for seed in sorted(common)}


def _nih_figures(books: t.Books) -> t.Figures:
    found: t.Figures = {}
    by_start: dict[str, dict[str, dict[int, float]]] = {}
    for begin, loss, means in _nih_means(books):
        by_start.setdefault(begin, {})[loss] = means
        found.setdefault(begin, {})[loss] = {"mean": fmean(means.values()), "sets": list(means.values())}
    for begin, both in by_start.items():
        difference = t.paired(both.get("auc_m", {}), both.get("ce", {}))
        if difference is not None:
            found[begin]["auc_m-ce"] = t.interval_figures(difference)
    return {SET: {"nih": found}} if found else {}


def _gains(books: t.Books) -> Iterator[list[str]]:
    """Fine-tuned and frozen minus from scratch, paired by seed or fold, with copies."""
    for name, begin, loss, found in _paired_gains(books):
        yield [name, WORDS[begin], TITLES[loss], t.interval_text(found)]


def _gain_figures(books: t.Books) -> t.Figures:
    return t.merged(
        {SET: {name: {begin: {f"{loss}-scratch": t.interval_figures(found)}}}}
        for name, begin, loss, found in _paired_gains(books)
    )


def _tta_figures(books: t.Books) -> t.Figures:
    """Mean AUC with copies, beside the plain ones of the tables."""
    means = [
        (name, begin, loss, list(with_copies(books(SET).final(f"{name}-{begin}-{loss}")).values()))
        for name in (*MEDICAL, *KNOWN, CPU)
        for begin in CPU_RATES  # frozen networks have no copies
        for loss in LOSSES
    ]
    return t.merged({SET: {name: {begin: {loss: {"tta": fmean(aucs)}}}}} for name, begin, loss, aucs in means if aucs)


def _paired_gains(books: t.Books) -> Iterator[tuple[str, str, str, Estimate[float]]]:
    for name in (*MEDICAL, CPU):
        for begin in BEGINS[1:]:
            for loss in LOSSES:
                both = (with_copies(books(SET).final(f"{name}-{one}-{loss}")) for one in (begin, BEGINS[0]))
                found = t.paired(*both)
                if found is not None:
                    yield name, begin, loss, found


PAGE = t.Page(
    name=SET,
    title=pretrained_set().title,
    note=(
        "Test AUC, mean ± standard deviation over five seeds or folds; EfficientNet-Lite 0 at 128 px, smaller images "
        "enlarged. `a run's interval`: DeLong's 95 %, the mean of both ends over runs: how much the size of the test "
        "part leaves open. `with copies`: of the mean score of 30 changed copies; frozen networks have none. "
        "`difference`: to CE, paired, 95 % t-interval. `breast64`: BreastMNIST at 64 px, on a CPU, 15 epochs and two "
        "settings a stage: short, above all for a network from scratch."
    ),
    tables=(
        t.study_table(
            SET,
            title="Medical sets",
            labels=("set", "start", "loss"),
            rows=(*_rows(tuple(MEDICAL), BEGINS), *_rows((CPU,), tuple(CPU_RATES))),
            columns=COLUMNS,
        ),
        t.Table(
            title="What the weights add",
            note="AUC minus that from scratch, with copies, paired by seed or fold, 95 % t-interval.",
            header=("set", "start", "loss", "difference [95 %]"),
            lines=_gains,
            figures=_gain_figures,
        ),
        t.Table(
            title="NIH chest X-rays: mean of five findings",
            header=("start", "loss", "seeds", "mean AUC", "95 % over seeds"),
            lines=_nih,
            figures=_nih_figures,
        ),
        t.study_table(
            SET,
            title="The paper's melanoma recipe as printed, pretrained, on HAM10000",
            labels=("network", "loss"),
            rows=tuple(
                t.Row(
                    labels=(short, TITLES[loss]),
                    study=f"printed-{short}-{loss}",
                    versus=f"printed-{short}-ce" if loss == "auc_m" else None,
                    key=(SET, f"printed-{short}", loss),
                )
                for short in ("lite0", "lite2")
                for loss in LOSSES
            ),
            columns=COLUMNS,
        ),
        t.study_table(
            SET,
            title="C10 and C100 at 1 %, pretrained",
            note="ImageNet has these classes: no figure here stands beside one from scratch.",
            labels=("set", "start", "loss"),
            rows=_rows(tuple(KNOWN), BEGINS[1:]),
            columns=COLUMNS,
        ),
    ),
    figures=_tta_figures,
)
