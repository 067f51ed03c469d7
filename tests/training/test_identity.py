"""Names of runs rest on a frozen table: a renamed spec or a changed default relabels nothing."""

import tomllib
from dataclasses import dataclass, fields, replace

import pytest

from deepauc.models.build import ResNet20Spec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.pairwise import Pairwise, PairwiseAUC
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.config import Settings, build, settings_toml
from deepauc.training.identity import FROZEN, RENAMED
from deepauc.training.plain import SPECS, from_plain, identity_text, recipe_hash, run_id, to_plain
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import NUMERICS_VERSION, by_other_numerics, git_commit
from deepauc.training.run.record import RunRecord

RECIPE = Recipe(
    model=ResNet20Spec(),
    stages=(
        Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2),
        Stage(objective=AUCMargin(margin=0.5), optimizer=PESGSpec(), epochs=3, positives_per_batch=16),
    ),
)
HASH = "818c3e578e484b2f6195eac41a494ab4e7d0bc12d1851d3f3f7468c4ba719925"


@pytest.mark.parametrize("cls", SPECS, ids=lambda cls: cls.__name__)
def test_every_option_stands_in_the_table(cls):
    first = next((first for first, present in RENAMED.items() if present == cls.__name__), cls.__name__)
    assert first in FROZEN, f"add {first} with its options to FROZEN in training/identity.py"
    missing = [field.name for field in fields(cls) if field.init and field.name not in FROZEN[first]]
    assert not missing, (
        f"{cls.__name__} has new options. Add to FROZEN[{first!r}] in training/identity.py, with the default that "
        f"leaves earlier runs as they were: {', '.join(missing)}"
    )
    gone = FROZEN[first].keys() - {field.name for field in fields(cls)}
    assert not gone, f"{', '.join(gone)} of {cls.__name__} stands in stored recipes: the option has to stay readable"


def test_the_name_of_a_recipe_is_what_it_always_was():
    assert recipe_hash(RECIPE) == HASH


def test_a_changed_default_relabels_nothing(monkeypatch):
    brief, whole = to_plain(RECIPE, defaults=False), to_plain(RECIPE)
    monkeypatch.setattr(PESGSpec.__dataclass_fields__["gamma"], "default", 0.5)
    monkeypatch.setitem(PESGSpec.__init__.__kwdefaults__, "gamma", 0.5)
    assert PESGSpec().gamma == 0.5
    assert recipe_hash(RECIPE) == HASH  # its gamma is 0.002
    assert from_plain(brief) == from_plain(whole) == RECIPE
    last = replace(RECIPE.stages[1], optimizer=PESGSpec())
    assert recipe_hash(replace(RECIPE, stages=(RECIPE.stages[0], last))) != HASH


def test_an_option_from_after_a_record_has_the_default_it_came_with(monkeypatch):
    plain = to_plain(PESGSpec(gamma=0.1))
    del plain["momentum"]
    monkeypatch.setitem(PESGSpec.__init__.__kwdefaults__, "momentum", 0.9)
    assert from_plain(plain) == PESGSpec(gamma=0.1, momentum=0.0)


@pytest.fixture
def renamed(monkeypatch):
    """Makes PESGSpec a class of another name, as if its author had renamed it."""

    def rename():
        PESGSpec.__name__ = "ProximalSpec"
        monkeypatch.setitem(RENAMED, "PESGSpec", "ProximalSpec")

    yield rename
    PESGSpec.__name__ = "PESGSpec"


def test_a_renamed_spec_keeps_its_hash_and_is_read_by_both_names(renamed):
    old, old_file = to_plain(RECIPE), settings_toml(Settings(recipe=RECIPE))
    renamed()
    assert recipe_hash(RECIPE) == HASH
    new, new_file = to_plain(RECIPE), settings_toml(Settings(recipe=RECIPE))
    assert new["stages"][1]["optimizer"]["type"] == "ProximalSpec"
    assert from_plain(old) == from_plain(new) == RECIPE
    assert "PESGSpec" in old_file
    assert "ProximalSpec" in new_file
    for text in (old_file, new_file):
        assert build(Settings, tomllib.loads(text)).recipe == RECIPE


def test_the_all_pairs_objective_is_read_by_its_first_name():
    stage = Stage(objective=PairwiseAUC(margin=0.5), optimizer=SGDSpec(), epochs=1)
    recipe = Recipe(model=ResNet20Spec(), stages=(stage,))
    assert Pairwise is PairwiseAUC
    assert '"type": "Pairwise"' in identity_text(recipe)  # what its runs are known by
    plain = to_plain(recipe)
    assert plain["stages"][0]["objective"]["type"] == "PairwiseAUC"
    plain["stages"][0]["objective"]["type"] = "Pairwise"
    assert from_plain(plain) == recipe
    file = settings_toml(Settings(recipe=recipe)).replace('"PairwiseAUC"', '"Pairwise"')
    assert build(Settings, tomllib.loads(file)).recipe == recipe


def test_a_spec_of_a_user_goes_by_its_own_name_and_defaults():
    @dataclass(frozen=True, kw_only=True)
    class PESGSpec:  # the name of one of ours
        lr: float = 0.3
        more: int = 1

    assert to_plain(PESGSpec(), defaults=False) == {"type": "PESGSpec"}
    assert to_plain(PESGSpec(lr=0.1), defaults=False) == {"type": "PESGSpec", "lr": 0.1}


def test_a_run_is_named_by_recipe_data_seed_and_origin():
    names = {run_id(RECIPE, data, seed, origin=o) for data in "ab" for seed in (0, 1) for o in (None, "", "x")}
    assert len(names) == 12


HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src" / "deepauc").mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return tmp_path


def test_the_commit_of_a_checkout(checkout):
    package = checkout / "src" / "deepauc"
    assert git_commit.__wrapped__(package) is None  # nothing committed yet
    (checkout / ".git" / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{HEX} refs/heads/main\n")
    assert git_commit.__wrapped__(package) == HEX
    (checkout / ".git" / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    assert git_commit.__wrapped__(package) == "a" * 40
    (checkout / ".git" / "HEAD").write_text(HEX + "\n")
    assert git_commit.__wrapped__(package) == HEX
    (checkout / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit.__wrapped__(package) is None


def test_the_commit_of_a_worktree(checkout, tmp_path):
    own = checkout / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/topic\n")
    (own / "commondir").write_text("../..\n")
    (checkout / ".git" / "refs" / "heads" / "topic").write_text(HEX + "\n")
    tree = tmp_path / "w"
    (tree / "src" / "deepauc").mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert git_commit.__wrapped__(tree / "src" / "deepauc") == HEX


def test_an_installed_package_has_no_commit(checkout):
    (checkout / ".git" / "HEAD").write_text(HEX)
    installed = checkout / "site-packages" / "deepauc"  # of an environment inside a checkout of something else
    installed.mkdir(parents=True)
    assert git_commit.__wrapped__(installed) is None


def test_a_run_from_before_counts_as_numerics_version_1():
    old = {"hardware": "a CPU", "versions": {"torch": "2"}, "code_version": "0" * 64}
    assert RunRecord.of(old).made_by == {"hardware": "a CPU", "versions": {"torch": "2"}, "commit": None, "numerics": 1}
    assert by_other_numerics([old, {"numerics": NUMERICS_VERSION + 1}]) == 1 + (NUMERICS_VERSION != 1)
