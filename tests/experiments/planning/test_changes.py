from dataclasses import replace

import numpy as np
import pytest

from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.tables import Books
from deepauc.studies.sources import FoldSource, Place
from deepauc.training.plan.inputs import Fingerprint
from experiments.planning.changes import (
    AFTER_CE,
    ALONE,
    BASE,
    CHANGES,
    FIRST_ROUND,
    FOLDS,
    NOW,
    ON_SMALL,
    PLANNED,
    SECOND_ROUND,
    SETS,
    SMALL,
    THIRD_ROUND,
    cost_of,
    plan_set,
    planned,
)
from experiments.planning.page import CE_ALONE, PAGE, differences, recorded


@pytest.mark.parametrize("on", SETS)
def test_now_differs_from_the_base_where_positives_are_few_and_costs_no_more(on):
    base, now = planned(on=on), planned(on=on, change=NOW)
    assert (base == now) == (on in ("breast", "pneumonia"))
    if base != now:
        assert [stage.positives_per_batch for stage in base.stages] == [None, 8]
        assert [stage.positives_per_batch for stage in now.stages] == [16, 16]
        assert 0.85 < cost_of(on, NOW) <= 1.03
        assert cost_of(on, NOW, NOW) == 1


def test_a_change_changes_what_it_names():
    base, averaged = planned(on="path"), planned(on="path", change="EMA .99")
    assert averaged == replace(base, stages=tuple(replace(stage, ema=0.99) for stage in base.stages))
    mixed = planned(on="path", change="mixup 1").stages
    assert [stage.augment.mixup for stage in mixed] == [1.0, 1.0]
    assert all(stage.objective.soft_labels for stage in mixed)
    quarter = planned(on="path", change="a quarter positives").stages
    assert [stage.positives_per_batch for stage in quarter] == [None, 16]
    quarter = planned(on="path", change="a quarter positives in CE").stages
    assert [stage.positives_per_batch for stage in quarter] == [16, 8]
    assert replace(quarter[0], positives_per_batch=None) == base.stages[0]
    learned = list(FIRST_ROUND)[-1]
    views, *rest = planned(on="path", change=learned).stages
    assert views == planned(on="path", change="contrastive first, 50 epochs").stages[0]
    assert [stage.positives_per_batch for stage in rest] == [16, 16]
    assert planned(on="path", change=learned).tta == 8
    for on, hue in (("path", 0.1), ("breast", 0.0)):  # in colour, and grey
        both = planned(on=on, change="colour and cutout").stages
        assert [(s.augment.brightness, s.augment.hue, s.augment.coarse_dropout) for s in both] == [(0.4, hue, 1)] * 2
        assert all(s.augment.rotation == 0 for s in both)
        assert [
            replace(stage, augment=one.augment) for stage, one in zip(both, planned(on=on).stages, strict=True)
        ] == [*planned(on=on).stages]
    (alone,) = planned(on="path", change="CE alone, as long").stages
    assert isinstance(alone.objective, CrossEntropy)
    assert alone.epochs == sum(stage.epochs for stage in base.stages)
    (alone,) = planned(on="path", change="AUC-M alone, as long").stages
    assert isinstance(alone.objective, AUCMargin)
    assert not alone.reset_classifier
    longer = planned(on="path", change="twice as long").stages
    assert [stage.epochs for stage in longer] == [2 * stage.epochs for stage in base.stages]
    assert planned(on="path", change="8 copies") == replace(base, tta=8)
    views, *rest = planned(on="breast", change="contrastive first, 50 epochs").stages
    assert views.views == 2
    assert views.augment.saturation == 0  # the pictures are grey
    assert tuple(rest) == planned(on="breast").stages


def test_the_second_round_changes_what_is_planned_now():
    now = planned(on="path", change=NOW)
    ce, auc = (stage.epochs for stage in now.stages)
    assert [stage.positives_per_batch for stage in planned(on="path", change="now, half positives").stages] == [32, 32]
    assert [stage.positives_per_batch for stage in planned(on="path", change="now, an eighth positives").stages] == [
        8,
        8,
    ]
    (alone,) = planned(on="path", change="now, CE alone, as long").stages
    assert (alone.epochs, alone.positives_per_batch) == (ce + auc, 16)
    sixth, half = (planned(on="path", change=f"now, AUC-M for {part} of it").stages for part in ("a sixth", "half"))
    assert [stage.epochs for stage in sixth] == [18, 4]
    assert [stage.epochs for stage in half] == [11, 11]
    left = {on: [s.epochs for s in planned(on=on, change=PLANNED).stages] for on in SETS}
    assert left == {"breast": [50, 25], "pneumonia": [31, 11], "path": [18, 5], "ham": [21], "C2": [12]}
    assert all(0.95 < cost_of(on, PLANNED, NOW) < 1.1 for on in SETS)
    assert not planned(on="path", change="now, classifier kept").stages[1].reset_classifier
    (longer,) = planned(on="path", change="now, CE alone, twice as long").stages
    assert longer.epochs == 2 * alone.epochs
    for change in ("now, half positives", "now, an eighth positives"):  # for sets with few positives alone
        assert planned(on="breast", change=change) == planned(on="breast")


