"""Pages of tables from records: a row is a study, a column a figure of its runs.

    Page(
        name="mine",
        title="My study",
        note="Test AUC, mean ± standard deviation over training sets.",
        tables=(
            study_table(
                "mine",
                labels=("loss",),
                rows=(Row(labels=("AUC-M",), study="mine-auc_m", versus="mine-ce", key=("mine", "auc_m")),),
                columns=(MEAN, SETS, DIFFERENCE, SETTINGS),
            ),
        ),
    ).markdown(Path("results"))

Titles and notes are constants; nothing here makes a sentence. What is no figure of a single study is a `Table`
with a function of its own. `Page.summary` is the page's part of results/summary.json: the figures of rows with a key,
here mine.auc_m and mine.auc_m-ce, and what the page's own function adds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records.book import Record, RecordBook
from deepauc.studies.records.score_histograms import binned_auc
from deepauc.studies.study import StudySet
from deepauc.text_tables import markdown_table, percent_text
from deepauc.training.run.output_file import write_atomically

NOTHING = "No run is recorded yet."
SUMMARY = "summary.json"
BY_DEFAULT = "Test AUC: mean ± standard deviation over the runs. Settings were selected on validation AUC."
Figures = dict[str, Any]
Verdict = Literal["confirmed", "refuted", "open"]


class Books:
    """The record books of a results folder by name, each read once."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._books: dict[str, RecordBook] = {}

    def __call__(self, name: str) -> RecordBook:
        if name not in self._books:
            self._books[name] = RecordBook.of(self.results, name)
        return self._books[name]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a `Page`, whatever its lines are made from.

    Args:
        title: Its heading.
        note: The paragraph before it.
        header: The columns' headings.
        lines: Cells of each row, as text; a table without lines is left out of the page.
        figures: For summary.json.
    """

    title: str = ""
    note: str = ""
    header: tuple[str, ...]
    lines: Callable[[Books], Iterable[Sequence[str]]]
    figures: Callable[[Books], Figures] = lambda _: {}


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of tables made from records.

    Args:
        name: Of its file, RESULTS/NAME.md.
        title: Its heading.
        note: Its first paragraph.
        tables: In their order.
        figures: For summary.json, beside those of its tables.
    """

    name: str
    title: str
    note: str
    tables: tuple[Table, ...]
    figures: Callable[[Books], Figures] = lambda _: {}

    def markdown(self, results: Path) -> str:
        """The page, from the records in this folder."""
        books = Books(results)
        parts = [f"# {self.title}", "Made from the records by `deepauc study table`.", self.note]
        made = [(table, lines) for table in self.tables if (lines := [list(line) for line in table.lines(books)])]
        for table, lines in made:
            parts += [f"## {table.title}" if table.title else "", table.note, markdown_table(table.header, lines)]
        return "\n\n".join(filter(None, [*parts, "" if made else NOTHING])) + "\n"

    def summary(self, results: Path) -> Figures:
        """The page's figures, to be merged with those of other pages; empty where nothing is recorded."""
        books = Books(results)
        return rounded(merged([*(table.figures(books) for table in self.tables), self.figures(books)]))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a `study_table`.

    Args:
        labels: What the first columns say.
        study: The study of the row.
        versus: The study it is compared with.
        paper: Mean and standard deviation that the paper prints.
        key: Where summary.json has the study's figures; the difference to `versus` is beside them, as NAME-OTHER, the
            last parts of both studies' names.
    """

    labels: tuple[str, ...]
    study: str
    versus: str | None = None
    paper: tuple[float, ...] = ()
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A row and its records."""

    row: Row
    book: RecordBook

    @property
    def final(self) -> list[Record]:
        return self.book.final(self.row.study)

    @property
    def versus(self) -> list[Record]:
        return [] if self.row.versus is None else self.book.final(self.row.versus)

    @property
    def difference(self) -> Estimate[float] | None:
        return between(self.final, self.versus)


@dataclass(frozen=True)
class Column:
    """A column of a `study_table`.

    Args:
        title: Its heading.
        text: What it says of a row that has a final run; nothing where its runs have no such figure.
    """

    title: str
    text: Callable[[Line], str]


