"""What a finished run comes to: each stage's network judged, the paired tests, and the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from deepauc.data.task import Task
from deepauc.metrics.intervals import Estimate
from deepauc.pipeline.events import Listener, Scoring, WritingReport, ignore
from deepauc.pipeline.train import State
from deepauc.pipeline.trivial_baselines import fit_trivial_baselines, has_plain_labels
from deepauc.reporting.evaluation.kept_stage import auc_intervals, score_last_stage
from deepauc.reporting.figures.label import signed_text
from deepauc.reporting.report import write_report
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.run import Run
from deepauc.training.trivial import FOLDER as TRIVIAL
from deepauc.training.trivial import TITLES


@dataclass(frozen=True, kw_only=True)
class ScoredNetwork:
    """The network of a stage (numbered from 0) with its AUC by part and label.

    role: the run's own network, the baseline stage, or the last stage where an earlier one was kept.
    """

    stage: int
    objective: str
    role: Literal["kept", "baseline", "not kept"]
    auc: Mapping[str, Mapping[str, Estimate[float]]]


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """AUC of the kept network less that of another stage's, for one label, with its interval."""

    label: str
    part: str
    against: str
    test: str
    value: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run. Without a report: its last stage trains features for other runs, so that there are no scores.

    networks: the kept one first. baseline: the baseline stage as a run of its own, where others follow.
    """

    run: Run
    state: State
    report: Path | None = None
    baseline: Run | None = None
    networks: tuple[ScoredNetwork, ...] = ()
    tests: tuple[PairedTest, ...] = ()

    @property
    def kept(self) -> ScoredNetwork:
        return self.networks[0]

    @property
    def not_kept(self) -> ScoredNetwork | None:
        return next((network for network in self.networks if network.role == "not kept"), None)


def conclude(
    run: Run, task: Task, *, state: State, device: torch.device | None = None, listen: Listener = ignore
) -> Outcome:
    """Score what the run is compared with, and write its report; what is there already is left as it is."""
    if not (run.path / "scores.csv").exists():
        return Outcome(run=run, state=state)
    report = run.path / "report.html"
    if not report.exists():
        listen(Scoring())
    baseline = baseline_run(run, task, device=device)
    last_stage = score_last_stage(run, task, device=device)
    if not report.exists() and "validation" in task.parts and has_plain_labels(task):
        parts = [part for part in ("validation", "test") if part in task.parts]
        seed = run.record.identity.seed or 0
        fit_trivial_baselines(task, run.path / TRIVIAL, parts=parts, seed=seed, device=device)
    if not report.exists():
        listen(WritingReport())
        write_report(run.path, command=shlex.join(["deepauc", "report", str(run.path)]))
    return outcome_of(run, state=state, report=report, baseline=baseline, last_stage=last_stage)


def outcome_of(
    run: Run, *, state: State, report: Path, baseline: Run | None = None, last_stage: Path | None = None
) -> Outcome:
    """From files alone. last_stage: the scores of the last stage, if it was not kept."""
    record = run.record
    objectives, kept, first = record.objectives, record.kept_stage, record.baseline_stage

    def network(stage: int, role: Literal["kept", "baseline", "not kept"], folder: Path) -> ScoredNetwork:
        auc = auc_intervals(folder, record.task.labels)
        return ScoredNetwork(stage=stage, objective=objectives[stage], role=role, auc=auc)

    networks = [network(kept, "kept", run.path)]
    if baseline is not None and kept != first:
        networks.append(network(first, "baseline", baseline.path))
    if last_stage is not None:
        networks.append(network(len(objectives) - 1, "not kept", last_stage.parent))
    return Outcome(
        run=run,
        state=state,
        report=report,
        baseline=baseline,
        networks=tuple(networks),
        tests=paired_tests(report.with_suffix(".json")),
    )


def doubts(tests: Sequence[PairedTest]) -> list[str]:
    """A sentence for each label whose network is not better than the best trivial baseline beyond chance."""
    found, labels = [], dict.fromkeys(test.label for test in tests)
    for label in labels:
        trivial = [test for test in tests if test.label == label and test.against in TITLES.values()]
        best = min(trivial, key=lambda test: test.value, default=None)
        if best is not None and best.low <= 0:
            of = "The network" if len(labels) == 1 else f"For {label} the network"
            less = signed_text(Estimate(best.value, best.low, best.high))
            found.append(f"{of} is not clearly better than {best.against}: AUC difference {less}.")
    return found


def paired_tests(report: Path) -> tuple[PairedTest, ...]:
    """The kept network against the baseline stage or the last, where it is another's, and against trivial baselines."""
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    tests = []
    for other in (found.get("baseline") or {}, found.get("not_kept") or {}, *found.get("trivial", [])):
        for one in other.get("labels", []):
            if "difference" in one:
                word = other.get("group_word", "patient")
                tests.append(
                    PairedTest(
                        label=one["label"],
                        part=other["part"],
                        against=other["objective"],
                        test=f"clustered by {word}" if other["clustered"] else "DeLong",
                        **one["difference"],
                        p_value=one["p_value"],
                    )
                )
    return tuple(tests)
