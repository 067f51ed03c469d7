"""Training that is stopped, by Ctrl-C at a step or by a kill at a checkpoint, and inputs that note what is read."""

import os
import signal
from contextlib import contextmanager
from itertools import count
from unittest.mock import patch

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs
from deepauc.training.engine import trainer
from deepauc.training.engine.fast.fast_step import FastEngine


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is tidied up."""


@contextmanager
def killed_at_checkpoint(moment):
    """Dies before this checkpoint is written, counted from 1; inside, and where there are so many."""
    saves, save = count(1), trainer.save_state

    def save_or_die(path, state):
        if next(saves) == moment:
            raise Killed
        save(path, state)

    with patch.object(trainer, "save_state", save_or_die):
        yield


def ctrl_c_at(step):
    """`progress` of a training: presses Ctrl-C once, when it is told of this step, counted from 1."""
    steps = count(1)

    def press(_):
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGINT)

    return press


@contextmanager
def power_cut_at(call):
    """The fast engine stops at this call of its `run_epoch`, counted from 1."""
    calls, run_epoch = count(1), FastEngine.run_epoch

    def run_or_stop(self, epochs):
        if next(calls) == call:
            raise RuntimeError("power cut")
        run_epoch(self, epochs)

    with patch.object(FastEngine, "run_epoch", run_or_stop), pytest.raises(RuntimeError, match="power cut"):
        yield


class RecordingInputs(ArrayInputs):
    """Remembers which rows were asked for."""

    def __init__(self, array):
        super().__init__(array)
        self.asked = set()

    def __call__(self, indices):
        self.asked |= set(np.asarray(indices).tolist())
        return super().__call__(indices)
