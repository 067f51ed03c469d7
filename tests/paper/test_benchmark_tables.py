"""The declared tables: D1 to D4 and the paper's figures; the page, from made-up records with known means."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from deepauc.paper import benchmark_page
from deepauc.paper.benchmark_tables import CELLS, Cell, cell_study, paper_tables
from deepauc.paper.recipes import LEARNING_RATES, MOMENTA, PAPER, RECIPES, auc_m, ce, network_of
from deepauc.paper.study_figures import _common_epochs, draw_curves, table_pictures
from deepauc.reporting.plots import CYCLE
from deepauc.studies.records import RecordBook
from deepauc.studies.sources import BenchmarkSource, Place
from deepauc.studies.study import Study

C10_R_1 = Cell(benchmark="C10", network="R", percent=1)

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
    cell = Cell(benchmark=benchmark, network=network, percent=int(percent))
    assert [cell.published(loss)[0] for loss in ("ce", "focal", "auc_s", "auc_m")] == [float(m) for m in means]
    assert all(0 < cell.published(loss)[1] <= 0.07 for loss in ("ce", "focal", "auc_s", "auc_m"))


def test_every_cell_recipe_and_loss_is_declared_once_and_resnet_comes_first():
    names = [study.name for study in paper_tables().studies]
    assert len(set(names)) == len(names) == 4 * 2 * 2 * 2 * 4
    assert names[0] == "C10-R-1-literal-ce"
    assert [c.network for c in CELLS] == ["R"] * 8 + ["D"] * 8


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
    assert cell_study(Cell(benchmark="C10", network="R", percent=10), "paper", "ce").tuning_seeds == (0,)
    assert all(study.seeds == (0, 1, 2, 3, 4) for study in paper_tables().studies)


def test_densenet_inherits_margin_and_gamma_and_tunes_its_own_rate():
    cell = Cell(benchmark="C100", network="D", percent=10)
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
    assert network_of("D", "small").small_stem
    assert not network_of("D").small_stem
    for wrong in (("X",), ("D", "big")):
        with pytest.raises(ValueError, match="must be"):
            network_of(*wrong)


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
    results, base, _ = made_up
    text = benchmark_page.page(results)
    (row,) = [row for row in table_rows(text) if row[:4] == ["C10-R-1", "paper", "CE", "0.690 ± 0.011"]]
    ours = f"{base.mean():.3f} ± {base.std(ddof=1):.3f}"
    # 9 x 9 pairs by hand: 1 of a positive in bin 2, 3 in bin 3, 5 in bin 4; those inside a bin count half
    train = (1 * (5 + 3 / 2) + 3 * (8 + 1 / 2) + 5 * 9) / 81
    assert row[4:9] == [ours, "yes", "5", f"{train:.2f}", "lr 0.03, momentum 0.9"]
    assert "m 0.5, gamma 1/300, lr 0.1" in text
    assert "25.0 %" in text
    assert "configs 6 of 12" in text
    assert "not run: images not available" in text
    assert "10 of them by another numerics version" in text


def test_paired_differences_have_the_t_interval(made_up):
    results, _, gain = made_up
    low, high = stats.t.interval(0.95, 4, gain.mean(), stats.sem(gain))
    found = benchmark_page.paired(RecordBook(results / "paper-tables"), C10_R_1, "paper", "auc_m", "ce")
    assert (found.interval.value, found.interval.low, found.interval.high) == pytest.approx((gain.mean(), low, high))
    assert found.verdict == "confirmed"
    turned = benchmark_page.paired(RecordBook(results / "paper-tables"), C10_R_1, "paper", "ce", "auc_m")
    assert turned.verdict == "refuted"
    assert f"{gain.mean():+.3f} [{low:+.3f}, {high:+.3f}]" in benchmark_page.page(results)


def test_settings_tried_are_shown_best_first(made_up):
    results, *_ = made_up
    study = cell_study(C10_R_1, "paper", "ce")
    book = RecordBook(results / "paper-tables")
    for seed, auc in enumerate((0.70, 0.60, 0.71)):
        book.add(record(study, seed, auc, phase="tuning", config={"lr": 0.3, "momentum": 0.0}))
    (row,) = [row for row in table_rows(benchmark_page.page(results)) if row[:3] == ["C10-R-1", "paper", "CE"]][1:]
    error = stats.sem([0.70, 0.60, 0.71])  # one tuning set has none
    assert row[3:] == ["3", f"0.670 ± {error:.3f} (lr 0.3, momentum 0); 0.660 (lr 0.03, momentum 0.9)"]


def test_what_is_not_run_is_estimated_from_measured_steps(made_up):
    results, *_ = made_up
    book = RecordBook(results / "paper-tables")
    assert benchmark_page.seconds_a_step(book, "R") == pytest.approx(19.7 / 19_700)
    assert benchmark_page.seconds_a_step(book, "D") is None
    # 12 x 3 tuning runs on 90 % of 25,253 images, 5 final runs on all of them, 100 epochs, batches of 128
    steps = 100 * (36 * int(0.9 * 25_253) + 5 * 25_253) // 128
    for loss in ("auc_s", "focal"):
        assert benchmark_page.steps_of(C10_R_1, "paper", loss) == steps
    rows = table_rows(benchmark_page.page(results))
    (row,) = [row for row in rows if row[:3] == ["C10-R-1", "paper", "Focal 5, AUC-S 5"]]
    assert row[3] == f"{2 * steps * 19.7 / 19_700 / 60:.0f}"


def test_a_page_without_records_says_so(tmp_path):
    assert "No final run is recorded yet" in benchmark_page.page(tmp_path)


def test_pictures_only_where_there_are_records_and_small(made_up, tmp_path_factory):
    results, *_ = made_up
    drawn = table_pictures(results)
    assert [path.name for path in drawn] == ["A7-R-paper.png", "A8.png"]
    assert all(path.stat().st_size < 60_000 for path in drawn)
    assert table_pictures(tmp_path_factory.mktemp("empty")) == []


def test_a_picture_of_six_cells_stays_small(tmp_path):
    generator = np.random.default_rng(0)
    curves = 0.6 + 0.02 * np.log1p(np.arange(100)) + 0.01 * generator.normal(size=(6, 4, 5, 100))
    panels = [
        (f"cell {i}", [(f"loss {j}", [{"test_curve": one.tolist()} for one in sets]) for j, sets in enumerate(losses)])
        for i, losses in enumerate(curves)
    ]
    path = draw_curves(tmp_path / "A7.png", panels)
    assert path.stat().st_size < 60_000
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in CYCLE[:4]:  # the lines are still told apart
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert np.abs(pixels - wanted).sum(1).min() <= 8


def test_curves_are_drawn_over_the_epochs_that_all_runs_have():
    every = {"test_curve": [0.5, 0.6, 0.7, 0.8, 0.9]}
    sparse = {"test_curve": [0.61, 0.81, 0.91], "test_curve_epochs": [2, 4, 5]}
    epochs, values = _common_epochs([every, sparse])
    assert epochs == [2, 4, 5]
    assert values.tolist() == [[0.6, 0.8, 0.9], [0.61, 0.81, 0.91]]


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
