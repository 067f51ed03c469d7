"""Declarations: what is checked before anything runs."""

import pytest

from deepauc.studies.study import Inherits, Study, StudySet, cut_all
from experiments.benchmarks.recipes import METHODS
from experiments.benchmarks.smoke import DigitsSource

auc_m, ce = METHODS["auc_m"], METHODS["ce"]

SOURCE = DigitsSource(imratio=0.1)


def declared(**changes):
    given = {"name": "a", "task": SOURCE, "method": auc_m, "grid": {"margin": (0.1, 1.0), "gamma": (0.01, 0.002)}}
    return Study(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"margins": (0.1,)}}, "did you mean 'margin'"),
        ({"fixed": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"tuning": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"inherits": Inherits(study="b", axes=("gama",))}, "did you mean 'gamma'"),
        ({"fixed": {"margin": 0.3}}, "margin is set in two"),
        ({"grid": {"epochs": (0,)}}, "epochs"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_mistakes_show_at_construction(changes, message):
    with pytest.raises(ValueError, match=message):
        declared(**changes)


def test_a_method_that_takes_anything_is_refused():
    def anything(**options):
        return auc_m(**options)

    with pytest.raises(ValueError, match="any argument"):
        declared(method=anything)


def test_tuning_differs_from_the_final_recipe_by_what_was_said():
    study = declared(fixed={"epochs": 10}, tuning={"epochs": 4}, test_curve=True)
    tuning, final = (study.recipe({"margin": 0.3}, phase) for phase in ("tuning", "final"))
    assert (tuning.stages[0].epochs, final.stages[0].epochs) == (4, 10)
    assert (tuning.test_curve, final.test_curve) == (False, True)
    assert final.stages[0].objective.margin == 0.3


def test_curves_need_not_have_a_point_every_epoch():
    plain, every_fifth = declared(test_curve=True), declared(test_curve=True, curve_every=5)
    assert [study.recipe({}, "final").evaluate_every for study in (plain, every_fifth)] == [1, 5]
    without = declared(curve_every=5)
    assert without.recipe({}, "final") == declared().recipe({}, "final")
    assert without.recipe({}, "tuning") == plain.recipe({}, "tuning")


def test_a_cut_is_recorded_and_leaves_the_declaration_alone():
    study = declared(tuning_seeds=(0, 1, 2))
    cut = study.cut_to(configs=3, tune_epochs=5, tune_sets=1, options={"precision": "float32"})
    assert (len(cut.configs), cut.tuning_seeds, cut.tuning["epochs"]) == (3, (0,), 5)
    assert cut.cut == {"configs": "3 of 4", "precision": "float32", "tune_epochs": 5, "tune_sets": "1 of 3"}
    assert study.cut == {}
    assert len(study.configs) == 4
    assert declared().cut_to(configs=9).cut == {}


def test_an_option_goes_to_the_methods_that_have_it():
    studies = (declared(), declared(name="b", method=ce, grid={}))
    a, b = cut_all(studies, options={"bound": "sigmoid", "epochs": 2})
    assert (a.fixed, b.fixed) == ({"bound": "sigmoid", "epochs": 2}, {"epochs": 2})
    with pytest.raises(ValueError, match="did you mean 'bound'"):
        cut_all(studies, options={"bounds": "sigmoid"})
    with pytest.raises(ValueError, match=r"cannot work with epochs='1,network=R'.*repeat it for more"):
        cut_all(studies, options={"epochs": "1,network=R"})


def test_cells_by_prefix_of_words_and_by_wildcard():
    names = ("C10-R-1-ce", "C10-R-10-ce", "C10-R-10-auc_m")
    some = StudySet(name="s", title="", studies=tuple(declared(name=name) for name in names))
    assert [s.name for s in some.chosen(["C10-R-1"])] == ["C10-R-1-ce"]
    assert [s.name for s in some.chosen(["*-auc_m", "C10-R-1"])] == ["C10-R-1-ce", "C10-R-10-auc_m"]
    assert len(some.chosen([])) == 3
    with pytest.raises(ValueError, match="did you mean"):
        some.chosen(["C10-R-1-cf"])


def test_a_set_knows_the_studies_it_names():
    child = declared(name="child", grid={}, inherits=Inherits(study="parent", axes=("margin",)))
    parent = declared(name="parent")
    assert StudySet(name="s", title="", studies=(parent, child)).parents([child]) == (parent,)
    with pytest.raises(ValueError, match="parent"):
        StudySet(name="s", title="", studies=(child,))
    with pytest.raises(ValueError, match="one name"):
        StudySet(name="s", title="", studies=(parent, parent))


def test_a_study_starts_from_one_that_is_declared_for_it():
    first, later = (declared(name=name, grid={}, starts_from=origin) for name, origin in (("a", ""), ("b", "a")))
    assert StudySet(name="s", title="", studies=(first, later)).chosen(["b"]) == (first, later)
    for origin in ("b", "c", "d"):  # a link of a chain, itself, one whose records name no origin
        wrong = declared(name="c", grid={}, starts_from=origin)
        with pytest.raises(ValueError, match=f"starts from {origin}, which must be declared"):
            StudySet(name="s", title="", studies=(first, later, wrong, declared(name="d", grid={})))


def test_a_set_knows_also_the_studies_that_stand_in_for_another():
    first, second = declared(name="a"), declared(name="b")
    after = declared(name="c", grid={}, inherits=Inherits.after(("a", "b"), axes=("margin",)))
    assert after.inherits.sources == ("b", "a")
    whole = StudySet(name="s", title="", studies=(first, second, after))
    assert [study.name for study in whole.parents([after])] == ["a", "b"]
    with pytest.raises(ValueError, match="'a' is not a known study of the set s, named by c"):
        StudySet(name="s", title="", studies=(second, after))
