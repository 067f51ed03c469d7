"""Who may ask: this computer's own browser, at this address, with the token. Everyone else is refused unheard."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI application around another that lets only the holder of the token through, and hardens every answer.

    The Host header must name this address: a page whose name was made to point here (DNS rebinding) is refused. The
    token in the first address becomes a cookie that no script can read and no other site's request carries; both are
    compared in constant time. A POST must come from this page itself: Origin, and Sec-Fetch-Site where a browser sends
    it.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token.encode()
        self._hosts = frozenset(f"{name}:{port}" for name in (LOOPBACK, "localhost"))
        self._cookie = f"deepauc-{port}"  # a browser sends cookies to all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._answer(scope)
        await (self._app if refused is None else refused)(scope, receive, hardened)

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered instead of the page; None: it may pass."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return PlainTextResponse("Open the address that deepauc serve has printed, not another one.", 403)
        if scope["method"] not in ("GET", "HEAD") and not _from_this_page(headers, hosts[0]):
            return PlainTextResponse("Only the page itself may send images.", 403)
        offered = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if offered is not None and scope["path"] == "/" and self._is_token(offered[0]):
            answer = RedirectResponse("/", 303)  # the token leaves the address bar
            answer.set_cookie(self._cookie, self._token.decode(), path="/", httponly=True, samesite="strict")
            return answer
        if not self._is_token(Request(scope).cookies.get(self._cookie, "")):
            return PlainTextResponse("Open the address that deepauc serve has printed: it holds the token.", 403)
        return None

    def _is_token(self, offered: str) -> bool:
        return secrets.compare_digest(offered.encode("utf-8", "surrogateescape"), self._token)


def _from_this_page(headers: Headers, host: str) -> bool:
    same_site = headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return same_site and headers.getlist("origin") == [f"http://{host}"]
