"""The menu, its search in small on digits, the records of the average, the page made from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepauc.kernels.dropout import step_dropouts
from deepauc.kernels.stacked.network import can_stack
from deepauc.metrics.auroc import auroc
from deepauc.models.build import TimmSpec, build_model
from deepauc.models.classifier import classifier_head
from deepauc.models.fusion import ensemble
from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.status import status_of
from deepauc.studies.running.missing import MissingRuns
from deepauc.studies.running.runner import run_studies
from deepauc.studies.selection import TriedSetting
from deepauc.studies.sources import Place
from deepauc.studies.study import StudySet
from deepauc.training.engine.loop import train
from deepauc.training.plain import to_plain
from experiments.benchmarks.recipes import network_of
from experiments.figures import RESULTS
from experiments.search import divergence
from experiments.search import levers as best_levers
from experiments.search import page as best_page
from experiments.search.cells import best_set, cell_study, from_levers, kept_ranks, read_ranks, settled
from experiments.search.lever_results import lever_results, longer_first_result
from experiments.search.levers import (
    BASE,
    FOLLOWERS,
    LEVERS,
    LONGER_FIRST,
    LOSSES,
    Lever,
    SimplestWithinPairedError,
    lever_studies,
    longer_first_study,
)
from experiments.search.menu import DRAWN, LATER, MENU, START, menu_studies
from experiments.search.recipe import PLACED, best
from tests.studies.test_folds import DIGITS, SMALL


@pytest.mark.parametrize("loss", ["auc_m", "auc_s", "pairwise", "ce"])
def test_every_loss_takes_every_lever(loss):
    recipe = best(loss=loss, mixup=0.2, ema=0.99, positives=64, schedule="steps", ce_first=0 if loss == "ce" else 3)
    first, *middle, last = recipe.stages
    assert first.on_views
    assert [stage.epochs for stage in middle] == ([] if loss == "ce" else [3])
    assert (last.augment.mixup, last.ema, last.positives_per_batch) == (0.2, 0.99, 64)
    assert last.objective.soft_labels
    assert last.resolved_bound == ("none" if loss == "ce" else "sigmoid")
    assert last.reset_classifier == bool(middle)
    assert last.schedule.milestones == (10, 15)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "mse"}, "loss must be"),
        ({"loss": "ce", "ce_first": 2}, "longer training"),
        ({"positives": -1}, "negative"),
        ({"first_stage": "byol"}, "first_stage must be"),
        ({"schedule": "linear"}, "schedule must be"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        best(**given)


def test_the_first_stage_is_the_same_for_all_second_stages():
    firsts = {
        repr(best(**given).stages[0])
        for given in ({}, {"loss": "ce", "lr": 0.03}, {"mixup": 1.0, "epochs": 40}, {"positives": 0, "affine": False})
    }
    assert len(firsts) == 1


def test_several_views_and_their_rate():
    (first, _) = best(first_stage="polyview", first_lr=1.0).stages
    assert (first.views, first.objective.views, first.optimizer.lr) == (4, 4, 1.0)
    (other, _) = best(first_stage="simclr").stages
    assert (other.views, other.optimizer.lr) == (2, 0.5)


def test_longer_first_stages_are_alike_for_both_losses():
    mine, other = (longer_first_study(loss) for loss in LOSSES)
    firsts = [[repr(study.recipe(one, "tuning").stages[0]) for one in study.configs] for study in (mine, other)]
    assert firsts[0] == firsts[1]
    assert len(set(firsts[0])) == len(LONGER_FIRST.settings)
    assert mine.tuning_seeds == other.tuning_seeds
    assert mine.tuning_seeds[:5] == (500, 501, 502, 503, 504)  # one training set first
    inheriting = [s.name for s in best_set().studies if s.inherits and f"{LONGER_FIRST.name}-ce" in s.inherits.sources]
    assert inheriting == [f"menu-ce-{turn}" for turn in ("first", "second", "third")]


def test_longer_first_stages_begin_with_what_the_search_has_chosen():
    """The same recipe, whose runs and first stages are kept by their hash."""
    book = RecordBook(Path(__file__).parents[3] / "results" / "best")
    for loss in LOSSES:
        chosen = RecordedSettings(best_set().studies, book).inherited(longer_first_study(loss))
        *_, last = (one for one in lever_results(book, loss) if one.chosen)
        (record,) = (r for r in last.records if r["seed"] == 500 and last.chosen.items() <= r["config"].items())
        again = longer_first_study(loss).recipe({**chosen, **LONGER_FIRST.settings[0]}, "tuning")
        assert to_plain(again, defaults=False) == record["recipe"]


def test_cross_entropy_chooses_as_often():
    mine, other = ([len(lever.settings) for lever in LEVERS[loss]] for loss in LOSSES)
    assert mine == other
    declared = {s.name: len(s.configs) * len(s.tuning_seeds) for s in best_set().studies if s.name.startswith("levers")}
    totals = [sum(n for name, n in declared.items() if name.startswith(f"levers-{loss}-")) for loss in LOSSES]
    assert totals[0] == totals[1] == 10 * sum(mine)


def test_what_a_lever_has_chosen_is_never_set_again_by_hand():
    for study in best_set().studies:
        if study.inherits is not None:
            assert not set(study.inherits.axes) & {*study.fixed, *study.grid.axes}
    searches = ("levers", "menu", "networks")
    others = (*searches, "longer_first")
    cells = {s.name: s for s in best_set().studies if not s.name.startswith(others)}
    for name, study in cells.items():
        loss = name.split("-")[-1]
        followed = LEVERS["auc_m"] if loss in FOLLOWERS else ()
        levers = {axis for lever in (*followed, *LEVERS[loss]) for axis in lever.axes} - {"momentum"}
        assert levers - set(BASE[loss]) <= set(study.inherits.axes)
        assert set(MENU.get(loss, ())) <= set(study.inherits.axes)
        assert study.seeds == (0, 1, 2, 3, 4)
    selection = {
        kind: {s // 5 % 1000 for one in best_set().studies if one.name.startswith(kind) for s in one.tuning_seeds}
        for kind in searches
    }
    assert selection == {"levers": {100, 101}, "menu": {102, 103}, "networks": {104}}


def test_all_studies_before_come_along():
    whole = best_set()
    (cell,) = [study for study in whole.studies if study.name == "C10-R-1-ce"]
    levers = [best_levers.lever_name("ce", number) for number in range(1, len(LEVERS["ce"]) + 1)]
    longer = "longer_first-ce"
    assert [study.name for study in whole.parents([cell])] == [*levers, longer, "menu-ce-third"]
    (free,) = [study for study in whole.studies if study.name == "C10-best-1-ce"]
    assert [study.name for study in whole.parents([free])] == [*levers, longer, "menu-ce-third", "networks-ce"]
    (follower,) = [study for study in whole.studies if study.name == "C10-R-1-auc_s"]
    assert {study.name.split("-")[1] for study in whole.parents([follower])} == {"auc_m", "auc_s"}


def test_a_lever_by_its_number_is_that_of_both_searches_alone():
    names = [study.name for study in best_set().chosen(["levers-*-01-*"])]
    assert names == ["levers-auc_m-01-first", "levers-ce-01-first"]
    assert [s.name for s in best_set().chosen(["levers-auc_s"])] == [best_levers.lever_name("auc_s", 1)]
    assert best_levers.lever_name("auc_s", 1) == f"levers-auc_s-{len(LEVERS['auc_m']) + 1}-rate"


def test_the_menu_gives_both_losses_as_many_settings_and_runs():
    studies = {study.name: study for study in menu_studies()}
    for turn in ("first", "second", "third"):
        mine, other = (studies[f"menu-{loss}-{turn}"] for loss in LOSSES)
        assert len(mine.configs) == len(other.configs) == DRAWN + 1
        assert mine.tuning_seeds == other.tuning_seeds
    assert studies["menu-ce-second"].tuning_seeds == studies["menu-ce-third"].tuning_seeds[:11]
    own = {loss: {axis: len(values) for axis, values in MENU[loss].items()} for loss in LOSSES}
    assert sorted(own["auc_m"].values()) == sorted(own["ce"].values())
    for loss in LOSSES:
        assert START[loss].keys() == MENU[loss].keys()


def test_the_menu_starts_where_the_first_search_ended():
    """As its records say; what START adds leaves the training as it was."""
    choices = RecordedSettings(best_set().studies, RecordBook(RESULTS / "best"))
    for study in menu_studies():
        if study.name.endswith("-first"):
            loss = study.fixed["loss"]
            name = choices.inherits_from(study.inherits)
            last = next(one for one in best_set().studies if one.name == name)
            chosen = {**BASE[loss], **choices.selected(last)[0]}
            before = best(**chosen)
            now = study.recipe({**choices.inherited(study), **START[loss]}, "final")
            assert now.model == replace(before.model, drop_rate=PLACED)
            stages = tuple(replace(stage, drop_rate=None) for stage in now.stages)
            assert stages == before.stages


def test_a_round_tries_the_best_of_the_one_before_on_more_folds(tmp_path):
    names = ["menu-ce-first", "menu-ce-second", "menu-ce-third", "C2-R-1-ce", "C2-best-1-ce", "networks-ce"]
    (tmp_path / "best.jsonl").write_bytes((RESULTS / "best.jsonl").read_bytes())
    whole = {study.name: study for study in best_set().studies}
    begun, _ = settled([whole[name] for name in names], tmp_path)
    assert [study.name for study in begun] == ["menu-ce-first", "C2-R-1-ce", "C2-best-1-ce"]

    def record(study, auc_of):
        book = RecordBook(tmp_path / "best")
        inherited = RecordedSettings(list(whole.values()), book).inherited(study)
        for number, config in enumerate(study.configs):
            for seed in study.tuning_seeds:
                one = {"study": study.name, "phase": "tuning", "run": f"{study.name} {number} {seed}", "seed": seed}
                one |= {"config": {**inherited, **config}, "fixed": {}, "recipe": {}, "set": "best"}
                book.add({**one, "history": {"validation_auc": [auc_of(number, seed)]}})

    record(begun[0], lambda number, seed: 0.5 + number / 100 + seed / 1e5)
    begun, _ = settled([whole[name] for name in names], tmp_path)
    assert [study.name for study in begun] == [*names[:2], *names[3:5]]
    assert [dict(c) for c in begun[1].configs] == [dict(c) for c in begun[0].configs[:-9:-1]]
    record(begun[1], lambda number, seed: 0.9 - (number - 2) ** 2 / 100)
    begun, _ = settled([whole[name] for name in names], tmp_path)
    assert [study.name for study in begun] == names
    third = begun[2]
    assert third.configs[0] == begun[1].configs[2]
    assert len(third.configs) == LATER["menu-ce-third"].keep
    record(third, lambda number, seed: 0.8 + (number == 1))
    declared = [*whole.values(), *settled(list(whole.values()), tmp_path)[1]]
    choices = RecordedSettings(declared, RecordBook(tmp_path / "best"))
    found, told = choices.selected(whole["C2-R-1-ce"])
    assert {axis: found[axis] for axis in MENU["ce"]} == dict(third.configs[1])
    assert told == {"inherited from": "menu-ce-third"}
    assert found["first_epochs"] == 300


def test_two_draws_share_their_first_stage_and_nothing_of_the_second():
    one, other = (best(draw=draw, ce_first=5) for draw in (0, 1))
    assert one.stages[:2] == other.stages[:2]
    assert (other.stages[2].place, other.stages[2].reset_classifier) == (3, True)


def test_a_scaled_loss_takes_the_same_steps_by_its_rates(spots_task, tmp_path):
    """Cross-entropy, which has a scale of its own, beside the one of `best`."""
    options = {"loss": "ce", "first_stage": "none", "network": "S", "epochs": 1, "positives": 0, "momentum": 0.9}
    options |= {"precision": "float32", "colour": False, "cutout": False, "affine": False, "batch_size": 32}
    by_rates = best(**options, lr=0.3, weight_decay=0.01, scale=0.1)
    stage = best(**options, lr=0.3, weight_decay=0.01).stages[0]
    by_loss = replace(by_rates, stages=(replace(stage, objective=replace(stage.objective, scale=0.1)),))
    found = [
        train(recipe, spots_task(), seed=0, run_dir=tmp_path / str(n), device="cpu").scores("test")[0]
        for n, recipe in enumerate((by_rates, by_loss))
    ]
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("network", ["B", "H"])
def test_the_free_network_can_share_its_kernels(network):
    model = build_model(
        network_of(network, drop_rate=0.2), in_channels=3, num_outputs=1, seed=0, input_shape=(3, 32, 32)
    )
    assert can_stack(model.train())
    assert len(step_dropouts(model)) == 1
    width = classifier_head(model).in_features
    assert width == (512 if network == "B" else 256)
    if network == "B":  # but for the dropout it is timm's
        images = torch.rand(2, 3, 32, 32)
        plain = build_model(TimmSpec(name="resnet18", small_stem=True), in_channels=3, num_outputs=1, seed=0)
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(plain.eval()(images), model.eval()(images))


def trial(name, *values):
    return TriedSetting(config={"x": name}, validation=tuple((v,) for v in values))


def test_the_rule_is_paired():
    rule = SimplestWithinPairedError()
    # Folds differ by .2, settings by .01 on each: unpaired nothing is told apart, paired it is.
    far = [trial("simple", 0.60, 0.70, 0.80), trial("best", 0.612, 0.710, 0.809)]
    assert rule.choose(far).config["x"] == "best"
    # mean difference .004, its standard error .0058: within.
    near = [trial("simple", 0.60, 0.70, 0.80), trial("best", 0.612, 0.706, 0.794)]
    assert rule.choose(near).config["x"] == "simple"
    assert rule.choose([*reversed(near)]).config["x"] == "best"
    assert rule.choose([trial("nan", 0.9, float("nan")), trial("fine", 0.5, 0.6)]).config["x"] == "fine"
    with pytest.raises(ValueError, match="nothing to choose"):
        rule.choose([trial("nan", float("nan"))])


def test_ranks_survive_as_text():
    generator = np.random.default_rng(0)
    labels = (generator.random(501) < 0.3).astype(np.float32)
    scores = generator.normal(size=501).round(1).astype(np.float32)  # with ties
    ranks, back = read_ranks(kept_ranks(scores, labels))
    assert np.array_equal(back, labels)
    assert auroc(ranks, labels) == auroc(scores, labels)
    with pytest.raises(ValueError, match="two bytes"):
        kept_ranks(np.zeros(40_000, dtype=np.float32), np.zeros(40_000, dtype=np.float32))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The search of both losses with three levers, then one cell with two training sets, all on digits."""
    folder = tmp_path_factory.mktemp("best")
    patch = pytest.MonkeyPatch()
    short = {
        loss: (
            Lever(name="first", settings=({"first_stage": "none"}, {"first_stage": "simclr"})),
            Lever(name="rate", settings=({"lr": 0.1}, {"lr": 1e30})),
            Lever(name="mixup", settings=({"mixup": 0.0}, {"mixup": 0.5})),
        )
        for loss in LOSSES
    }
    short = {**LEVERS, **short, "auc_s": (Lever(name="rate", settings=({"lr": 0.1}, {"lr": 0.2})),)}
    patch.setattr(best_levers, "LEVERS", short)
    searches = [s for loss in (*LOSSES, "auc_s") for s in lever_studies(loss, DIGITS, base=SMALL, sets=(100,), folds=2)]
    cells = [
        replace(cell_study(name, loss, DIGITS, inherits=from_levers(loss), fixed={**SMALL, "draw": draw}), seeds=(0, 1))
        for draw, name in enumerate(("C10-R-1", "C10-R-1-again"))
        for loss in (*LOSSES, "auc_s")[: 2 if draw else 3]
    ]
    place = Place(runs=folder / "runs", results=folder / "results")
    whole = StudySet(name="best", title="", studies=(*searches, *cells))
    levers = whole.chosen(["levers"])
    outcomes = [run_studies("best", levers, place=place, device="cpu", pack=4)]
    for some, pack in ((cells[:1], 1), (cells, 4)):
        outcomes.append(run_studies("best", some, parents=whole.parents(some), place=place, device="cpu", pack=pack))
    outcomes.append(run_studies("best", whole.studies, place=place, device="cpu"))
    patch.undo()
    return folder / "results", outcomes, RecordBook(folder / "results" / "best"), short


