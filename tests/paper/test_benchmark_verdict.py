"""The verdict: pooled intervals by hand and by simulation, sentences from made-up records, inherited settings."""

import numpy as np
import pytest
from deepauc.paper.benchmark_settings import inheritance
from deepauc.paper.benchmark_verdict import Difference, order_of, pooled
from scipy import stats

from deepauc.paper import benchmark_page
from deepauc.paper.benchmark_tables import Cell
from deepauc.studies.records import RecordBook

C10_R, C10_D = (Cell(benchmark="C10", network=network, percent=1) for network in "RD")
C2_R, C100_R = (Cell(benchmark=name, network="R", percent=1) for name in ("C2", "C100"))
LIBAUC_CELL = Cell(benchmark="C10", network="R", percent=10)
RULE = {"rule": {"type": "BestMeanValidation"}}


def difference(cell, values, first_seed=0):
    return Difference(cell, "auc_m", "ce", {first_seed + i: float(v) for i, v in enumerate(values)})


def test_one_cell_has_its_own_t_interval():
    values = [0.02, 0.03, 0.01, 0.025, 0.005]
    found = pooled([difference(C10_R, values)])
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))


def test_two_sets_of_images_make_welchs_interval():
    a, b = np.array([0.02, 0.03, 0.01, 0.025]), np.array([-0.1, 0.05, 0.0, 0.02, 0.01, -0.04])
    found = pooled([difference(C10_R, a), difference(C2_R, b)])
    # (mean a + mean b)/2 is half the difference of a and -b
    whole = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((whole.low / 2, whole.high / 2))


def test_both_networks_on_one_training_set_are_one_draw():
    a, b = np.array([0.02, 0.03, 0.01, 0.025, 0.0]), np.array([-0.1, -0.08, -0.11, -0.07, -0.12])
    found = pooled([difference(C10_R, a), difference(C10_D, b)])
    low, high = stats.t.interval(0.95, 4, np.mean((a + b) / 2), stats.sem((a + b) / 2))
    assert (found.low, found.high) == pytest.approx((low, high))
    alone = pooled([difference(C10_R, a), difference(C2_R, b)])
    assert found.high - found.low > alone.high - alone.low  # what they share does not cancel


def test_cells_with_constant_differences_have_no_width():
    found = pooled([difference(C10_R, [0.1, 0.1]), difference(C2_R, [0.3, 0.3])])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))


def test_the_interval_covers_as_often_as_it_says():
    """Three strata of five sets with different spreads, one of them with two networks that share their sets."""
    generator = np.random.default_rng(5)
    means = {"R": 0.01, "D": -0.1, "C2": 0.03, "C100": 0.0}
    truth, inside, trials = np.mean(list(means.values())), 0, 1500
    for _ in range(trials):
        shared = generator.normal(scale=0.02, size=5)
        found = pooled(
            [
                difference(C10_R, means["R"] + shared + generator.normal(scale=0.005, size=5)),
                difference(C10_D, means["D"] + shared + generator.normal(scale=0.01, size=5)),
                difference(C2_R, means["C2"] + generator.normal(scale=0.03, size=5)),
                difference(C100_R, means["C100"] + generator.normal(scale=0.005, size=5)),
            ]
        )
        inside += found.low <= truth <= found.high
    assert 0.93 <= inside / trials <= 0.97


def final(cell, loss, seed, auc, *, recipe="paper", config=None, selection=None, cut=None, train=None, zero=0.0):
    histogram = {"low": 0.0, "high": 1.0, "negative": [5, 3, 1, 0], "positive": [0, 1, 3, 5]}
    return {
        "study": cell.study_name(recipe, loss),
        "run": f"{cell.name}{recipe}{loss}{seed}",
        "phase": "final",
        "seed": seed,
        "config": config or {"lr": 0.1},
        "selection": {**RULE} if selection is None else selection,
        "cut": {} if cut is None else cut,
        "fixed": {"network": cell.network},
        "task": {"rows": {"train": 100}},
        "recipe": {"stages": [{"epochs": 100}]},
        "auc": {"test": [auc, auc - 0.01, auc + 0.01]},
        "alpha_zero_share": zero if loss == "auc_m" else None,
        "score_histogram": {"train": train or histogram, "test": histogram},
        "steps": 10,
        "seconds": 1.0,
        "hardware": "a card",
        "versions": {"torch": "2.15"},
        "code_version": "0",
    }