def study_table(
    set_name: str,
    *,
    labels: Sequence[str],
    rows: Sequence[Row],
    columns: Sequence[Column],
    title: str = "",
    note: str = "",
) -> Table:
    """One line for each row whose study has a final run, or one that diverged.

    Args:
        set_name: Whose records these are.
        labels: Headings of the first columns.
        rows: One for each study.
        columns: The others, such as MEAN and DIFFERENCE of this module.
        title: Its heading.
        note: The paragraph before it.
    """

    def lines(books: Books) -> list[list[str]]:
        found = [Line(row, books(set_name)) for row in rows]
        shown = [one for one in found if one.final or (DIVERGED in columns and DIVERGED.text(one))]
        return [
            [*one.row.labels, *((c.text(one) if one.final or c is DIVERGED else "") or "-" for c in columns)]
            for one in shown
        ]

    def figures(books: Books) -> Figures:
        return merged(_row_figures(Line(row, books(set_name))) for row in rows if row.key)

    return Table(title=title, note=note, header=(*labels, *(c.title for c in columns)), lines=lines, figures=figures)


def _row_figures(line: Line) -> Figures:
    *place, own = line.row.key
    found = {own: figures_of(line.final)} if line.final else {}
    if line.row.versus is not None and line.difference is not None:
        found[f"{own}-{line.row.versus.rpartition('-')[2]}"] = interval_figures(line.difference)
    for name in reversed(place):
        found = {name: found} if found else {}
    return found


def page_of(
    studies: StudySet,
    *,
    columns: Sequence[Column] | None = None,
    note: str = BY_DEFAULT,
) -> Page:
    """A row for each study of the set: what a set has that declares no page of its own.

    Args:
        studies: The set.
        columns: By default mean, training sets, settings, diverged runs.
        note: The page's first paragraph.
    """
    rows = [Row(labels=(study.name,), study=study.name) for study in studies.studies]
    table = study_table(studies.name, labels=("study",), rows=rows, columns=columns or (MEAN, SETS, SETTINGS, DIVERGED))
    return Page(name=studies.name, title=studies.title, note=note, tables=(table,))


def by_set(records: Sequence[Record]) -> dict[int, float]:
    """Test AUC by training set."""
    return {record["seed"]: record["auc"]["test"][0] for record in records}


def differences(first: Sequence[Record], second: Sequence[Record]) -> dict[int, float]:
    """Test AUC of the first minus the second by training set, over the sets that both have with the same network.

    ValueError where both have runs and no set in common: nothing could be paired.
    """
    a, b = by_set(first), by_set(second)
    common = sorted(a.keys() & b.keys())
    if a and b and not common:
        names = (f"{some[0]['study']} has {sorted(by_set(some))}" for some in (first, second))
        raise ValueError(
            f"{', '.join(names)}: a paired difference needs the same training sets. Run both on the same --seeds."
        )
    networks = [{r["seed"]: r.get("fixed", {}).get("network") for r in some} for some in (first, second)]
    return {seed: a[seed] - b[seed] for seed in common if networks[0][seed] == networks[1][seed]}


def between(first: Sequence[Record], second: Sequence[Record]) -> Estimate[float] | None:
    """Mean paired difference with its 95 % t-interval; None with fewer than two sets in common."""
    pairs = differences(first, second)
    return mean_interval(list(pairs.values())) if len(pairs) > 1 else None


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> Estimate[float] | None:
    """The same of other values by set or fold."""
    common = sorted(first.keys() & second.keys())
    return mean_interval([first[one] - second[one] for one in common]) if len(common) > 1 else None


def judged(interval: Estimate[float]) -> Verdict:
    """Of a claim that a difference is above 0, by its interval."""
    if interval.low > 0:
        return "confirmed"
    return "refuted" if interval.high < 0 else "open"


def mean_text(values: Sequence[float], digits: int = 3) -> str:
    """`0.711 ± 0.009`, of several values."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def interval_text(found: Estimate[float] | None, digits: int = 3) -> str:
    """`+0.012 [-0.003, +0.027]`."""
    if found is None:
        return "-"
    return f"{found.value:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def settings_text(config: Mapping[str, Any]) -> str:
    """`margin 0.5, gamma 1/300, lr 0.1`."""
    shown = []
    for name, value in config.items():
        if name == "gamma" and isinstance(value, float) and value:
            shown.append(f"gamma 1/{1 / value:.0f}")
        else:
            shown.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(shown)


def each_once(texts: Iterable[str]) -> str:
    """All that differ, in their order."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def share_text(records: Sequence[Record], name: str) -> str:
    """Mean of a share of steps, over the runs that have it."""
    shares = [record[name] for record in records if record.get(name) is not None]
    return percent_text(fmean(shares)) if shares else "-"


def training_auc(records: Sequence[Record]) -> float | None:
    """Mean over the runs that have kept a histogram of their training scores."""
    parts = (record.get("score_histogram", {}).get("train") for record in records)
    values = [found for part in parts if part and (found := binned_auc(part)) is not None]
    return fmean(values) if values else None


