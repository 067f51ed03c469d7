"""What a set's records amount to without an image: asked for now, resting on a former choice, or of no study."""

from dataclasses import dataclass

from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.status import status_of
from deepauc.studies.sources import FoldSource
from deepauc.studies.study import Inherits, Study, StudySet
from deepauc.training.run.folder import NUMERICS_VERSION


@dataclass(frozen=True, kw_only=True)
class NoImages:
    """A source that must not be read."""

    name: str = "nothing"
    needs: tuple[str, ...] = ()

    def load(self, seed, *, tuning, place):
        raise AssertionError("status reads records alone.")

    def keep(self, run, task, *, device):
        return {}


def method(*, lr=0.1, widths=(4, 8), mixup=0.0):
    from experiments.search.recipe import best

    return best(lr=min(lr, 0.3), mixup=mixup, weight_decay=widths[0] / 1000)


RATE = Study(
    name="rate",
    task=NoImages(),
    method=method,
    grid={"lr": (0.1, 0.2), "widths": ((4, 8), (8, 8))},
    tuning_seeds=(0, 1),
    seeds=(5, 6),
)
MIXUP = Study(
    name="mixup",
    task=FoldSource(source=NoImages()),
    method=method,
    grid={"mixup": (0.0, 0.5)},
    tuning_seeds=(0, 1),
    inherits=Inherits(study="rate", axes=("lr", "widths")),
)
WHOLE = StudySet(name="s", title="", studies=(RATE, MIXUP))


def add(results, study, phase, seed, config, auc=0.5, **more):
    book = RecordBook(results / "s")
    number = len(book.tuning(study)) + len(book.final(study))
    record = {"study": study, "phase": phase, "seed": seed, "config": config, "run": f"{study}{number}", "fixed": {}}
    record |= {"numerics": NUMERICS_VERSION, "history": {"validation_auc": [auc]}, "recipe": {}, "cut": {}, **more}
    book.add(record)


def tune_rate(results, better):
    """All settings on both training sets; `better` is the rate that has the highest AUC."""
    for seed in RATE.tuning_seeds:
        for config in RATE.configs:
            add(results, "rate", "tuning", seed, config, 0.6 + 0.1 * (config["lr"] == better))


def counted(results, chosen=WHOLE.studies):
    return {one.study: one for one in status_of(WHOLE, chosen, results)}


def test_what_rests_on_a_former_choice_is_outdated(tmp_path):
    for mixup in (0.0, 0.5):  # from when the rate was .1, and widths as records keep them
        add(tmp_path, "mixup", "tuning", 0, {"lr": 0.1, "widths": [4, 8], "mixup": mixup})
    tune_rate(tmp_path, better=0.2)
    assert (counted(tmp_path)["mixup"].tuned, counted(tmp_path)["mixup"].outdated) == (0, 2)
    add(tmp_path, "mixup", "tuning", 1, {"lr": 0.2, "widths": [4, 8], "mixup": 0.5}, numerics=NUMERICS_VERSION + 1)
    add(tmp_path, "mixup", "tuning", 0, {"lr": 0.2, "widths": [4, 8], "mixup": 0.5}, failed="diverged")
    found = counted(tmp_path)
    assert (found["rate"].tuned, found["rate"].to_tune, found["rate"].outdated) == (8, 8, 0)
    mixup = found["mixup"]
    assert (mixup.tuned, mixup.to_tune, mixup.failed, mixup.other, mixup.outdated) == (1, 4, 1, 1, 2)


def test_more_than_is_asked_for_is_never_counted(tmp_path):
    tune_rate(tmp_path, better=0.1)
    tune_rate(tmp_path, better=0.2)  # again, by a call with another cut: the later ones count
    add(tmp_path, "rate", "tuning", 7, RATE.configs[0])  # a training set that is not declared
    add(tmp_path, "rate", "tuning", 0, {"lr": 9.0, "widths": [4, 8]})  # a setting that is not declared any more
    found = counted(tmp_path)["rate"]
    assert (found.tuned, found.to_tune, found.outdated) == (8, 8, 10)
    assert RecordedSettings(WHOLE.studies, RecordBook(tmp_path / "s")).selected(RATE)[0]["lr"] == 0.2


def test_while_an_earlier_study_is_open_the_latest_start_counts(tmp_path):
    add(tmp_path, "rate", "tuning", 0, RATE.configs[0])
    for lr in (0.1, 0.2, 0.2):
        for mixup in (0.0, 0.5):
            add(tmp_path, "mixup", "tuning", 0, {"lr": lr, "widths": [4, 8], "mixup": mixup})
    found = counted(tmp_path)["mixup"]
    assert (found.tuned, found.to_tune, found.outdated) == (2, 4, 4)