def add(book, cell, means, **more):
    """Five sets; AUC-M, AUC-S and CE differ by the same in each but for a thousandth, focal is behind."""
    noise = 0.001 * np.arange(-2, 3)
    for loss, mean in means.items():
        for seed in range(5):
            sign = {"auc_m": 1, "ce": -1}.get(loss, 0)
            book.add(final(cell, loss, seed, mean + sign * noise[seed], **more))


def lines_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ({"auc_m": 0.75, "auc_s": 0.73, "ce": 0.70}, "confirmed"),
        ({"auc_m": 0.75, "auc_s": 0.73, "ce": 0.74}, "refuted"),  # AUC-M is best, but AUC-S is below CE
        ({"auc_m": 0.7502, "auc_s": 0.75, "ce": 0.70}, "open"),
        ({"auc_m": 0.75, "ce": 0.70}, "open"),  # no AUC-S yet
    ],
)
def test_the_order_is_confirmed_refuted_or_open(tmp_path, means, verdict):
    book = RecordBook(tmp_path / "paper-tables")
    add(book, C10_R, means)
    assert order_of(book, [C10_R, C2_R], "paper").verdict == verdict
    text = benchmark_page.page(tmp_path)
    assert f"At 1 % the order AUC-M, AUC-S, CE is **{verdict}** with recipe `paper` (1 cell: C10-R-1)" in text
    assert "At 10 %" not in text


def test_cells_are_counted_by_name_and_the_best_loss_is_named(tmp_path):
    book = RecordBook(tmp_path / "paper-tables")
    add(book, C10_R, {"auc_m": 0.75, "auc_s": 0.73, "ce": 0.70, "focal": 0.60})
    add(book, C2_R, {"auc_m": 0.70, "auc_s": 0.73, "ce": 0.76, "focal": 0.60}, zero=0.2)
    add(book, LIBAUC_CELL, {"ce": 0.93, "auc_m": 0.915})
    text = benchmark_page.page(tmp_path)
    (row,) = [row for row in lines_of(text) if row[:2] == ["AUC-M - CE", "2 (all)"]]
    assert row[2:5] == ["1: C10-R-1", "1: C2-R-1", "0"]
    assert row[6:] == ["-0.060 to +0.050", "refuted"]
    assert row[5].startswith("-0.005 [")
    assert "At 1 % `paper` reaches the paper's AUC-M mean in 1 of 2 cells (C10-R-1)" in text
    assert "of the four losses the best is CE in 1, AUC-M in 1 of 2." in text
    assert "alpha was 0 at no step in 1 of 2 cells (C10-R-1)" in text
    (row,) = [row for row in lines_of(text) if row[:2] == ["C2-R-1 (other pixels)", "paper"] and len(row) == 7]
    assert row[2:6] == ["0.756", "0.700", "no", "CE 0.760"]
    assert row[6].startswith("AUC-S: +0.030 [")
    assert "CE 0.930 ± 0.002 (above both), AUC-M 0.915 ± 0.002 (above CE, then AUC-M)" in text
    assert "0.917 (compositional training, last epoch) and 0.912 (CE, then AUC-M)" in text


def row_of(text, cell, loss):
    (row,) = [row for row in lines_of(text) if row[:3] == [cell.name, "paper", loss] and len(row) == 13]
    return row


def test_inherited_settings_are_named_with_the_cut_they_were_chosen_under(tmp_path):
    book = RecordBook(tmp_path / "paper-tables")
    settings = {"margin": 1.0, "gamma": 1 / 500, "lr": 0.1}
    cut = {"configs": "6 of 12", "tune_epochs": 40}
    fitted = {"low": 0.0, "high": 1.0, "negative": [9, 0, 0, 0], "positive": [0, 0, 0, 9]}
    old = {"inherited from": C10_R.study_name("paper", "auc_m")}
    add(book, C10_R, {"auc_m": 0.70, "ce": 0.74}, config=settings, cut=cut)
    add(book, C10_D, {"auc_m": 0.61}, config=settings, selection=old, train=fitted)
    add(book, C10_D, {"ce": 0.75})
    text = benchmark_page.page(tmp_path)
    assert row_of(text, C10_D, "AUC-M")[7] == "1.00"
    assert row_of(text, C10_D, "AUC-M")[11:] == [
        "m, gamma, lr inherited from C10-R-1",
        "in C10-R-1: configs 6 of 12, tune_epochs 40",
    ]
    assert row_of(text, C10_R, "AUC-M")[12] == "configs 6 of 12, tune_epochs 40"
    assert "inherited whole, learning rates and all, though they were tuned for another network: C10-D-1" in text
    assert "Without C10-D-1, where the learning rate was tuned for another network" in text
    (row,) = [row for row in lines_of(text) if row[:2] == ["AUC-M - CE", "1 (without C10-D-1)"]]
    assert row[3] == "1: C10-R-1"
    assert "C10-D-1 AUC-M (`paper`), training AUC 1.00 and test AUC 0.610, against 0.95 and 0.700 in C10-R-1" in text
    (left,) = [row for row in lines_of(text.split("## Not run")[1]) if row[:2] == ["C10-D-1", "paper"]]
    assert left[2] == "Focal 5, AUC-S 5, AUC-M 5"  # a learning rate of its own is still to come
    tuning = {**final(C10_D, "auc_m", 0, 0.7, config=settings), "phase": "tuning", "auc": {"validation": [0.6]}}
    book.add(tuning)
    tuned = row_of(benchmark_page.page(tmp_path), C10_D, "AUC-M")[11]
    assert tuned == "1 runs, 1 s, not used by these final runs; m, gamma, lr inherited from C10-R-1"


