"""Settings of the tests that hand a reader whatever one can think of: the same examples in every run."""

import os

from hypothesis import HealthCheck, settings

BUDGET = int(os.environ.get("DEEPAUC_FUZZ_EXAMPLES", "200"))  # examples for each reader


def share_of(tests):
    """For each of so many tests of one reader."""
    return settings(
        derandomize=True,
        deadline=None,
        max_examples=BUDGET // tests,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
