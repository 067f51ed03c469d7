"""Objectives beyond AUROC, each judged on its own metric and on the others.

deepauc study run experiments/objectives.py objectives --device cuda --max-minutes 25
"""

from deepauc.studies.entry import Entry
from experiments.benchmarks import objectives

STUDIES = [Entry.of(objectives.objectives()), Entry.of(objectives.on_a_cpu())]
