import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.sources import Place, TaskSource
from experiments.planning.small_tables import SmallTable


class FiftyRows(TaskSource):
    name = "fifty rows"

    def load(self, seed, *, tuning, place):
        labels = (np.arange(50) % 5 == 0).astype(np.float32)
        return Task(
            name=self.name,
            kind="binary",
            source=ArrayInputs(np.arange(50, dtype=np.float32)[:, None]),
            labels=labels,
            label_names=("ill",),
            parts={"train": np.arange(40), "test": np.arange(40, 50)},
        )


def drawn(seed, positives=6, negatives=10):
    table = SmallTable(source=FiftyRows(), positives=positives, negatives=negatives)
    return table.load(seed, tuning=False, place=Place())


def test_counts_and_parts():
    task = drawn(0)
    assert len(task.part("train")) == 16
    assert task.labels[task.part("train")].sum() == 6
    assert max(task.part("train")) < 40  # no row of the test part
    assert list(task.part("test")) == list(range(40, 50))


def test_the_seed_draws_the_rows():
    assert list(drawn(1).part("train")) == list(drawn(1).part("train"))
    assert list(drawn(1).part("train")) != list(drawn(2).part("train"))


def test_more_rows_than_there_are():
    with pytest.raises(ValueError, match="fewer rows"):
        drawn(0, positives=9)
