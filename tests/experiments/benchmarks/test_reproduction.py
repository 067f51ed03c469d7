"""The studies with the releases' settings: what a recipe holds, that its name is stable, that both networks train."""

import math
from dataclasses import replace

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import BenchmarkSource
from deepauc.training.engine.loop import train
from deepauc.training.plain import recipe_hash
from experiments.benchmarks.released_recipes import LOSSES, fair, released
from experiments.benchmarks.reproduction import (
    BEST,
    DRAWN,
    FOLDS,
    PRIMARY,
    causes,
    fair_set,
    menu,
    notebook,
    released_ablations,
    released_set,
    settled,
)
from experiments.benchmarks.reproduction_page import PAGES


def by_name(studies):
    return {study.name: study for study in studies.studies}


def first_recipe(study, phase="final"):
    return study.recipe(study.configs[0], phase)


def test_the_names_of_runs_never_change():
    """Records carry these hashes."""
    found = {
        "notebook": recipe_hash(first_recipe(notebook().studies[0])),
        **{
            name: recipe_hash(first_recipe(by_name(studies)[name]))
            for studies, name in (
                (released_set(), "C2-D-1-untuned-auc_m"),
                (released_set(), "C2-R-1-untuned-ce"),
                (causes(), "C2-D-1-causes-ce-third"),
                (released_ablations(), "A5-free"),
            )
        },
        "fair": recipe_hash(first_recipe(by_name(fair_set())["D-fair-auc_m-first"], "tuning")),
    }
    assert {name: value[:12] for name, value in found.items()} == HASHES


HASHES = {
    "notebook": "42fce667ad93",
    "C2-D-1-untuned-auc_m": "0a499eeabcba",
    "C2-R-1-untuned-ce": "a0ddd0c34948",
    "C2-D-1-causes-ce-third": "d2175c60f0da",
    "A5-free": "bcabb460a000",
    "fair": "e7397ceb9b16",
}


def test_the_releases_column():
    """DenseNet121 and AUC-M, entry by entry of what the releases contain."""
    recipe = released(loss="auc_m")
    (stage,) = recipe.stages
    assert (recipe.standardise, stage.augment.enlarged_crop, stage.augment.crop_padding) == (False, 30 / 32, 0)
    network = recipe.model
    assert (network.activation, network.proj_drop_rate, network.norm_momentum) == ("elu", 0.3, 0.01)
    assert (network.start, network.small_stem) == ("xavier", False)
    optimizer = stage.optimizer
    assert (optimizer.reference, optimizer.alpha_step, optimizer.clip_value) == ("zero", "closed", 1.0)
    assert (optimizer.lr, optimizer.gamma, optimizer.weight_decay, optimizer.momentum) == (0.1, 1 / 500, 1e-4, 0.0)
    assert not stage.objective.normalise
    assert (stage.bound, stage.batch_size, stage.epochs, stage.schedule.milestones) == ("l2", 128, 100, (50, 75))
    ce = released(loss="ce", network="R").stages[0]
    assert (ce.optimizer.clip_value, ce.optimizer.weight_decay, ce.optimizer.momentum) == (1.0, 1e-4, 0.0)
    assert ce.resolved_bound == "none"
    assert released(loss="focal", network="R").model.start == "xavier"
    with pytest.raises(ValueError, match="loss must be one of ce, focal, auc_s, auc_m"):
        released(loss="auc")


def test_the_notebook():
    recipe = first_recipe(notebook().studies[0])
    assert recipe.model.activation == "relu"
    assert recipe.stages[0].bound == "sigmoid"
    assert recipe.watch
    assert recipe.test_curve


def test_released_has_every_cell_and_one_choice_for_a_network():
    studies = by_name(released_set())
    cells = [f"{b}-{n}-{p}" for b in ("C2", "C10", "C100", "S10") for n in "DR" for p in (1, 10)]
    untuned = {name: study for name, study in studies.items() if "-untuned-" in name}
    assert untuned.keys() == {f"{c}-untuned-{loss}" for c in cells for loss in LOSSES}
    assert all(s.fixed["batch_size"] == (32 if name.startswith("S10") else 128) for name, s in untuned.items())
    assert len(studies["D-1-tuning-auc_m"].configs) == DRAWN
    for cell in cells:
        assert studies[f"{cell}-tuned-auc_m"].inherits.study == f"{cell.partition('-')[2]}-tuning-auc_m"
    assert studies["C2-D-1-untuned-auc_m"].seeds == (0, 1, 2, 3, 4)


def test_a_cause_changes_one_thing():
    studies = by_name(causes())
    assert len(studies) == 2 * (12 + 10)
    for cell in ("C2-D-1", "C10-D-1"):
        for loss in ("auc_m", "ce"):
            base = studies[f"{cell}-causes-{loss}-base"].fixed
            for name, study in studies.items():
                if name.startswith(f"{cell}-causes-{loss}-") and not name.endswith("-base"):
                    undone = {k for k, v in study.fixed.items() if base.get(k, "absent") != v}
                    assert len(undone) == (2 if name == f"{cell}-causes-auc_m-decay" else 1), name
                    assert recipe_hash(first_recipe(study)) != recipe_hash(released(**base))


