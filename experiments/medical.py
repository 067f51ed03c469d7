"""The medical data sets and their stand-ins: skin, breast, lung, tissue, chest X-rays.

deepauc study run experiments/medical.py medical --data DIR --device cuda
"""

from deepauc.studies.entry import Entry
from experiments.clinical import best, chest, packs, page, studies

STUDIES = [
    *(
        Entry(
            studies=one,
            page=page.PAGES[one.name],
            page_after_run=True,
            pack=packs.pack_of,
            settled=best.settled,
        )
        for one in (studies.medical(), studies.melanoma(), studies.ddsm(), studies.pcam())
    ),
    *chest.ENTRIES,
]
