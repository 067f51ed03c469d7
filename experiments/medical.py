"""The medical data sets and their stand-ins: skin, breast, lung, tissue, chest X-rays.

deepauc study run experiments/medical.py medical --data DIR --device cuda
"""

from deepauc.studies.entry import Entry
from experiments.clinical import best, chest, chest_page, packs, page, studies

STUDIES = [
    *(
        Entry(
            name=one.name,
            title=one.title,
            studies=one,
            page=page.PAGES[one.name],
            page_after_run=True,
            pack=packs.pack_of,
            settled=best.settled,
        )
        for one in (studies.medical(), studies.melanoma(), studies.ddsm(), studies.pcam())
    ),
    *(
        Entry(name=one.design.name, title=one.design.title, own=one, page=chest_page.PAGES[one.design.name])
        for one in chest.STUDIES
    ),
]
