"""A served run, a server in a thread, and requests as anybody could write them."""

import http.client
import io
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from deepauc.serve.judgement import ServedRun


@pytest.fixture(scope="session")
def png():
    """An image (H, W, C) as the bytes of a PNG file."""

    def encode(image):
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(content, "PNG")
        return content.getvalue()

    return encode


@pytest.fixture(scope="session")
def spot(spots_task, png):
    """One test image of the runs, as a file."""
    return png(spots_task().source(np.array([-1]))[0])


@pytest.fixture(scope="session")
def served(run_folders):
    return ServedRun(run_folders / "auc")


@dataclass
class Client:
    """A browser that has opened the address: it has the cookie, and says where it comes from."""

    server: object
    cookie: str = ""

    @property
    def host(self):
        return f"127.0.0.1:{self.server.port}"

    def ask(self, method, path, *, body=None, headers=None, own=True):
        """(status, headers, body). own: with what this page's own requests have."""
        sent = {"Host": self.host}
        if own:
            sent |= {"Cookie": self.cookie}
            if method == "POST":
                sent |= {"Origin": f"http://{self.host}", "Content-Type": "application/octet-stream"}
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                for one in [value] if isinstance(value, str) else value or []:
                    connection.putheader(name, one)
            if body is not None and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def judge(self, body, **more):
        return self.ask("POST", "/judge", body=body, **more)


@pytest.fixture
def serve_run():
    """Serve a run in a thread; a client that holds the cookie."""
    pytest.importorskip("starlette", reason="the extra serve is not installed: pip install 'deepauc[serve]'")
    from deepauc.serve.server import LocalServer

    servers = []

    def begin(run):
        server = LocalServer(run)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        client = Client(server)
        parts = urlsplit(server.address)
        status, headers, _ = client.ask("GET", f"{parts.path}?{parts.query}", own=False)
        assert status == 303
        client.cookie = headers["Set-Cookie"].split(";")[0]
        return client

    yield begin
    for server, thread in servers:
        server.stop()
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.fixture
def client(serve_run, served):
    return serve_run(served)
