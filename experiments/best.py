"""The two searches for the best recipe, and the cells in which it is used.

deepauc study run experiments/best.py --cells menu --device cuda --max-minutes 25
"""

from deepauc.studies.entry import Entry
from experiments.search import page
from experiments.search.cells import best_set, settled

STUDIES = [Entry(studies=best_set(), page=page.PAGE, settled=settled)]
