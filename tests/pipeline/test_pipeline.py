"""The pipeline as a caller of the library uses it: events and results, no console; other splits of the same rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepauc.data.table.problems import TableError
from deepauc.pipeline import outcome
from deepauc.pipeline.events import (
    AlreadyFinished,
    Checked,
    Decided,
    Estimated,
    Reading,
    Scoring,
    Stepped,
    TrainingBegan,
    TrainingEnded,
    Tuning,
    WritingReport,
)
from deepauc.pipeline.job import check, complete_settings, fit_minutes, plan, read
from deepauc.pipeline.outcome import PairedTest, doubts
from deepauc.pipeline.run import planned, run
from deepauc.pipeline.train import folder_state, train_run
from deepauc.training.config import DataSettings, Settings, SplitSettings
from deepauc.training.plan.inputs import PlanOptions

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Ages and sexes of 90 people, ill by age and by chance."""
    generator = np.random.default_rng(0)
    lines = ["name,age,sex,ill"]
    for number, age in enumerate(generator.uniform(20, 80, 90)):
        lines.append(f"r{number},{age:.1f},{'fm'[number % 2]},{int(age + generator.normal(0, 10) > 60)}")
    table = tmp_path_factory.mktemp("data") / "people.csv"
    table.write_text("\n".join(lines) + "\n")
    data = DataSettings(table=str(table), metadata_columns=("age", "sex"), label_columns=("ill",), id_column="name")
    return Settings(data=data, plan=PlanOptions(epochs=2), folds=0)


@pytest.fixture
def no_report(monkeypatch):
    def write(run_dir, *, command):
        (Path(run_dir) / "report.html").write_text("<p>report")

    monkeypatch.setattr(outcome, "write_report", write)


def test_events_come_in_order_and_nothing_is_printed(settings, no_report, tmp_path, capsys):
    told = []
    tuned = Settings(data=settings.data, plan=settings.plan, tune=2)
    first = run(tuned, out=tmp_path / "run", device=CPU, command="mine", listen=told.append)
    kinds = list(dict.fromkeys(type(event) for event in told))
    started = [Reading, Checked, Decided, Estimated, Tuning, TrainingBegan]
    assert kinds == [*started, Stepped, TrainingEnded, Scoring, WritingReport]
    steps = [event.step for event in told if isinstance(event, Stepped)]
    (began,) = [event for event in told if isinstance(event, TrainingBegan)]
    assert len(steps) == sum(length.steps for length in began.lengths)
    tuning = [event for event in told if isinstance(event, Tuning)]
    assert [event.done for event in tuning] == list(range(tuning[-1].total + 1))
    assert next(event.finished for event in tuning if event.finished) == "the stages before"
    assert first.state == "trained"
    assert first.kept.auc["test"]["ill"].value == first.run.auc("test")["ill"].value
    assert first.run.record.command == "mine"

    told.clear()
    again = run(tuned, out=tmp_path / "run", device=CPU, command="mine", listen=told.append)
    assert again.state == "finished"
    assert again.networks == first.networks
    assert AlreadyFinished(out=tmp_path / "run") in told
    assert not {TrainingBegan, Scoring, WritingReport} & {type(event) for event in told}
    assert capsys.readouterr() == ("", "")


def test_faults_leave_as_exceptions(settings, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("name,age,sex,ill\na,30,f,yes\nb,40,m,0\n")
    data = DataSettings(table=str(bad), metadata_columns=("age",), label_columns=("ill",), id_column="name")
    with pytest.raises(TableError):
        run(Settings(data=data), out=tmp_path / "run", device=CPU, command="")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty"):
        folder_state(tmp_path / "mine")

    def stop(event):
        if isinstance(event, TrainingBegan):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="interrupted; nothing was trained yet"):
        run(settings, out=tmp_path / "run", device=CPU, command="", listen=stop)


def test_another_split_of_the_same_rows_gives_another_run_with_its_own_encoding(settings, tmp_path):
    runs = []
    for name, seed in (("a", 0), ("b", 1)):
        one = check(replace(settings, split=SplitSettings(seed=seed)), device=CPU)
        ages = one.task.inputs(one.task.part("train"))[:, 0]
        assert ages.mean() == pytest.approx(0, abs=1e-6)  # standardised by the rows of this training part
        job = plan(settings, one, device=CPU)
        assert fit_minutes(job) is job
        assert job.decisions[0] == one.split
        out = tmp_path / name
        runs.append(train_run(job, out, state=folder_state(out), command=name))
    assert runs[0].record.identity.data != runs[1].record.identity.data


def test_complete_settings_plan_nothing_and_give_the_same_job(settings):
    rows = read(settings, device=CPU)
    job = planned(settings, rows, device=CPU)
    complete = complete_settings(job)
    assert complete.recipe == job.recipe
    again = planned(complete, rows, device=CPU)
    assert again.plan is None
    assert again.recipe == job.recipe


@pytest.mark.parametrize(
    ("low", "said"), [(-0.01, ["The network is not clearly better than mean brightness"]), (0.01, [])]
)
def test_a_network_that_is_not_clearly_better_than_a_trivial_baseline_is_told_first(low, said):
    def against(name, value, low):
        numbers = {"value": value, "low": low, "high": value + 0.1, "p_value": 0.5}
        return PairedTest(label="ill", part="test", against=name, test="DeLong", **numbers)

    tests = [against("CrossEntropy", -0.2, -0.3), against("logistic regression", 0.2, 0.1)]
    found = doubts([*tests, against("mean brightness", 0.05, low)])
    assert [text.partition(": ")[0] for text in found] == said