@pytest.fixture
def small(searched, monkeypatch):
    *found, short = searched
    monkeypatch.setattr(best_levers, "LEVERS", short)
    return found


def test_the_search_goes_lever_by_lever(small):
    _, outcomes, book = small
    assert [len(book.tuning(f"levers-{loss}-{lever}")) for loss in LOSSES for lever in ("01-first", "02-rate")] == [
        4
    ] * 4
    assert len(outcomes[0].failed) == 4  # lr 1e30, two folds, two losses
    chosen = {record["config"]["lr"] for record in book.tuning("levers-auc_m-03-mixup")}
    assert chosen == {0.1}
    assert all("first_stage" in record["config"] for record in book.tuning("levers-ce-03-mixup"))
    assert {r["config"]["mixup"] for r in book.tuning("levers-auc_s-04-rate")} <= {0.0, 0.5}
    assert {r["fixed"]["loss"] for r in book.tuning("levers-auc_s-04-rate")} == {"auc_s"}
    assert outcomes[-1].done == 0  # the same call again


def test_the_cells_take_over_what_was_chosen(small):
    _, outcomes, book = small
    assert (outcomes[1].done, outcomes[1].failed) == (2, [])
    assert (outcomes[2].done, outcomes[2].failed) == (8, [])
    for loss in LOSSES:
        record = book.final(f"C10-R-1-{loss}")[0]
        found = lever_results(book, loss)[2]
        assert record["config"]["mixup"] == found.chosen["mixup"]
        assert record["selection"] == {"inherited from": f"levers-{loss}-03-mixup"}
        assert record["source"]["name"] == DIGITS.name


