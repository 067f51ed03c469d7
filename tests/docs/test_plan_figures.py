"""What docs/choosing.md says of the rule for the AUC stage is what the plan does."""

import re
from pathlib import Path

from deepauc.training.plan.length import LEAST_EPOCHS, MOST_EPOCHS, STEPS
from deepauc.training.plan.make import Fingerprint, PlanOptions, make_plan

ROOT = Path(__file__).parents[2]
SENTENCE = (
    r"it is to have \(([\d,]+) steps, but (\d+) epochs at most\), leaves (\d+) epochs or more .*? up to ([\d,]+) grey "
    r"images of 28 pixels, ([\d,]+) of 32 pixels in colour or ([\d,]+) of 64"
)


def rows_with_time(shape: tuple[int, int, int]) -> str:
    """The most training rows, a tenth positive, in steps of 250, for which a CPU's plan has an AUC stage."""

    def stages(rows: int) -> int:
        counts = {"positives": {"train": (rows // 10,)}, "negatives": {"train": (rows - rows // 10,)}}
        data = Fingerprint(rows={"train": rows}, **counts, shape=shape, file_sizes={}, groups=None)
        return len(make_plan(data, PlanOptions(), "cpu").recipe.stages)

    return f"{max(rows for rows in range(500, 16_000, 250) if stages(rows) == 2):,}"


def rule() -> tuple[str, ...]:
    sizes = ((28, 28, 1), (32, 32, 3), (64, 64, 3))
    return f"{STEPS[0]:,}", str(MOST_EPOCHS[0]), str(LEAST_EPOCHS), *map(rows_with_time, sizes)


def test_the_page_quotes_the_rule():
    page = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    (quoted,) = re.finditer(SENTENCE, page)
    assert quoted.groups() == rule()
