"""The search for the best recipe on C10 at 1 %, lever by lever.

deepauc study run experiments/best.py --cells levers --device cuda --max-minutes 25
"""

from deepauc.studies.entry import Entry
from experiments.search import page
from experiments.search.levers import best_set

STUDIES = [Entry.of(best_set(), page=page.PAGE)]