def test_the_average_of_models_comes_from_the_records(small):
    results, _, book = small
    records = book.final("C10-R-1-auc_m")
    scores, labels = best_page.averaged_models(records)
    runs = results.parent / "runs"
    from deepauc.training.run.run import Run

    own = [Run(runs / record["run"]).scores("test") for record in records]
    expected = ensemble([values for values, _ in own], scale="rank")
    assert auroc(scores, labels) == pytest.approx(auroc(expected, own[0][1]), abs=1e-12)
    assert best_page.averaged_models(records[:1]) is None
    other = {**records[1], "test_ranks": kept_ranks(own[0][0], 1 - own[0][1])}
    with pytest.raises(ValueError, match="different test images"):
        best_page.averaged_models([records[0], other])


def rows_below(text, title):
    lines = text.split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"][2:]


def test_the_page(small):
    results, _, book = small
    text = best_page.PAGE.markdown(results)
    assert "diverged on 2" in text
    values = [record["auc"]["test"][0] for record in book.final("C10-R-1-ce")]
    shown = f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert ["C10-R-1", "CE", "0.715", "0.880", "0.885", shown] in [row[:6] for row in rows_below(text, "Test AUC")]
    a, b = ([r["auc"]["test"][0] for r in book.final(f"C10-R-1-{loss}")] for loss in LOSSES)
    (row,) = [row for row in rows_below(text, "Test AUC") if row[:2] == ["C10-R-1", "AUC-M"]]
    assert row[6] == "2"
    assert row[7].startswith(f"{np.mean(np.subtract(a, b)):+.3f} [")
    assert rows_below(text, "AUC-M minus cross-entropy")[0] == ["test, all cells", row[7]]


