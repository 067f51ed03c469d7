"""Whether scores are means over copies of an image: where that is asked for, or minutes are left over for it.

It makes every prediction slower, so that `timing.with_copies` buys it last.
"""

from __future__ import annotations

from deepauc.training.plan.decision import ASKED, Decision
from deepauc.training.plan.inputs import Fingerprint, PlanOptions

NAME = "test-time augmentation"  # of the decision
NOT_ASKED = ("slower",)


def plan_copies(fingerprint: Fingerprint, options: PlanOptions) -> tuple[int, list[Decision]]:
    """How many, and why. Nothing is said of rows of numbers."""
    number = options.tta or 0
    if len(fingerprint.shape) != 3:
        if number:
            raise ValueError("tta averages augmented copies of an image, and these inputs are numbers: leave it out.")
        return 0, []
    reason = NOT_ASKED if options.tta is None else ASKED
    return number, [Decision(name=NAME, value=number, reason=reason)]
