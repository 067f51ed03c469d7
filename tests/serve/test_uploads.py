"""Hostile and unlucky uploads: each gets one clear answer, and the next image is scored as if nothing had been."""

import io
import json
import socket
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra serve is not installed: pip install 'deepauc[serve]'")

from deepauc.serve import app


def picture(kind, size=(40, 40)):
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)).save(content, kind)
    return content.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width, height, data=b"\x00"):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def deflated_dicom():
    return b"\x00" * 128 + b"DICM" + b"1.2.840.10008.1.2.1.99" + zlib.compress(b"\x00" * 10_000_000)


HOSTILE = {
    "empty": b"",
    "text": b"file,label\n1.png,0\n",
    "html": b"<!doctype html><script>alert(1)</script>",
    "pdf": b"%PDF-1.7\n%\xe2\xe3",
    "zip": b"PK\x03\x04" + b"\x00" * 100,
    "gif": picture("GIF"),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "noise": np.random.default_rng(1).bytes(5000),
    "cut jpeg": picture("JPEG")[:300],
    "cut png": picture("PNG")[:300],
    "cut tiff": picture("TIFF")[:300],
    "bomb by its header": png_of(100_000, 100_000),
    "bomb by its pixels": png_of(20_000, 20_000, b"\x00" * 10_000_000),
    "bomb in dicom": deflated_dicom(),
    "cut dicom": b"\x00" * 128 + b"DICM\x02\x00\x00\x00UL\x04\x00",
    "dicom with nothing": b"\x00" * 128 + b"DICM",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_image_is_told_in_one_line_and_the_next_is_scored(client, spot, name):
    status, _, body = client.judge(HOSTILE[name])
    assert status == 422
    message = json.loads(body)["error"]
    assert message.endswith(".")
    assert "\n" not in message
    assert "Traceback" not in message
    assert client.judge(spot)[0] == 200


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP", "JPEG2000"])
def test_pictures_of_all_kinds_are_scored(client, kind):
    status, _, body = client.judge(picture(kind))
    assert status == 200
    assert np.isfinite(json.loads(body)["labels"][0]["score"])


def test_dicom_is_scored_and_no_tag_of_it_comes_back(client, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = generate_uid()
    dataset.PatientName, dataset.PatientID = "Secret^Name", "MRN-4711"
    dataset.Rows = dataset.Columns = 16
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    dataset.PixelData = np.arange(256, dtype=np.uint16).tobytes()
    dataset.save_as(tmp_path / "scan.dcm", enforce_file_format=True)
    status, _, body = client.judge((tmp_path / "scan.dcm").read_bytes())
    assert status == 200
    assert b"Secret" not in body
    assert b"4711" not in body


def test_more_bytes_than_the_decoders_take_are_refused_before_they_are_read(client, spot):
    declared = str(app.MAX_FILE_BYTES + 1)
    began = time.monotonic()
    status, headers, _ = client.judge(b"\x89PNG", headers={"Content-Length": declared})
    assert status == 413
    assert headers["Connection"] == "close"
    assert time.monotonic() - began < 10
    assert client.judge(spot)[0] == 200


def test_an_image_as_large_as_declared_and_no_larger(client, spot, monkeypatch):
    monkeypatch.setattr(app, "MAX_FILE_BYTES", len(spot))
    assert client.judge(spot)[0] == 200
    assert client.judge(spot + b"\x00")[0] == 413


def test_chunks_beyond_the_declared_size_are_refused(client, spot, monkeypatch):
    monkeypatch.setattr(app, "MAX_FILE_BYTES", 1000)
    many = b"3e8\r\n" + b"a" * 1000 + b"\r\n"
    status, _, _ = client.judge(
        many * 20 + b"0\r\n\r\n", headers={"Content-Length": "10", "Transfer-Encoding": "chunked"}
    )
    assert status in (400, 413)
    assert client.judge(spot)[0] == 200


def test_a_body_of_unknown_size_is_refused(client):
    assert client.judge(b"0\r\n\r\n", headers={"Transfer-Encoding": "chunked", "Content-Length": None})[0] == 411


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x", "text/plain", None])
def test_only_a_raw_body_is_taken(client, spot, kind):
    assert client.judge(spot, headers={"Content-Type": kind})[0] == 415


def begun(client, spot, declared):
    """A connection that has sent its headers and half of a file."""
    connection = socket.create_connection(("127.0.0.1", client.server.port), timeout=30)
    head = [
        "POST /judge HTTP/1.1",
        f"Host: {client.host}",
        f"Origin: http://{client.host}",
        f"Cookie: {client.cookie}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {declared}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + spot[: len(spot) // 2])
    return connection


def wait_until(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_slow_body_is_given_up_and_holds_up_nobody_for_longer(client, spot, monkeypatch):
    monkeypatch.setattr(app, "UPLOAD_SECONDS", 1.0)
    with begun(client, spot, len(spot)) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")
    assert client.judge(spot)[0] == 200


def test_a_browser_that_goes_away_leaves_the_place_to_the_next(client, spot):
    begun(client, spot, len(spot)).close()
    assert wait_until(lambda: client.judge(spot)[0] == 200)


def test_one_job_at_a_time(client, spot):
    with begun(client, spot, len(spot)) as connection:
        assert wait_until(lambda: client.judge(spot)[0] == 503)
        assert client.ask("GET", "/")[0] == 200  # the page itself is there meanwhile
        connection.sendall(spot[len(spot) // 2 :])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert client.judge(spot)[0] == 200


def test_never_are_two_images_decoded_at_once(client, served, spot, monkeypatch):
    inside, most, guard = 0, 0, threading.Lock()
    judge = type(served).judge

    def counted(self, content):
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        try:
            return judge(self, content)
        finally:
            with guard:
                inside -= 1

    monkeypatch.setattr(type(served), "judge", counted)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.judge(spot)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {200, 503}
    assert most == 1


def test_a_fault_of_our_own_is_an_answer_without_details(client, served, spot, monkeypatch):
    def fail(self, content):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(type(served), "judge", fail)
        status, _, body = client.judge(spot)
    assert status == 500
    assert list(json.loads(body)) == ["error"]
    assert b"secret" not in body
    assert client.judge(spot)[0] == 200


def test_nothing_is_written_anywhere(client, served, spot, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in served.folder.rglob("*")}
    assert client.judge(spot)[0] == 200
    assert client.judge(HOSTILE["cut png"])[0] == 422
    assert list(tmp_path.iterdir()) == []
    assert before == {path: path.stat().st_mtime_ns for path in served.folder.rglob("*")}