def test_changes_are_all_different():
    for on in SETS:
        for changes in (FIRST_ROUND, SECOND_ROUND):
            recipes = [planned(on=on, change=change) for change in changes]
            same = [list(changes)[a] for a in range(len(recipes)) if recipes[a] in recipes[:a]]
            # breast and pneumonia have more than a quarter of positives as they are
            twice = ["a quarter positives", "a quarter positives in both"] if changes is FIRST_ROUND else []
            twice = twice or ["now, an eighth positives", "now, half positives"]
            expected = list(twice) if on in ("breast", "pneumonia") else []
            if changes is SECOND_ROUND and on in ("breast", "ham"):  # CE leaves all the time for AUC-M, or none of it
                expected += [PLANNED, f"{PLANNED}, 8 copies"]
            assert same == expected


def test_cost_counts_passes_over_images():
    assert cost_of("ham", BASE) == 1
    assert cost_of("ham", "EMA .99") == 1
    assert cost_of("ham", "twice as long") == pytest.approx(2)
    assert cost_of("breast", "contrastive first, 50 epochs") > 2  # two views of everything


@pytest.mark.data
@pytest.mark.parametrize("on", ["breast", "pneumonia", "path", "ham"])
def test_the_counts_are_those_of_the_folds(on, data_root):
    data = SETS[on]
    folds = FoldSource(source=data.source, folds=FOLDS)
    task = folds.load(folds.seeds((data.number,))[0], tuning=True, place=Place(data=data_root))
    found = Fingerprint.of(task)
    assert (found.positives["train"], found.negatives["train"]) == ((data.positives,), (data.negatives,))
    assert found.shape == data.shape


def note(results, study, lines):
    book = RecordBook(results / "plan")
    for line in lines:
        book.add({"study": study, "phase": "tuning", **line})


def test_page(tmp_path):
    assert "No run is recorded yet." in PAGE.markdown(tmp_path)
    aucs = {BASE: [0.8, 0.82, 0.84, 0.86, 0.88], "EMA .99": [0.81, 0.82, 0.86, 0.86, 0.9]}
    lines = [
        {"run": f"{change}{seed}", "config": {"change": change}, "seed": seed, "auc": {"validation": [value, 0, 1]}}
        for change, values in aucs.items()
        for seed, value in enumerate(values)
    ]
    lines.append({"run": "m", "config": {"change": "mixup 1"}, "seed": 0, "failed": "the loss is NaN"})
    note(tmp_path, "plan-breast", lines)
    text = PAGE.markdown(tmp_path)
    (row,) = (line for line in text.splitlines() if line.startswith("| EMA .99"))
    differences = np.array([0.01, 0.0, 0.02, 0.0, 0.02])
    half = 2.7764451 * differences.std(ddof=1) / np.sqrt(5)  # t with 4 degrees of freedom
    assert "0.850" in row
    assert f"+0.010 [{0.01 - half:+.3f}, {0.01 + half:+.3f}]" in row
    assert "mixup 1" not in text  # it has diverged on the one fold there is


def test_a_base_that_is_recorded_under_another_name_is_found(tmp_path):
    """On breast a quarter of the rows are positives, so that a quota of a quarter is the base: one run."""
    lines = [
        {"run": f"{change}{seed}", "config": {"change": change}, "seed": seed, "auc": {"validation": [auc, 0, 1]}}
        for change, auc in (("a quarter positives", 0.8), ("8 copies", 0.81), ("margin 1", 0.9))
        for seed in range(FOLDS)
        if change != "margin 1" or seed < 3  # three folds of it: not complete
    ]
    note(tmp_path, "plan-breast", lines)
    lines = [line.split("|") for line in PAGE.markdown(tmp_path).splitlines() if "|" in line]
    rows = {line[1].strip(): (line[2], line[7]) for line in lines if len(line) > 7}
    cells = {change: [cell.strip() for cell in row] for change, row in rows.items()}
    assert cells[BASE] == ["0.800", "-"]
    assert cells["a quarter positives"] == ["=", "-"]
    assert cells["8 copies"] == ["0.810", "+0.010 [+0.010, +0.010]"]
    assert cells["margin 1"] == ["-", "-"]


