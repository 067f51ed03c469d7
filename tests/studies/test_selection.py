"""Selection rules: what they choose, and that a test score has no place in what they see."""

from dataclasses import fields

import pytest

from deepauc.studies.selection import BestMeanValidation, TriedSetting


def trial(margin, *values, gamma=0.01):
    return TriedSetting(config={"margin": margin, "gamma": gamma}, validation=tuple((0.5, v) for v in values))


def test_a_trial_has_configuration_and_validation_only():
    assert [f.name for f in fields(TriedSetting)] == ["config", "validation"]


def test_best_mean_over_training_sets_not_the_best_single_one():
    assert BestMeanValidation().choose([trial(0.1, 0.9, 0.5), trial(0.3, 0.75, 0.75)]).config["margin"] == 0.3


def test_of_equals_the_earlier_one():
    assert BestMeanValidation().choose([trial(0.1, 0.7), trial(0.3, 0.7)]).config["margin"] == 0.1


def test_epochs_averages_over_the_end_of_the_curve():
    steady = TriedSetting(config={"margin": 1}, validation=((0.7, 0.7, 0.7),))
    lucky = TriedSetting(config={"margin": 2}, validation=((0.1, 0.1, 0.8),))
    assert BestMeanValidation().choose([steady, lucky]) is lucky
    assert BestMeanValidation(epochs=3).choose([steady, lucky]) is steady


def test_a_setting_that_failed_once_is_out():
    nan = float("nan")
    assert BestMeanValidation().choose([trial(0.1, 0.9, nan), trial(0.3, 0.6, 0.6)]).config["margin"] == 0.3
    with pytest.raises(ValueError, match="nothing to choose"):
        BestMeanValidation().choose([trial(0.1, nan)])