def test_averages_over_sets_and_of_both_losses_on_one_set(small):
    results, _, book = small
    text = best_page.PAGE.markdown(results)
    rows = [*rows_below(text, "Averages over training sets"), *rows_below(text, "Averages of both losses")]
    ranks = {loss: [read_ranks(record["test_ranks"]) for record in book.final(f"C10-R-1-{loss}")] for loss in LOSSES}
    labels = ranks["ce"][0][1]
    (together,) = (row for row in rows if len(row) == 5)
    again = {loss: [read_ranks(r["test_ranks"])[0] for r in book.final(f"C10-R-1-again-{loss}")] for loss in LOSSES}
    twice = {
        loss: [auroc(a + b, labels) for (a, _), b in zip(ranks[loss], again[loss], strict=True)] for loss in LOSSES
    }
    across = {row[1]: row for row in rows if len(row) == 6}
    for loss, title in (("auc_m", "AUC-M"), ("ce", "CE")):
        first, second = (one for one, _ in ranks[loss])
        row = across[title]
        assert row[2] == "2"
        assert row[3].startswith(f"{auroc(first + second, labels):.3f} [")
        assert row[5] == f"{np.corrcoef(first, second)[0, 1]:.2f}"
        assert (row[4] == "-") == (loss == "ce")
    both = [auroc(a + b, labels) for (a, _), (b, _) in zip(ranks["auc_m"], ranks["ce"], strict=True)]
    assert together[:3] == ["C10-R-1", "2", f"{np.mean(both):.3f} ± {np.std(both, ddof=1):.3f}"]
    one, over = rows_below(text, "Averages of two models")
    shown = [f"{np.mean(aucs):.3f} ± {np.std(aucs, ddof=1):.3f}" for aucs in (both, *twice.values())]
    assert one[:4] == ["C10-R-1", *shown]
    figures = best_page.PAGE.summary(results)
    for place, loss in enumerate(LOSSES):
        gain = np.subtract(both, twice[loss])
        assert one[4 + place] == over[4 + place]  # one cell alone
        assert float(one[4 + place].split()[0]) == pytest.approx(gain.mean(), abs=1e-3)  # ranks tie
        assert figures["best"]["average"][f"both-{loss}"]["mean"] == pytest.approx(gain.mean(), abs=5e-4)
        assert figures["cells"]["C10-R-1"]["best-average"][loss]["sets"] == pytest.approx(twice[loss], abs=5e-4)
        firsts = [[r["first_stage"]["name"] for r in book.final(f"C10-R-1{x}-{loss}")] for x in ("", "-again")]
        assert firsts[0] == firsts[1]
        assert twice[loss] != [auroc(a, labels) for a, _ in ranks[loss]]
    for cell, loss in zip(together[3:], LOSSES, strict=True):
        alone = [record["auc"]["test"][0] for record in book.final(f"C10-R-1-{loss}")]
        assert cell.startswith(f"{np.mean(np.subtract(both, alone)):+.3f} [")


