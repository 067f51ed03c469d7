"""What `deepauc train` plans by itself, change by change, in cross-validation.

deepauc study run experiments/plan.py --device cuda
"""

from deepauc.studies.entry import Entry
from experiments.planning import page
from experiments.planning.changes import plan_set

STUDIES = [Entry(studies=plan_set(), page=page.PAGE)]
