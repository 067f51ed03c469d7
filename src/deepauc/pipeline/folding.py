"""Whether a table is cross-validated, and in which folds."""

from __future__ import annotations

from dataclasses import dataclass

from deepauc.data.folds import AUTO_BELOW, Folds, auto_folds, deal_folds, given_folds, rarer_class
from deepauc.names import group_word
from deepauc.pipeline.trivial_baselines import has_plain_labels
from deepauc.training.config import AUTO, Settings, SplitSettings
from deepauc.training.engine.distributed import several_ranks
from deepauc.training.plan.decision import ASKED, Decision, Fact
from deepauc.training.prepare.prepare import Rows
from deepauc.training.run.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """The folds of some rows, and why there are as many."""

    folds: Folds
    decision: Decision
    column: str | None = None


def dealt_folds(settings: Settings, rows: Rows, folder: RunFolder | None = None) -> Dealt | None:
    """The folds that settings ask for, or that so few rows need; None for one split.

    folder: where the run goes; an unfinished run of one split goes on as such. A ValueError where folds were asked for
    and cannot be.
    """
    asked = settings.folds
    if asked == 0:
        return None
    if asked != AUTO:
        _require_possible(settings, rows)
    number = asked if isinstance(asked, int) else 0
    column = asked if isinstance(asked, str) and asked != AUTO else None
    reason: tuple[str, ...] = ASKED
    facts: dict[str, Fact] = {"group": group_word(rows.task.group_column), "split_seed": settings.split.seed}
    together = rows.together
    if asked == AUTO:
        number = 0 if _one_split(settings, rows, folder) else auto_folds(rows.task, together=together)
        train = rows.task.labelled("train")
        rarer = rarer_class(rows.task.labels[train], None if together is None else together[train])
        few = "few" if rows.task.groups is None else "few groups"
        reason, facts = (few,), {**facts, "rarer": rarer, "below": AUTO_BELOW}
        if number == 0:
            return None
    if column is not None:
        assert rows.folds is not None
        folds = given_folds(rows.task, rows.folds, column=column, together=together)
        reason, facts = ("column",), {**facts, "column": column}
    else:
        folds = deal_folds(rows.task, folds=number, seed=settings.split.seed, together=together)
        reason += ("one per group",) if rows.task.groups is not None else ()
        reason += ("identical together",) if rows.digests is not None else ()
        reason += ("own seed",)
    reason += ("own test",) if "test" in rows.task.parts else ()
    decision = Decision(name="folds", value=len(folds), reason=(*reason, "fixed"), rests_on=facts)
    return Dealt(folds=folds, decision=decision, column=column)


def _one_split(settings: Settings, rows: Rows, folder: RunFolder | None) -> bool:
    """Whether something other than the number of rows asks for one split."""
    return (
        settings.recipe is not None
        or bool(settings.tune)
        or settings.data.split_of is not None
        or settings.split != SplitSettings()
        or several_ranks()
        or (folder is not None and folder.record_path.exists() and folder.record().folds is None)
        or not has_plain_labels(rows.task)
    )


def _require_possible(settings: Settings, rows: Rows) -> None:
    if settings.data.split_of is not None:
        raise ValueError("folds and the split of another run exclude each other: leave out one of the two.")
    if several_ranks():
        raise ValueError("folds are trained by one process: start without torchrun, or ask for one split (folds 0).")
    if settings.recipe is not None and settings.recipe.stages[-1].on_views:
        raise ValueError("this recipe trains features and gives no scores to judge: ask for one split (folds 0).")
    if not has_plain_labels(rows.task):
        raise ValueError("folds need labels of 0 and 1: this set has soft or uncertain ones. Ask for folds 0.")
