"""Pictures are written, show what they are given, and leave matplotlib's global state alone."""

import numpy as np
import pytest
from PIL import Image

from deepauc.reporting.figures.plots import BoundaryPanel, Curve, IntervalColumn, boundaries, curves, intervals


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"), dtype=int)


def panel(field, **options):
    places = np.array([[0.5, 0.5], [-0.5, -0.5]])
    return BoundaryPanel(
        title="t", field=field, places=places, labels=np.array([1.0, 0.0]), flipped=np.array([False, False]), **options
    )


def slope():
    x = np.linspace(-1, 1, 30)
    return x[None, :] + x[:, None]


WINDOW = ((-1.0, 1.0), (-1.0, 1.0))


def test_boundaries_draws_each_field(tmp_path):
    picture = boundaries(tmp_path / "a.png", [[panel(slope()), panel(slope())]], row_titles=["r"], window=WINDOW)
    other = boundaries(tmp_path / "b.png", [[panel(slope()), panel(-slope())]], row_titles=["r"], window=WINDOW)
    difference = np.abs(pixels(picture) - pixels(other)).sum(-1) > 0
    width = difference.shape[1]
    assert difference[:, width // 2 + 20 :].mean() > 0.3  # the second panel's colours change sides
    assert difference[:, : width // 2 - 20].mean() < 0.01


def test_a_field_without_a_boundary_is_drawn_without_a_warning(tmp_path):
    boundaries(tmp_path / "a.png", [[panel(np.ones((5, 5)), before=-np.ones((5, 5)))]], row_titles=["r"], window=WINDOW)


def test_curves_leave_room_for_the_highest_panel(tmp_path):
    """The axes are shared: the second panel's peak of 40 must not be cut off at the first one's 10."""
    x = np.arange(1.0, 50.0)

    def line(height):
        y = np.full_like(x, height)
        return Curve(name="c", x=x, y=y, low=y - 1, high=y + 1)

    def top(path):
        blue = np.abs(pixels(path) - np.array([0x00, 0x72, 0xB2])).sum(-1) < 40
        right = blue[:, 2 * blue.shape[1] // 3 :]  # inside the second panel
        return np.flatnonzero(right.any(1)).min() / len(blue)

    panels = [("low", [line(10.0)]), ("high", [line(40.0)])]
    path = curves(tmp_path / "c.png", panels, x_label="x", y_label="y", log_x=True, mark_x=10)
    assert 0.05 < top(path) < 0.3


@pytest.mark.parametrize("count", [1, 5])
def test_intervals(tmp_path, count):
    values = np.linspace(0.7, 0.9, count)
    column = IntervalColumn(name="CE", values=values, low=values - 0.05, high=values + 0.02)
    path = intervals(tmp_path / "i.png", [column, column], y_label="AUC")
    assert len(np.unique(pixels(path).reshape(-1, 3), axis=0)) > 20


def test_pyplot_is_not_touched(tmp_path):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    test_intervals(tmp_path, 2)
    assert plt.get_fignums() == before