def highest_of_curve(records: Sequence[Record]) -> float | None:
    """The highest point of the mean test AUC by epoch; no choice of ours, but what a reader may ask for."""
    curves = [record["test_curve"] for record in records if "test_curve" in record]
    return max(fmean(values) for values in zip(*curves, strict=False)) if curves else None


def seconds_text(records: Sequence[Record]) -> str:
    """`12`, or `12 + 30` after a first stage, whose seconds are in no run's own."""
    first = [record["first_stage"]["seconds"] for record in records if record.get("first_stage")]
    means = [fmean(record["seconds"] for record in records), *([fmean(first)] if first else [])]
    return " + ".join(f"{mean:.0f}" if mean >= 10 else f"{mean:.1f}" for mean in means)


def tuning_text(line: Line) -> str:
    """`12, 2 diverged`, or the study that the settings come from."""
    runs = line.book.tuning(line.row.study)
    failed = sum("failed" in record for record in runs)
    parts = [f"{len(runs)}" + (f", {failed} diverged" if failed else "")] if runs else []
    origins = ((record.get("selection") or {}).get("inherited from", "") for record in line.final)
    return "; ".join([*parts, *(f"from {name}" for name in dict.fromkeys(filter(None, origins)))])


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


MEAN = Column("test AUC", lambda line: mean_text(list(by_set(line.final).values())))
PAPER = Column("paper", lambda line: " ± ".join(f"{value:.3f}" for value in line.row.paper))
SETS = Column("sets", lambda line: str(len(line.final)))
PAIRS = Column("pairs", lambda line: str(len(differences(line.final, line.versus)) or ""))
DIFFERENCE = Column("difference [95 %]", lambda line: interval_text(line.difference))
VERDICT = Column("verdict", lambda line: judged(line.difference) if line.difference else "")
ALPHA_ZERO = Column("alpha = 0", lambda line: share_text(line.final, "alpha_zero_share"))
TRAINING = Column("train AUC", lambda line: _optional(training_auc(line.final), 2))
HIGHEST = Column("highest epoch", lambda line: _optional(highest_of_curve(line.final), 3))
SECONDS = Column("s per run", lambda line: seconds_text(line.final))
SETTINGS = Column("settings", lambda line: each_once(settings_text(record["config"]) for record in line.final))
TUNING = Column("tuning runs", tuning_text)
CUT = Column("cut", lambda line: each_once(settings_text(record["cut"]) for record in line.final))
DIVERGED = Column("diverged", lambda line: str(len(line.book.diverged(line.row.study)) or ""))


def figures_of(records: Sequence[Record]) -> Figures:
    """Of one study: mean, sd, the AUC of each training set, the settings, and the share of steps at alpha = 0."""
    values = list(by_set(records).values())
    shares = [record["alpha_zero_share"] for record in records if record.get("alpha_zero_share") is not None]
    found: Figures = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None, "sets": values}
    found["settings"] = records[0]["config"]
    return found | ({"alpha_zero": fmean(shares)} if shares else {})


def interval_figures(found: Estimate[float]) -> Figures:
    return {"mean": found.value, "low": found.low, "high": found.high}


def counted(intervals: Iterable[Estimate[float]]) -> dict[str, int]:
    """How many differences lie above 0, hold it, or lie below it."""
    names: dict[Verdict, str] = {"confirmed": "above", "open": "level", "refuted": "below"}
    found = [names[judged(one)] for one in intervals]
    return {"all": len(found), **{name: found.count(name) for name in names.values()}}


def merged(parts: Iterable[Figures]) -> Figures:
    """One tree of several: later ones add to the earlier."""
    whole: Figures = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(whole.get(name), dict)
            whole[name] = merged([whole[name], value]) if both else value
    return whole


def rounded(value: Any) -> Any:
    """Floats with six digits after the point, as the AUCs of records."""
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(float(value), 6) if isinstance(value, float) else value


def update_summary(results: Path, part: Figures) -> Path:
    """RESULTS/summary.json with one page's figures renewed."""
    path = results / SUMMARY
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_atomically(path, (summary_text(merged([known, part])) + "\n").encode())
    return path


def summary_text(summary: Figures, indent: str = "") -> str:
    """JSON in which whatever fits is one line."""
    short = json.dumps(summary)
    if len(indent + short) <= 150 or not any(isinstance(value, dict) for value in summary.values()):
        return short
    inner = (
        f"{indent} {json.dumps(name)}: "
        + (summary_text(value, indent + " ") if isinstance(value, dict) else json.dumps(value))
        for name, value in summary.items()
    )
    return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
