"""The declared tables: D1 to D4 and the paper's figures; the page, from made-up records with known means."""

import inspect
import itertools
import json
import pickle

import numpy as np
import pytest
from scipy import stats

from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import BenchmarkSource, Place
from deepauc.studies.study import Study
from experiments.benchmarks import page as benchmark_page
from experiments.benchmarks.recipes import LEARNING_RATES, METHODS, MOMENTA, PAPER, RECIPES, network_of
from experiments.benchmarks.tables import PAPER_CELLS, BenchmarkCell, cell_study, paper_tables

auc_m, ce = METHODS["auc_m"], METHODS["ce"]

C10_R_1 = BenchmarkCell(benchmark="C10", network="R", percent=1)

SPEC = """1 D C2 .718 .713 .803 .809
1 D C10 .698 .700 .745 .760
1 D S10 .641 .660 .669 .703
1 D C100 .588 .591 .607 .614
1 R C2 .730 .724 .748 .756
1 R C10 .690 .681 .702 .715
1 R S10 .641 .634 .645 .659
1 R C100 .563 .565 .587 .596
10 D C2 .893 .879 .901 .902
10 D C10 .898 .879 .889 .887
10 D S10 .820 .819 .825 .846
10 D C100 .710 .705 .720 .723
10 R C2 .920 .881 .897 .920
10 R C10 .898 .851 .872 .898
10 R S10 .825 .813 .819 .821
10 R C100 .669 .666 .686 .695"""


@pytest.mark.parametrize("line", SPEC.splitlines())
def test_the_papers_means(line):
    percent, network, benchmark, *means = line.split()
    cell = BenchmarkCell(benchmark=benchmark, network=network, percent=int(percent))
    assert [cell.published(loss)[0] for loss in ("ce", "focal", "auc_s", "auc_m")] == [float(m) for m in means]
    assert all(0 < cell.published(loss)[1] <= 0.07 for loss in ("ce", "focal", "auc_s", "auc_m"))


def test_every_cell_recipe_and_loss_is_declared_once_and_resnet_comes_first():
    names = [study.name for study in paper_tables().studies]
    assert len(set(names)) == len(names) == 4 * 2 * 2 * 2 * 4
    assert names[0] == "C10-R-1-literal-ce"
    assert [c.network for c in PAPER_CELLS] == ["R"] * 8 + ["D"] * 8


def test_literal_is_what_is_printed():
    study = cell_study(C10_R_1, "literal", "auc_m")
    assert len(study.configs) == 25
    assert {axis: len(values) for axis, values in study.grid.axes.items()} == {"margin": 5, "gamma": 5}
    (stage,) = study.recipe({"margin": 0.5, "gamma": 1 / 300}, "final").stages
    assert (stage.epochs, stage.batch_size, stage.schedule.milestones, stage.bound) == (100, 128, (50, 75), "l2")
    assert (stage.objective.margin, stage.objective.normalise) == (0.5, False)
    optimizer = stage.optimizer
    assert (optimizer.lr, optimizer.gamma, optimizer.weight_decay, optimizer.momentum) == (0.1, 1 / 300, 1e-4, 0.0)
    assert (stage.augment.flip, stage.augment.crop_padding, stage.precision) == (True, 4, "bfloat16")
    assert stage.positives_per_batch is None
    assert not cell_study(C10_R_1, "literal", "ce").tuned
    assert cell_study(C10_R_1, "literal", "ce").recipe({}, "final").stages[0].optimizer.momentum == 0
    assert len(cell_study(C10_R_1, "literal", "focal").configs) == 9


def test_paper_has_twelve_configurations_a_loss_with_learning_rates_of_its_own():
    assert {loss: len(grid) for loss, grid in PAPER.grids.items()} == {"ce": 8, "focal": 12, "auc_s": 12, "auc_m": 12}
    for loss, grid in PAPER.grids.items():
        assert grid.axes["lr"] == LEARNING_RATES
        assert ("momentum" in grid.axes) == (loss in ("ce", "focal"))
        assert grid.seed == 14
    assert cell_study(C10_R_1, "paper", "auc_m").recipe({}, "final").stages[0].objective.normalise


def test_tuned_on_three_sets_at_1_percent_and_one_at_10():
    assert cell_study(C10_R_1, "paper", "ce").tuning_seeds == (0, 1, 2)
    assert cell_study(BenchmarkCell(benchmark="C10", network="R", percent=10), "paper", "ce").tuning_seeds == (0,)
    assert all(study.seeds == (0, 1, 2, 3, 4) for study in paper_tables().studies)


