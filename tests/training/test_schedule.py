"""Learning rates as functions of the iteration."""

import itertools

import pytest

from deepauc.training.schedule import Constant, Cosine, Cyclic, Steps


def rates(schedule, total=100, per_epoch=10):
    return [schedule.factor(t, total=total, per_epoch=per_epoch) for t in range(total)]


def test_steps_in_epochs_and_in_iterations():
    epochs = Steps(milestones=(5, 8), factor_each=0.1)
    found = rates(epochs)
    assert (found[49], found[50], found[80]) == pytest.approx((1.0, 0.1, 0.01))
    assert [t for t in range(100) if epochs.renews(t, per_epoch=10)] == [50, 80]
    iterations = Steps(milestones=(20, 80), factor_each=1 / 3, unit="iterations")
    assert rates(iterations)[19:21] == pytest.approx([1.0, 1 / 3])
    assert iterations.renews(80, per_epoch=10)


def test_cosine_with_warm_up():
    found = rates(Cosine(warmup=10, floor=0.1))
    assert found[0] == pytest.approx(0.1)
    assert found[9] == found[10] == pytest.approx(1.0)
    assert all(a >= b for a, b in itertools.pairwise(found[10:]))
    assert 0.1 < found[-1] < 0.11


def test_cyclic_is_the_papers_melanoma_schedule():
    found = [3e-5 * f for f in rates(Cyclic(top=8.0, period=8), total=160)]
    assert found[0] == pytest.approx(3e-5)
    assert max(found) == pytest.approx(2.4e-4)
    assert found[40] == pytest.approx(2.4e-4)  # half way through 8 epochs of 10 steps
    assert found[80] == pytest.approx(3e-5)


def test_constant():
    assert set(rates(Constant())) == {1.0}
    assert not Constant().renews(0, per_epoch=1)


@pytest.mark.parametrize("make", [lambda: Steps(milestones=(5, 3)), lambda: Steps(milestones=(0,)),
                                  lambda: Steps(milestones=(1,), factor_each=0), lambda: Cyclic(period=0)])  # fmt: skip
def test_bad_schedules(make):
    with pytest.raises(ValueError):
        make()