def test_the_ends_of_the_searches_are_paired(small):
    results, _, book = small
    first, second = ends = [lever_results(book, loss)[-1].end.values for loss in LOSSES]
    for loss, end in zip(LOSSES, ends, strict=True):
        last = lever_results(book, loss)[-1]
        (tried,) = (one for one in last.tried if one.setting == last.chosen)
        assert end == tried.aucs
    between = np.mean([first[fold] - second[fold] for fold in first])
    assert rows_below(best_page.PAGE.markdown(results), "AUC-M minus cross-entropy")[1][1].startswith(
        f"{between:+.3f} ["
    )


def test_what_each_lever_has_gained(small):
    results, _, book = small
    rows = {(row[0], row[1]): row[3] for row in rows_below(best_page.PAGE.markdown(results), "What decides")}
    assert [lever for loss, lever in rows if loss == "CE"] == ["first", "rate", "mixup"]
    figures = best_page.PAGE.summary(results)["best"]["levers"]
    for loss, title in (("auc_m", "AUC-M"), ("ce", "CE")):
        for lever in lever_results(book, loss):
            shown, found = rows[title, lever.lever.name], figures[loss][lever.lever.name]
            simplest, *others = lever.tried
            means = [one.mean if one.complete else None for one in lever.tried]
            assert [None if x is None else round(x, 6) for x in means] == found["means"]
            if lever.chosen == simplest.setting:
                assert shown == "-"
                continue
            (chosen,) = (one for one in others if one.setting == lever.chosen)
            gain = np.mean([chosen.aucs[fold] - simplest.aucs[fold] for fold in chosen.aucs])
            assert shown.startswith(f"{gain:+.3f} [")
            assert found["gain"]["mean"] == pytest.approx(gain, abs=1e-6)


