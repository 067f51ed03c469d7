"""Objectives beyond AUROC, each judged on its own metric and on the others.

deepauc study run experiments/objectives.py objectives --device cuda --max-minutes 25
"""

from deepauc.studies.entry import Entry
from experiments.beyond.page import page
from experiments.beyond.studies import objectives, on_a_cpu

STUDIES = [Entry(studies=one, page=page(one)) for one in (objectives(), on_a_cpu())]
