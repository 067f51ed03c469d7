"""What a plan adds where rows are bags of images: how their scores are pooled, and how many images a step sees."""

from __future__ import annotations

from deepauc.models.bags import BagSpec, Pooling
from deepauc.models.build import ModelSpec
from deepauc.training.plan.decision import ASKED, Decision, Fact
from deepauc.training.plan.inputs import BagSizes, PlanOptions

POOLING: Pooling = "smooth-max"  # has no weights to learn; see results/bags.md
MOST_IMAGES = 16  # of a bag in a step; not tuned


def images_in_step(bags: BagSizes | None, options: PlanOptions) -> float:
    """Of one row, on average: what a step costs."""
    return 1.0 if bags is None else min(bags.mean, options.images_per_bag or MOST_IMAGES)


def plan_bags(model: ModelSpec, bags: BagSizes, options: PlanOptions) -> tuple[ModelSpec, int | None, list[Decision]]:
    """The network of bags around that of an image, the most images of a bag in a step (None: all), and why."""
    pooling = options.pooling or POOLING
    most = options.images_per_bag or MOST_IMAGES
    facts: dict[str, Fact] = {"mean": bags.mean, "largest": bags.largest, "most": most}
    reason = ("bags",) if options.pooling is None else ("bags", *ASKED)
    decisions = [
        Decision(name="pooling", value=pooling, reason=reason, rests_on=facts),
        Decision(
            name="images per bag",
            value="all" if bags.largest <= most else f"at most {most}",
            reason=("all",) if bags.largest <= most else ("drawn",),
            rests_on=facts,
        ),
    ]
    return BagSpec(image=model, pooling=pooling), None if bags.largest <= most else most, decisions