def test_longer_first_stages_count_with_what_the_search_chooses_now(tmp_path, monkeypatch):
    book = RecordBook(tmp_path)
    only = Lever(name="mixup", settings=({"mixup": 0.0}, {"mixup": 0.2}))
    monkeypatch.setattr(best_levers, "LEVERS", {**LEVERS, "ce": (only,)})

    def add(study, seed, auc, **config):
        record = {"study": study, "phase": "tuning", "run": f"{study}{seed}{config}", "seed": seed, "config": config}
        record |= {"cut": {}, "fixed": {}, "recipe": {}, "alpha_zero_share": None}
        book.add({**record, "history": {"validation_auc": [auc]}})

    for seed in (500, 501):
        for mixup in (0.0, 0.2):
            add("levers-ce-01-mixup", seed, 0.7 + mixup / 10, mixup=mixup)
        for number, setting in enumerate(LONGER_FIRST.settings):
            add("longer_first-ce", seed, 0.8 + number / 100, mixup=0.2, **setting)
            add("longer_first-ce", seed, 0.9, mixup=0.0, **setting)  # of an earlier choice
    found = longer_first_result(book, "ce")
    assert [tried.mean for tried in found.tried] == pytest.approx([0.8 + number / 100 for number in range(8)])
    assert found.chosen == LONGER_FIRST.settings[-1]
    rows = [row for row in best_page._tried(lambda _: book) if row[1] == "longer_first"]
    assert [row[-1] for row in rows] == [""] * 7 + ["yes"]


