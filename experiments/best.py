"""The search for the best recipe on C10 at 1 %, lever by lever.

deepauc study run experiments/best.py --cells levers --device cuda --max-minutes 25
"""

from experiments.catalogue import entries

STUDIES = [entries()["best"]]
