"""Files that several tests of this room are about."""

import io

import pytest


@pytest.fixture
def dicom():
    """Writes a DICOM file of stored values, with tags, as bytes."""
    pydicom = pytest.importorskip("pydicom")

    def written(pixels, *, photometric="MONOCHROME2", bits=16, signed=False, **tags):
        from pydicom.dataset import FileDataset, FileMetaDataset
        from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        dataset = FileDataset("x", {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID, dataset.SOPInstanceUID = SecondaryCaptureImageStorage, meta.MediaStorageSOPInstanceUID
        dataset.PatientName, dataset.PatientID = "Doe^Jane", "SECRET-1"
        dataset.Rows, dataset.Columns = pixels.shape[:2]
        dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
        if pixels.ndim == 3:
            dataset.PlanarConfiguration = 0
        dataset.PhotometricInterpretation = photometric
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = pixels.itemsize * 8, bits, bits - 1
        dataset.PixelRepresentation = int(signed)
        dataset.PixelData = pixels.tobytes() + b"\0" * (pixels.nbytes % 2)
        for name, value in tags.items():
            setattr(dataset, name, value)
        buffer = io.BytesIO()
        pydicom.dcmwrite(buffer, dataset)
        return buffer.getvalue()

    return written