def test_a_search_with_an_open_lever_has_no_end(tmp_path):
    assert lever_results(RecordBook(tmp_path), "ce")[-1].end is None


def test_two_trainings_of_a_first_stage_are_told(tmp_path):
    book = RecordBook(tmp_path)

    def add(stage, seed, loss):
        record = {"study": best_levers.lever_name("ce", 1), "phase": "tuning", "run": f"{stage}{seed}", "seed": seed}
        record |= {"config": {"first_stage": stage}, "fixed": {}, "cut": {}, "alpha_zero_share": None, "recipe": {}}
        first = None if loss is None else {"name": f"of fold {seed}", "loss": loss}
        book.add({**record, "first_stage": first, "history": {"validation_auc": [0.5]}})

    add("none", 500, None)
    add("simclr", 500, 3.1)
    add("simclr", 501, 3.2)
    assert not lever_results(book, "ce")[0].trained_again
    add("none", 501, 3.3)  # as a lever's setting that was taken over from an earlier one may have it
    assert lever_results(book, "ce")[0].trained_again


def test_a_lever_tried_again_from_another_start_counts_alone(tmp_path):
    book = RecordBook(tmp_path)
    name = best_levers.lever_name("ce", 1)

    def add(run, stage, seed, auc, cut=None, **fixed):
        record = {"study": name, "phase": "tuning", "run": run, "config": {"first_stage": stage}, "seed": seed}
        record |= {"fixed": fixed, "tuning": {}, "cut": cut or {}, "alpha_zero_share": None, "recipe": {}}
        book.add({**record, "history": {"validation_auc": [0.5, auc]}, "auc": {"validation": [auc + 1e-6, 0, 1]}})

    add("old", "none", 500, 0.99, lr=1)
    add("n500", "none", 500, 0.7, cut={"tune_sets": "1 of 2"}, lr=2)  # the same run, whatever was cut around it
    add("n501", "none", 501, 0.7, lr=2)
    found = lever_results(book, "ce")[0]
    assert [t.mean for t in found.tried] == [pytest.approx(0.7, abs=1e-9)]  # what the search goes by, not `auc`
    assert {len(one.aucs) for one in found.tried} == {2}
    assert found.chosen is None
    for seed in (500, 501):
        add(f"s{seed}", "simclr", seed, 0.8 + seed / 1e5, lr=2)
    found = lever_results(book, "ce")[0]
    assert found.chosen == {"first_stage": "simclr"}
    assert found.difference(found.tried[0]).value == pytest.approx(-0.105005)


def test_copies_are_chosen_by_the_score_of_the_copies(tmp_path, monkeypatch):
    """An epoch's AUC is of the images as they are, the same with and without copies: it would choose none for ever."""
    lever = Lever(name="copies", settings=({"tta": 0}, {"tta": 4}))
    monkeypatch.setattr(best_levers, "LEVERS", {**LEVERS, "ce": (lever,)})
    base = {**SMALL, "first_stage": "none", "colour": True}
    (study,) = lever_studies("ce", DIGITS, base=base, sets=(100,), folds=2)
    place = Place(runs=tmp_path / "runs", results=tmp_path / "results")
    assert run_studies("best", [study], place=place, device="cpu").failed == []
    book = RecordBook(tmp_path / "results" / "best")
    plain, copies = ([r for r in book.tuning(study.name) if r["config"]["tta"] == tta] for tta in (0, 4))
    assert [r["history"] for r in plain] == [r["history"] for r in copies]
    aucs = {r["seed"]: r["auc"]["validation"][0] for r in copies}
    assert aucs != {r["seed"]: r["auc"]["validation"][0] for r in plain}
    assert lever_results(book, "ce")[0].tried[1].aucs == aucs

    better = RecordBook(tmp_path / "better")
    for record in (*plain, *copies):
        auc = record["history"]["validation_auc"][-1] + 0.01 * (record["config"]["tta"] > 0)
        better.add({**record, "auc": {"validation": [auc, 0.0, 1.0]}})
    config, told = MissingRuns([study], better, place).selected(study)
    assert config["tta"] == 4
    assert told["validation_auc"] == [pytest.approx(r["history"]["validation_auc"][-1] + 0.01) for r in copies]
    assert lever_results(better, "ce")[0].chosen == {"tta": 4}