def test_the_set_is_declared():
    studies = plan_set().studies
    assert [study.name for study in studies] == [f"plan-{name}" for name in (*SETS, *SMALL)]
    assert all(len(study.tuning_seeds) == FOLDS for study in studies)
    sizes = {study.name: len(study.configs) for study in studies}
    whole = len(CHANGES) - len(AFTER_CE)
    assert sizes == {**{f"plan-{name}": whole for name in SETS}, **{f"plan-{name}": len(ON_SMALL) for name in SMALL}}
    assert studies[0].cut_to(configs=2).configs == ({"change": BASE}, {"change": "CE alone, as long"})


def test_the_second_round_has_a_table_once_it_has_begun(tmp_path):

    def record(on, aucs):
        lines = [
            {"run": f"{change}{seed}", "config": {"change": change}, "seed": seed, "auc": {"validation": [auc, 0, 1]}}
            for change, auc in aucs.items()
            for seed in range(FOLDS)
        ]
        note(tmp_path, f"plan-{on}", lines)

    record("breast", {BASE: 0.8, "CE alone, as long": 0.81, "classifier kept": 0.8})
    assert "Second round" not in PAGE.markdown(tmp_path)
    record("path", {BASE: 0.7, NOW: 0.75, "now, 8 copies": 0.76, "now, CE alone, as long": 0.77})
    page = PAGE.markdown(tmp_path)
    assert "Third round" not in page
    first, second = page.split("## Second round")
    assert "| now" not in first
    rows = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:]]
        for line in second.splitlines()
        if "|" in line
    }
    assert rows["change"][5] == "minus now [95 %]"
    assert [rows[NOW][at] for at in (0, 2, 5)] == ["0.800", "0.750", "-"]
    assert [rows[BASE][at] for at in (0, 2, 5)] == ["=", "0.700", "-0.050 [-0.050, -0.050]"]
    assert [rows["now, 8 copies"][at] for at in (0, 2, 5)] == ["-", "0.760", "+0.010 [+0.010, +0.010]"]
    # recorded in the first round: one recipe, one run
    assert [rows["now, CE alone, as long"][at] for at in (0, 2, 5)] == ["0.810", "0.770", "+0.015 [+0.011, +0.019]"]
    assert "now, classifier kept" not in rows  # on no set with few positives
    assert differences(recorded(Books(tmp_path)), NOW, BASE, ["breast", "path"]) == pytest.approx([0.05] * FOLDS)


def test_the_third_round_changes_one_thing_of_auc_m_alone_or_of_ce_alone():
    for name, change in THIRD_ROUND.items():
        for on, data in SETS.items():
            (stage,) = planned(on=on, change=name).stages
            alone = CE_ALONE if change.stages == "ce" else ALONE
            (other,) = planned(on=on, change=alone).stages
            assert (stage.epochs, stage.batch_size, stage.augment) == (other.epochs, other.batch_size, other.augment)
            assert planned(on=on, change=name).model == replace(data.model, drop_rate=change.dropout)
            assert planned(on=on, change=name) != planned(on=on, change=alone)
    (stage,) = planned(on="path", change="AUC-M, Theorem 1, reference 0").stages
    assert (stage.objective.normalise, stage.optimizer.reference, stage.resolved_bound) == (False, "zero", "sigmoid")


def test_copies_are_held_against_the_same_network_without(tmp_path):
    change = f"{PLANNED}, 8 copies"

    def record(on, gain):
        lines = [
            {
                "run": f"{seed}",
                "config": {"change": change},
                "seed": seed,
                "auc": {"validation": [0.8 + gain + 0.01 * seed, 0, 1]},
                "history": {"validation_auc": [None, 0.5, 0.8]},
            }
            for seed in range(FOLDS)
        ]
        note(tmp_path, f"plan-{on}", lines)

    *most, last = SETS
    for on in most:
        record(on, 0.02)
    assert "by the same network" not in PAGE.markdown(tmp_path)  # a set is missing
    record(last, 0.03)
    (row,) = [
        line for line in PAGE.markdown(tmp_path).splitlines() if line.startswith(f"| {change} |") and "+0.05" in line
    ]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    gains = np.array([(0.03 if on == last else 0.02) + 0.01 * seed for on in SETS for seed in range(FOLDS)])
    half = 2.0638986 * gains.std(ddof=1) / np.sqrt(25)  # t with 24 degrees of freedom
    middle = gains.mean()
    assert cells == [*["+0.040"] * 4, "+0.050", f"{middle:+.3f} [{middle - half:+.3f}, {middle + half:+.3f}]"]