def test_no_overfitting_is_told_where_the_training_auc_is_not_higher(tmp_path):
    book = RecordBook(tmp_path / "paper-tables")
    old = {"inherited from": C10_R.study_name("paper", "auc_m")}
    add(book, C10_R, {"auc_m": 0.70, "ce": 0.74})
    add(book, C10_D, {"auc_m": 0.61}, selection=old)
    assert "Overfitted" not in benchmark_page.page(tmp_path)


def test_a_loss_that_falls_after_the_length_it_was_tuned_at_is_told(tmp_path):
    book = RecordBook(tmp_path / "paper-tables")
    chosen = {"validation_auc": [0.74, 0.76]}
    add(book, C10_R, {"auc_s": 0.60, "ce": 0.66}, cut={"tune_epochs": 20}, selection=chosen)
    add(book, C2_R, {"auc_s": 0.60}, selection=chosen)  # tuned at full length
    text = benchmark_page.page(tmp_path)
    assert "validation AUC there): C10-R-1 AUC-S (`paper`), 0.750 after 20 epochs and 0.600 after 100." in text


def test_a_learning_rate_of_its_own_is_told_from_what_is_inherited(tmp_path):
    """margin and gamma from ResNet20, lr tuned, as declared; so too where one learning rate alone was tried."""
    book = RecordBook(tmp_path / "paper-tables")
    settings = {"margin": 1.0, "gamma": 1 / 500, "lr": 0.03}
    source = {"inherited from": C10_R.study_name("paper", "auc_m")}
    own = {**RULE, **source}
    single = final(C10_D, "auc_m", 0, 0.7, config=settings, selection=source, cut={"configs": "1 of 4"})
    assert inheritance(C10_D, "paper", "auc_m", single).axes == ("margin", "gamma")
    assert inheritance(C10_D, "paper", "ce", final(C10_D, "ce", 0, 0.7)) is None
    add(book, C10_R, {"auc_m": 0.70, "ce": 0.74}, cut={"configs": "6 of 12"})
    add(book, C10_D, {"auc_m": 0.71}, config=settings, selection=own, cut={"tune_sets": "1 of 3"})
    add(book, C10_D, {"ce": 0.75})
    tuning = {**final(C10_D, "auc_m", 0, 0.7, config=settings), "phase": "tuning", "auc": {"validation": [0.6]}}
    book.add(tuning)
    text = benchmark_page.page(tmp_path)
    assert row_of(text, C10_D, "AUC-M")[11:] == [
        "1 runs, 1 s; m, gamma inherited from C10-R-1",
        "tune_sets 1 of 3; in C10-R-1: configs 6 of 12",
    ]
    assert "Inherited in part, the rest tuned in the cell itself: C10-D-1 (`paper`) from C10-R-1" in text
    assert "Without C10-D-1" not in text


def test_a7_lists_what_has_no_curve(tmp_path):
    book = RecordBook(tmp_path / "paper-tables")
    add(book, C10_R, {"auc_m": 0.70, "ce": 0.74})
    for seed in range(5):
        book.add({**final(C2_R, "ce", seed, 0.7), "test_curve": [0.6, 0.7]})
        book.add(final(C2_R, "auc_m", seed, 0.7))
    text = benchmark_page.page(tmp_path)
    assert "Not recorded by the final runs of `paper`: C10-R-1, C2-R-1 (AUC-M)" in text
