"""A damaged DICOM file is refused in the words of the field, not of Python."""

import re

import numpy as np
import pytest

from deepauc.data.images.decode import ImageError, decode_image

PYTHONS_WORDS = re.compile(r"object|attribute|Error|None|\bb'|bytes-like|unpack|argument|FileDataset|dtype")


@pytest.mark.parametrize("tag", ["Rows", "Columns", "PhotometricInterpretation", "BitsAllocated", "PixelData"])
def test_a_tag_that_is_missing_is_named(dicom, tag):
    import io

    import pydicom

    dataset = pydicom.dcmread(io.BytesIO(dicom(np.arange(64, dtype=np.uint16).reshape(8, 8))))
    delattr(dataset, tag)
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, dataset)
    with pytest.raises(ImageError, match=f"has no {tag}"):
        decode_image(buffer.getvalue())


def test_cut_anywhere_and_with_bytes_changed(dicom, recwarn):
    whole = dicom(np.arange(64, dtype=np.uint16).reshape(8, 8))
    recwarn.clear()
    rng = np.random.default_rng(0)
    told = []
    for trial in range(150):
        if trial % 2:
            content = whole[: int(rng.integers(132, len(whole)))]
        else:
            changed = bytearray(whole)
            for place in rng.integers(132, len(whole) - 128, 20):
                changed[place] = int(rng.integers(0, 256))
            content = bytes(changed)
        try:
            decode_image(content)
        except ImageError as error:
            told.append(str(error))
    assert len(told) > 70
    assert not [message for message in told if PYTHONS_WORDS.search(message)]
    assert not recwarn.list  # pydicom's would quote the file, with the patient's name