def test_final_runs_count_with_the_setting_that_is_selected(tmp_path):
    add(tmp_path, "rate", "final", 5, {"lr": 0.1, "widths": [4, 8]}, selection=None)
    assert counted(tmp_path)["rate"].final == 1  # selected with a cut: its record says by what
    tune_rate(tmp_path, better=0.2)
    assert (counted(tmp_path)["rate"].final, counted(tmp_path)["rate"].outdated) == (0, 1)
    add(tmp_path, "rate", "final", 6, {"lr": 0.2, "widths": [4, 8]}, selection=None)
    assert (counted(tmp_path)["rate"].final, counted(tmp_path)["rate"].seeds) == (1, 2)


def test_what_was_fixed_may_be_chosen_now(tmp_path):
    tune_rate(tmp_path, better=0.2)
    for seed, widths in ((5, [4, 8]), (6, [8, 8])):
        add(tmp_path, "rate", "final", seed, {"lr": 0.2}, fixed={"widths": widths}, selection=None)
    assert (counted(tmp_path)["rate"].final, counted(tmp_path)["rate"].outdated) == (1, 1)


def test_what_was_made_with_a_cut_is_counted_as_such(tmp_path):
    """A run of another network, by --set, is not what is declared, though its setting is."""
    add(tmp_path, "rate", "final", 5, {"lr": 0.1, "widths": [4, 8]}, selection=None, cut={"network": "R"})
    add(tmp_path, "rate", "final", 6, {"lr": 0.1, "widths": [4, 8]}, selection=None)
    add(tmp_path, "rate", "tuning", 0, RATE.configs[0], cut={"tune_epochs": 20})
    add(tmp_path, "rate", "tuning", 7, RATE.configs[0], cut={"tune_epochs": 20})  # outdated, and nothing else
    found = counted(tmp_path)["rate"]
    assert (found.final, found.tuned, found.cut, found.outdated) == (2, 1, 2, 1)


def test_final_runs_count_with_the_arguments_that_are_declared(tmp_path):
    plain = Study(name="plain", task=NoImages(), method=method, fixed={"lr": 0.3, "widths": (4, 8)}, seeds=(0, 1, 2, 3))
    whole = StudySet(name="s", title="", studies=(plain,))
    add(tmp_path, "plain", "final", 0, {}, fixed={"lr": 0.3})  # widths are what they are by default
    add(tmp_path, "plain", "final", 1, {}, fixed={"lr": 0.3, "widths": [4, 8], "mixup": 0.0})
    add(tmp_path, "plain", "final", 2, {}, fixed={"lr": 0.4, "widths": [4, 8]})
    add(tmp_path, "plain", "final", 3, {}, fixed={"lr": 0.4, "widths": [4, 8]}, cut={"lr": 0.4})  # set by hand
    (found,) = status_of(whole, whole.studies, tmp_path)
    assert (found.final, found.seeds, found.outdated) == (3, 4, 1)
    add(tmp_path, "plain", "final", 2, {}, fixed={"lr": 0.3, "widths": [4, 8], "gone": 1})  # no argument any more
    (found,) = status_of(whole, whole.studies, tmp_path)
    assert (found.final, found.outdated) == (3, 1)


def test_a_setting_that_was_refitted_after_a_cut_is_inherited(tmp_path):
    child = Study(
        name="child", task=NoImages(), method=method, seeds=(5,), inherits=Inherits(study="rate", axes=("lr",))
    )
    add(tmp_path, "rate", "tuning", 0, RATE.configs[0])
    add(tmp_path, "rate", "final", 5, {"lr": 0.3, "widths": [4, 8]}, selection=None)
    add(tmp_path, "child", "final", 5, {"lr": 0.3}, selection=None)
    whole = StudySet(name="s", title="", studies=(RATE, child))
    found = {one.study: one for one in status_of(whole, whole.studies, tmp_path)}
    assert (found["child"].final, found["child"].outdated) == (1, 0)


def test_records_of_no_declared_study_are_told_with_the_whole_set_alone(tmp_path):
    add(tmp_path, "rat", "tuning", 0, {})
    assert list(counted(tmp_path)) == ["rate", "mixup", "rat"]
    assert counted(tmp_path)["rat"].outdated == 1
    assert list(counted(tmp_path, [RATE])) == ["rate"]


def test_settings_with_one_recipe_are_one_run(tmp_path):
    """It is recorded under the name of one of them, which need not be the first."""
    study = Study(name="same", task=NoImages(), method=method, grid={"lr": (0.1, 0.3, 0.5)}, tuning_seeds=(0, 1))
    whole = StudySet(name="s", title="", studies=(study,))
    for seed in (0, 1):
        add(tmp_path, "same", "tuning", seed, {"lr": 0.1}, 0.6)
    (found,) = status_of(whole, (study,), tmp_path)
    assert (found.tuned, found.to_tune, found.outdated) == (2, 4, 0)
    for seed in (0, 1):
        add(tmp_path, "same", "tuning", seed, {"lr": 0.5}, 0.7)  # the method takes .3 at most
    (found,) = status_of(whole, (study,), tmp_path)
    assert (found.tuned, found.to_tune, found.outdated) == (4, 4, 0)
    chosen = RecordedSettings((study,), RecordBook(tmp_path / "s")).selected(study)
    assert chosen is not None
    assert chosen[0] == {"lr": 0.3}