def test_fair_gives_every_loss_the_same_number_of_settings():
    for network in "DR":
        for loss in LOSSES:
            grid = menu(network, loss)
            assert len(grid.configs) == DRAWN
            assert ("dropout" in grid.axes) == (network == "D")
        assert len(PRIMARY[network]) == 4
        names = by_name(fair_set())
        for pair in PRIMARY[network]:
            assert all(names[name].seeds == tuple(range(8)) for name in pair)
    for studies in (released_set(), fair_set()):
        tuned = [study for study in studies.studies if study.tuned]
        assert all(seed // FOLDS % 1000 >= 100 for study in tuned for seed in study.tuning_seeds)


def test_the_quota_is_a_share_of_the_batch():
    """STL-10's batches have 32 images: 32 positives would leave none for the negatives."""
    found = [fair(loss="ce", positives=p, batch_size=b).stages[0] for p, b in ((32, 128), (32, 32), (0, 32))]
    assert [stage.positives_per_batch for stage in found] == [32, 8, None]


def test_the_second_round_takes_the_best_five_of_the_first(tmp_path):
    studies = fair_set().chosen(["D", "*-D-*"])
    chosen, further = settled(studies, tmp_path)
    assert {study.name for study in chosen} == {f"D-fair-{loss}-first" for loss in LOSSES}
    assert not further
    first = by_name(fair_set())["D-fair-ce-first"]
    book = RecordBook(tmp_path / "fair")
    for number, config in enumerate(first.configs):
        for seed in first.tuning_seeds:
            auc = math.sin(number) + seed * 1e-4
            record = {"study": first.name, "phase": "tuning", "run": f"{number} {seed}", "seed": seed}
            record["config"] = dict(config)
            outcome = {"failed": "NaN"} if number == 2 else {"recipe": {}, "history": {"validation_auc": [0.9, auc]}}
            book.add({**record, **outcome})
    chosen, further = settled(studies, tmp_path)
    by = {study.name: study for study in chosen}
    assert {name for name in by if name.endswith(("-second", "-again"))} == {"D-fair-ce-second", "D-fair-ce-again"}
    best = sorted((n for n in range(DRAWN) if n != 2), key=lambda n: -math.sin(n))[:BEST]
    for study in (by["D-fair-ce-second"], by["D-fair-ce-again"], *further):
        assert list(study.configs) == [first.configs[n] for n in best]
    assert "C2-D-1-fair-ce" in by
    assert "C2-D-1-fair-auc_m" not in by


def recorded(results, name, study, auc, *, seed=0, phase="final", config=None, **more):
    """A run with these figures; `auc`: of the test part, or of validation while tuning."""
    part = "test" if phase == "final" else "validation"
    record = {"study": study, "phase": phase, "run": f"{study} {phase} {seed} {config}", "seed": seed, "set": name}
    record |= {"config": config or {}, "fixed": {"network": "D"}, "auc": {part: [auc, auc, auc]}, "seconds": 1.0}
    RecordBook(results / name).add({**record, "history": {}, "recipe": {}, "cut": {}, **more})


def table_of(page, title):
    """The rows of a table, by column."""
    lines = page.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_page_has_the_papers_figures_beside_ours_and_a_verdict(tmp_path):
    for seed in range(5):
        noise = seed * 1e-3
        recorded(tmp_path, "released", "C10-D-1-untuned-ce", 0.70 + noise, seed=seed)
        recorded(tmp_path, "released", "C10-D-1-untuned-auc_m", 0.69 + seed * 0.01, seed=seed)
        recorded(tmp_path, "released", "C10-D-1-tuned-auc_m", 0.751 + 2 * noise, seed=seed, config={"margin": 0.3})
        recorded(tmp_path, "released", "C2-D-1-untuned-ce", 0.76, seed=seed)
        recorded(tmp_path, "released", "C2-D-1-tuned-auc_m", 0.75 + noise, seed=seed)
        recorded(tmp_path, "released", "C100-R-1-untuned-focal", 0.6, seed=seed)
    page = PAGES["released"].markdown(tmp_path)
    by_cell = {row["cell"]: row for row in table_of(page, "With m and gamma from the printed grids")}
    tuned = by_cell["C10-D-1"]
    assert (tuned["AUC-M, paper"], tuned["AUC-M, ours"]) == ("0.760 ± 0.006", "0.755 ± 0.003")
    assert (tuned["CE, ours"], tuned["Focal, ours"]) == ("0.702 ± 0.002", "-")  # CE's runs are the untuned ones
    assert (tuned["level with the paper"], tuned["verdict"]) == ("yes", "confirmed")
    assert (by_cell["C2-D-1"]["level with the paper"], by_cell["C2-D-1"]["verdict"]) == ("no", "refuted")
    (untuned,) = table_of(page, "Untuned: m 1, gamma 1/500")
    assert (untuned["cell"], untuned["verdict"]) == ("C10-D-1", "open")
    summary = PAGES["released"].summary(tmp_path)
    cell = summary["cells"]["C10-D-1"]
    assert cell["released"].keys() == {"auc_m", "ce", "auc_m-ce"}
    assert cell["released"]["ce"] == cell["released-untuned"]["ce"]
    assert cell["released"]["auc_m"]["settings"] == {"margin": 0.3}
    assert len(cell["released"]["auc_m"]["sets"]) == 5
    assert cell["released-untuned"]["auc_m-ce"]["mean"] == pytest.approx(0.71 - 0.702)
    assert summary["cells"]["C100-R-1"]["released"]["focal"]["settings"] == {}  # not tuned yet
    over = summary["contrasts"]["released"]["D-1"]["auc_m-ce"]
    assert over["cells"] == 2
    assert over["mean"] == pytest.approx((0.053 - 0.008) / 2)


def test_fairs_page_shows_its_contrast_and_the_noise_of_its_choice(tmp_path):
    configs = menu("D", "auc_m").configs[:2]
    for turn, first in (("second", 0.8), ("again", 0.7)):
        for config, auc in zip(configs, (first, 0.75), strict=True):
            recorded(tmp_path, "fair", f"D-fair-auc_m-{turn}", auc, phase="tuning", config=dict(config))
    for seed in range(8):
        recorded(tmp_path, "fair", "C2-D-1-fair-auc_m", 0.8 + seed * 1e-3, seed=seed)
        recorded(tmp_path, "fair", "C2-D-1-fair-ce", 0.81, seed=seed)
    page = PAGES["fair"].markdown(tmp_path)
    (choice,) = table_of(page, "The choice made again")
    assert (choice["network"], choice["loss"], choice["regret"]) == ("D", "AUC-M", "0.050")
    assert choice["chosen"] != choice["again"]
    (row,) = [row for row in table_of(page, "Pooled over cells") if row["difference"] == "AUC-M - CE"]
    assert (row["network and %"], row["cells"], row["verdict"]) == ("D-1", "1", "refuted")
    assert PAGES["fair"].summary(tmp_path)["cells"]["C2-D-1"]["fair"]["ce"]["mean"] == pytest.approx(0.81)


def test_causes_are_beside_their_base(tmp_path):
    watched = {"history": {"train_auc": [0.5, 0.9], "weight_square": [10.0, 20.0]}}
    for seed in range(5):
        for name, auc in (("auc_m-base", 0.78), ("auc_m-reference", 0.70), ("ce-base", 0.74), ("ce-third", 0.79)):
            recorded(tmp_path, "causes", f"C2-D-1-causes-{name}", auc + seed * 1e-3, seed=seed, **watched)
    page = PAGES["causes"].markdown(tmp_path)
    rows = [line for line in page.splitlines() if " reference " in line]
    assert "-0.080 [-0.080, -0.080]" in rows[0]
    assert "| 0.9 | 20 |" in " ".join(rows[0].split())
    under = {row["undone"]: row["verdict"] for row in table_of(page, "AUC-M minus CE under the same change")}
    assert under == {"base": "confirmed", "CE at a third": "refuted"}
    summary = PAGES["causes"].summary(tmp_path)["causes"]["C2_D_1"]["auc_m"]
    assert summary["reference-base"]["mean"] == pytest.approx(-0.08)


def test_pooled_sets_are_those_of_their_benchmark(monkeypatch):
    asked = []

    def load(self, seed, *, tuning, place):
        asked.append((self.benchmark, self.imratio, seed))
        return tiny_task(rows=200)

    monkeypatch.setattr(BenchmarkSource, "load", load)
    study = by_name(fair_set())["D-fair-ce-second"]
    for seed in study.tuning_seeds:
        task = study.task.load(seed, tuning=True, place=None)
        assert sorted(task.parts) == ["train", "validation"]
    assert asked == [(b, 0.01, n) for b in ("C2", "C10", "C100") for n in (102, 103)]


def tiny_task(rows=80, side=32):
    generator = np.random.default_rng(0)
    labels = (np.arange(rows) % 5 == 0).astype(np.float32)
    images = generator.integers(0, 256, (rows, side, side, 3)).astype(np.uint8)
    parts = {"train": np.arange(0, rows, 2), "test": np.arange(1, rows, 2)}
    return Task(name="tiny", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)


@pytest.mark.parametrize(("network", "loss"), [("R", "auc_m"), ("D", "auc_m"), ("R", "ce")])
def test_each_network_trains_three_steps(network, loss, tmp_path):
    recipe = released(loss=loss, network=network, batch_size=8, precision="float32", watch=True)
    (stage,) = recipe.stages
    short = replace(recipe, stages=(replace(stage, epochs=None, iterations=3),))
    run = train(short, tiny_task(), seed=0, run_dir=tmp_path / "run", device="cpu")
    (row,) = run.history
    assert math.isfinite(float(row["loss"]))
    assert 0 <= float(row["train_auc"]) <= 1
    assert float(row["weight_square"]) > 0
    assert np.isfinite(run.scores("test")[0]).all()
