"""Whether a score is the mean over changed copies of an image: where that ranked better and takes little of training.

A copy takes the time of a score in every later use of the network too; `predict --tta 0` goes without.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepauc.training.choice import Choice
from deepauc.training.plan_inputs import Fingerprint, PlanOptions

COPIES = 8
SMALLEST_SIDE, LARGEST_SIDE = 28, 64  # pixels of the sets they were tried on (results/plan.md, results/medical.md)
MOST_OF_TRAINING = 1 / 5
NAME = "copies of an image"


def plan_copies(
    fingerprint: Fingerprint, options: PlanOptions, *, an_image: float, training: float, guard: bool
) -> tuple[int, list[Choice]]:
    """How many, and why. Nothing is said of rows of numbers. Where minutes are named the clock decides (`timing`).

    an_image, training: multiply-adds of a forward pass and of all stages. guard: the networks of both stages are
    compared on validation, and all parts scored once more where the first one is kept.
    """
    if len(fingerprint.shape) != 3:
        if options.tta:
            raise ValueError("tta scores changed copies of an image, and these are numbers: leave it out.")
        return 0, []
    if options.tta is not None:
        return options.tta, [_said(options.tta, "asked for")]
    height, width = fingerprint.shape[:2]
    if not SMALLEST_SIDE <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
        why = f"tried on images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels only, not {height}x{width}"
        return 0, [_said(0, f"{why}; --tta {COPIES} has them")]
    scored = sum(rows for part, rows in fingerprint.rows.items() if part != "train")
    passes = COPIES * (2 * scored + fingerprint.rows["validation"] if guard else scored)
    share = passes * an_image / training
    if options.minutes is None and share > MOST_OF_TRAINING:
        return 0, [_said(0, f"those of {scored:,} rows would take {share:.0%} of training; --tta {COPIES} has them")]
    why = f"their mean ranked better over five sets (results/plan.md); a score takes {COPIES} times as long, "
    return COPIES, [_said(COPIES, f"{why}--tta 0 goes without")]


def without_copies(choices: Sequence[Choice], why: str) -> tuple[Choice, ...]:
    """The choices of a plan whose copies are left out after all."""
    return tuple(_said(0, why) if choice.name == NAME else choice for choice in choices)


def _said(number: int, reason: str) -> Choice:
    return Choice(name=NAME, value=f"{number}, changed as in training" if number else "none", reason=reason)
