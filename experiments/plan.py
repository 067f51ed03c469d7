"""What `deepauc train` plans by itself, change by change, in cross-validation.

deepauc study run experiments/plan.py --device cuda
"""

from experiments.catalogue import entries

STUDIES = [entries()["plan"]]