def test_densenet_inherits_margin_and_gamma_and_tunes_its_own_rate():
    cell = BenchmarkCell(benchmark="C100", network="D", percent=10)
    study = cell_study(cell, "paper", "auc_m")
    assert study.inherits.study == "C100-R-10-paper-auc_m"
    assert study.inherits.axes == ("margin", "gamma")
    assert sorted(config["lr"] for config in study.configs) == list(LEARNING_RATES)
    focal, ce = cell_study(cell, "paper", "focal"), cell_study(cell, "paper", "ce")
    assert focal.inherits.axes == ("focal_alpha", "focal_gamma")
    assert ce.inherits is None
    for study_of in (focal, ce):
        assert {(c["lr"], c["momentum"]) for c in study_of.configs} == set(itertools.product(LEARNING_RATES, MOMENTA))
    literal = cell_study(cell, "literal", "auc_m")
    assert not literal.tuned
    assert literal.inherits.axes == ("margin", "gamma")
    assert study.recipe({}, "final").model.name == "densenet121"
    assert study.recipe({}, "final").model.activation == "elu"


def test_networks():
    with pytest.raises(ValueError, match="must be"):
        network_of("X")


def test_a_loss_takes_only_the_arguments_it_has_a_use_for():
    arguments = {loss: set(inspect.signature(method).parameters) for loss, method in METHODS.items()}
    assert "momentum" not in arguments["auc_m"] | arguments["auc_s"]
    assert {"margin", "constrain_alpha"} == arguments["auc_m"] - arguments["auc_s"]
    assert {"focal_alpha", "focal_gamma"} == arguments["focal"] - arguments["ce"]
    assert not {"loss", "gamma", "bound"} & arguments["ce"]
    assert [pickle.loads(pickle.dumps(method)).__name__ for method in METHODS.values()] == list(METHODS)


def test_short_trainings_keep_their_milestones_valid():
    assert [auc_m(epochs=n).stages[0].schedule.milestones for n in (1, 2, 3, 40)] == [(), (1,), (1, 2), (20, 30)]


def record(study: Study, seed, auc, *, phase="final", zero=None, config=None, **more):
    part = "test" if phase == "final" else "validation"
    return {
        "set": "paper-tables",
        "study": study.name,
        "run": f"{study.name}{phase}{seed}{config}",
        "phase": phase,
        "config": config or {},
        "seed": seed,
        "cut": {"configs": "6 of 12"},
        "fixed": dict(study.fixed),
        "task": {"name": "C10", "rows": {"train": 25_253}},
        "auc": {part: [auc, auc - 0.01, auc + 0.01]},
        "history": {"loss": [1.0]},
        "alpha_zero_share": zero,
        "steps": 19_700,
        "seconds": 19.7,
        "hardware": "H200",
        "versions": {"torch": "2.15"},
        "numerics": 0,
        **more,
    }


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.fixture
def made_up(tmp_path):
    """Records of two losses in one cell; AUC-M is above CE by .02 with a spread."""
    book = RecordBook(tmp_path / "paper-tables")
    base = np.array([0.70, 0.72, 0.69, 0.71, 0.73])
    gain = np.array([0.02, 0.03, 0.01, 0.02, 0.02])
    histogram = {"low": -1.0, "high": 1.0, "negative": [5, 3, 1, 0], "positive": [0, 1, 3, 5]}
    extra = {"score_histogram": {"train": histogram, "test": histogram}, "test_curve": [0.6, 0.7]}
    for loss, values, config in (
        ("ce", base, {"lr": 0.03, "momentum": 0.9}),
        ("auc_m", base + gain, {"margin": 0.5, "gamma": 1 / 300, "lr": 0.1}),
    ):
        study = cell_study(C10_R_1, "paper", loss)
        for seed, value in enumerate(values):
            zero = 0.25 if loss == "auc_m" else None
            book.add(record(study, seed, float(value), config=config, zero=zero, **extra))
        book.add(record(study, 0, 0.66, phase="tuning", config=config))
    return tmp_path, base, gain


def test_the_page_shows_paper_and_ours_side_by_side(made_up):
    results, base, gain = made_up
    rows = table_rows(benchmark_page.PAGE.markdown(results))
    (row,) = [row for row in rows if row[:4] == ["C10-R-1", "paper", "CE", "0.690 ± 0.011"]]
    ours = f"{base.mean():.3f} ± {base.std(ddof=1):.3f}"
    # 9 x 9 pairs by hand: 1 of a positive in bin 2, 3 in bin 3, 5 in bin 4; those inside a bin count half
    train = (1 * (5 + 3 / 2) + 3 * (8 + 1 / 2) + 5 * 9) / 81
    assert row[4:8] == [ours, "5", f"{train:.2f}", "0.700"]
    assert row[8:] == ["lr 0.03, momentum 0.9", "-", "20", "1", "configs 6 of 12"]
    low, high = stats.t.interval(0.95, 4, gain.mean(), stats.sem(gain))
    shown = f"{gain.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    (row,) = [row for row in rows if row[:3] == ["C10-R-1", "paper", "AUC-M - CE"]]
    assert row[3:] == ["5", shown, "confirmed"]
    (row,) = [row for row in rows if row[:2] == ["1 %", "paper"]]
    assert row[2:] == ["AUC-M - CE", "1", "C10-R-1", "-", "-", shown, "+0.020 to +0.020", "confirmed"]