def test_a_lever_waits_for_those_before_it(tmp_path):
    book = RecordBook(tmp_path)

    def add(number, setting, seed, auc, **before):
        record = {"study": best_levers.lever_name("ce", number), "phase": "tuning", "seed": seed, "recipe": {}}
        record |= {"run": f"{number}{setting}{seed}{before}", "config": {**before, **setting}, "cut": {}, "fixed": {}}
        book.add({**record, "alpha_zero_share": None, "history": {"validation_auc": [auc]}})

    def length(seed, auc, **before):
        for setting in LEVERS["ce"][1].settings:
            add(2, setting, seed, auc + setting["epochs"] / 1e3, **before)

    for seed in (500, 501):
        for stage, auc in (("none", 0.7), ("simclr", 0.7 + 0.01 * (seed - 499))):
            add(1, {"first_stage": stage}, seed, auc)
        length(seed, 0.8, first_stage="simclr")
    first, second, *_ = lever_results(book, "ce")
    assert (first.chosen, second.chosen) == ({"first_stage": "simclr"}, {"ema": 0.0, "epochs": 40})

    add(1, {"first_stage": "none"}, 502, 0.9)  # a further fold: the first lever is open, and so are all after it
    first, second, *_ = lever_results(book, "ce")
    assert (first.chosen, second.chosen) == (None, None)
    assert len(second.tried) == 6
    add(1, {"first_stage": "simclr"}, 502, 0.5)  # it turns the choice: what rests on the former one counts no more
    first, second, *_ = lever_results(book, "ce")
    assert (first.chosen, second.tried) == ({"first_stage": "none"}, ())
    for seed in (500, 501, 502):
        length(seed, 0.6, first_stage="none")
    second = lever_results(book, "ce")[1]
    assert second.chosen == {"ema": 0.0, "epochs": 40}
    assert {len(one.aucs) for one in second.tried} == {3}


def test_what_diverges_is_on_its_page(tmp_path):
    (declared,) = (study for study in divergence.divergence().studies if study.name == "digits-auc_m")
    assert len(declared.configs) == 3 * 3 * 2
    small = {"bound": ("none", "sigmoid"), "lr": (0.1, 1e30), "momentum": (0.0,)}
    study = replace(declared, grid=small, fixed={"loss": "auc_m", "steps": 3, "network": "S"})
    place = Place(runs=tmp_path / "runs", results=tmp_path / "results")
    outcome = run_studies("divergence", [study], place=place, device="cpu")
    assert outcome.done + len(outcome.failed) == 4
    text = divergence.PAGE.markdown(place.results)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    found = {(row[2], row[3]): row[5] for row in rows[2:]}
    assert found["raw", "1e+30"] == "stopped at 1"
    assert 0 < float(found["sigmoid", "0.1"]) <= 1
    assert "No run is recorded" in divergence.PAGE.markdown(tmp_path)


def test_the_status_counts_what_the_page_counts(small):
    results, _, book = small
    declared = [s for loss in LOSSES for s in lever_studies(loss, DIGITS, base=SMALL, sets=(100,), folds=2)]
    whole = StudySet(name="best", title="", studies=tuple(declared))
    for one in status_of(whole, declared, results)[: len(declared)]:  # cells are not declared here
        assert (one.tuned + one.failed, one.outdated) == (one.to_tune, 0)
    (choices, loss, decided) = RecordedSettings(declared, book), "auc_m", lever_results(book, "auc_m")
    for number, result in enumerate(decided, start=1):
        study = next(s for s in declared if s.name == best_levers.lever_name(loss, number))
        chosen = choices.selected(study)[0]
        assert {axis: chosen[axis] for axis in result.lever.axes} == dict(result.chosen)


def test_no_more_is_recorded_of_the_search_than_it_asks_for():
    """A lever's number is in the name of its records: one that comes in between leaves those after it without any."""
    whole, results = best_set(), Path(__file__).parents[3] / "results"
    found = {one.study: one for one in status_of(whole, whole.studies, results)}
    assert list(found) == [study.name for study in whole.studies]
    assert sum(one.tuned for one in found.values()) > 500
    assert all(one.tuned + one.failed <= one.to_tune and one.final <= one.seeds for one in found.values())
    book = RecordBook(results / "best")
    for loss in LOSSES:
        for number, result in enumerate(lever_results(book, loss), start=1):
            one = found[best_levers.lever_name(loss, number)]
            assert result.chosen is not None or one.tuned + one.failed < one.to_tune
