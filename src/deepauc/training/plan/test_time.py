"""Whether scores are means over copies of an image: only where that is asked for, as it costs time for good."""

from __future__ import annotations

from deepauc.training.plan.decision import Decision
from deepauc.training.plan.inputs import Fingerprint, PlanOptions


def plan_copies(fingerprint: Fingerprint, options: PlanOptions) -> tuple[int, list[Decision]]:
    """How many, and why. Nothing is said of rows of numbers."""
    number = options.tta or 0
    if len(fingerprint.shape) != 3:
        if number:
            raise ValueError("tta scores changed copies of an image, and these are numbers: leave it out.")
        return 0, []
    if options.tta is not None:
        value, reason = f"{number}, changed as in training" if number else "none", "asked for"
    else:
        value = "none"
        reason = (
            "each takes the time of a score, in every use of the network; --tta 8 takes the mean over eight, which "
        )
        reason += "ranked a little better (results/plan.md)"
    return number, [Decision(name="copies of an image", value=value, reason=reason)]