def test_the_summary_holds_what_the_page_shows(made_up):
    results, base, gain = made_up
    found = benchmark_page.PAGE.summary(results)
    cell = found["cells"]["C10-R-1"]["paper"]
    assert cell["ce"]["sets"] == pytest.approx(base.tolist())
    assert (cell["ce"]["mean"], cell["ce"]["sd"]) == pytest.approx((base.mean(), base.std(ddof=1)), abs=1e-6)
    assert cell["auc_m"]["settings"] == {"margin": 0.5, "gamma": pytest.approx(1 / 300, abs=1e-6), "lr": 0.1}
    assert cell["auc_m"]["alpha_zero"] == 0.25
    low, high = stats.t.interval(0.95, 4, gain.mean(), stats.sem(gain))
    for one in (cell["auc_m-ce"], found["contrasts"]["paper"]["all"]["auc_m-ce"]):
        assert (one["mean"], one["low"], one["high"]) == pytest.approx((gain.mean(), low, high), abs=1e-6)
    assert found["contrasts"]["paper"]["1"]["auc_m-ce"]["cells"] == {"all": 1, "above": 1, "level": 0, "below": 0}
    assert "10" not in found["contrasts"]["paper"]


def test_pooled_cells_are_strata_by_their_images(tmp_path):
    """Both networks on C10 share their training sets, which count once; C2 is a stratum of its own."""
    book, values = RecordBook(tmp_path / "paper-tables"), {}
    for cell, gains in (("C10-R-1", (0.02, 0.03, 0.01)), ("C10-D-1", (0.0, 0.02, -0.01)), ("C2-R-1", (0.1, 0.2, 0.1))):
        (declared,) = [one for one in PAPER_CELLS if one.name == cell]
        values[cell] = gains
        for seed, gain in enumerate(gains):
            for loss, auc in (("ce", 0.7), ("auc_m", 0.7 + gain)):
                book.add(record(cell_study(declared, "paper", loss), seed, auc))
    found = benchmark_page.pooled(book, PAPER_CELLS, lambda cell, loss: cell.study_name("paper", loss), ("auc_m", "ce"))
    c10, c2 = (np.array(values["C10-R-1"]) + values["C10-D-1"]) / 3, np.array(values["C2-R-1"]) / 3
    whole = stats.ttest_ind(c10, -c2, equal_var=False).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((c10.mean() + c2.mean(), whole.low, whole.high))


def test_settings_tried_are_shown_best_first(made_up):
    results, *_ = made_up
    study = cell_study(C10_R_1, "paper", "ce")
    book = RecordBook(results / "paper-tables")
    for seed, auc in enumerate((0.70, 0.60, 0.71)):
        book.add(record(study, seed, auc, phase="tuning", config={"lr": 0.3, "momentum": 0.0}))
    rows = table_rows(benchmark_page.PAGE.markdown(results))
    first, second = [row for row in rows if row[:3] == ["C10-R-1", "paper", "CE"]][1:]
    error = stats.sem([0.70, 0.60, 0.71])  # one tuning set has none
    assert first[3:] == ["lr 0.3, momentum 0", "3", f"0.670 ± {error:.3f}"]
    assert second[3:] == ["lr 0.03, momentum 0.9", "1", "0.660"]


@pytest.mark.data
def test_a_cell_loads_as_d1_says(data_root):
    source, place = BenchmarkSource(benchmark="C2", imratio=0.01), Place(data=data_root)
    whole = source.load(3, tuning=False, place=place)
    tuning = source.load(3, tuning=True, place=place)
    assert len(whole.part("train")) == 10_101
    assert set(whole.parts) == {"train", "test"}
    assert len(tuning.part("validation")) == 1_010
    assert set(tuning.part("train")) | set(tuning.part("validation")) == set(whole.part("train"))
    assert whole.source is source.load(4, tuning=True, place=place).source


def test_records_are_plain_json_and_small(made_up):
    results, *_ = made_up
    for path in (results / "paper-tables").glob("*.json"):
        assert json.loads(path.read_text())["phase"] == "final"
        assert path.stat().st_size < 20_000
    assert set(RECIPES) == {"literal", "paper"}
    assert ce().stages[0].resolved_bound == "none"
