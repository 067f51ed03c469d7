"""The small form of the campaign on names, and that readers without it would be noticed."""

import random
from pathlib import Path

import pytest

RELIABILITY = Path(__file__).resolve().parents[2] / "reliability"


@pytest.fixture
def campaign(monkeypatch):
    monkeypatch.syspath_prepend(RELIABILITY)
    import ids

    return ids


def trials(campaign, folder, count):
    """Which kinds of tables held, each as often as this."""
    found = {}
    for what, (pair_of, holds) in campaign.TRIALS.items():
        draws = [random.Random(seed) for seed in range(count)]
        found[what] = [holds(folder, [pair_of(n, draw) for n in range(10, 30)], draw) for draw in draws]
    return found


def test_names_in_many_forms(campaign, tmp_path):
    assert all(all(found) for found in trials(campaign, tmp_path, 10).values())


def test_patients_that_are_torn_apart_are_found_out(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr("deepauc.data.table.compact.one_form", str.strip)
    monkeypatch.setattr("deepauc.data.task.in_one_form", lambda names: names)
    pair_of, holds = next(iter(campaign.TRIALS.values()))
    draw = random.Random(0)
    assert not holds(tmp_path, [pair_of(n, draw) for n in range(10, 30)], draw)
