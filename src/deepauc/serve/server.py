"""The page on a port of this computer's own, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket

import uvicorn

from deepauc.serve.app import served_app
from deepauc.serve.guard import LOOPBACK, Guard
from deepauc.serve.judgement import ServedRun

CONNECTIONS = 64  # open at the same time; a browser makes six


class LocalServer:
    """A server that only this computer can reach: the socket is bound to the loopback address and to nothing else."""

    def __init__(self, run: ServedRun, *, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind((LOOPBACK, port))
            self._socket.listen()  # whoever comes before `run` waits
        except OSError as error:
            self._socket.close()
            raise ValueError(f"port {port} cannot be used ({error.strerror}): name another with --port.") from None
        self.port: int = self._socket.getsockname()[1]
        self._token = secrets.token_urlsafe(32)
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(served_app(run), token=self._token, port=self.port),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,  # nobody stands between, so nobody may speak for another address
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=2,
            )
        )

    @property
    def address(self) -> str:
        """With the token: whoever knows it may ask."""
        return f"http://{LOOPBACK}:{self.port}/?token={self._token}"

    def run(self) -> None:
        """Until Ctrl-C, which arrives as KeyboardInterrupt, or `stop` from another thread."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True
