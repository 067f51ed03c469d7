"""The medical data sets and their stand-ins: skin, breast, lung, tissue, chest X-rays.

deepauc study run experiments/medical.py medical --data DIR --device cuda
"""

from experiments.catalogue import entries

STUDIES = [entries()[name] for name in ("medical", "melanoma", "ddsm", "pcam", "chest", "chest-printed", "chexpert")]
