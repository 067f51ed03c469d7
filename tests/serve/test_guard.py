"""Who is let in: the right address, the token, the page itself; and what every answer forbids a browser."""

import socket

import pytest

pytest.importorskip("starlette", reason="the extra serve is not installed: pip install 'deepauc[serve]'")

from deepauc.serve.guard import HEADERS


def test_it_listens_on_the_loopback_address_only(client):
    assert client.server._socket.getsockname()[0] == "127.0.0.1"
    others = [found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    for address in set(others) - {"127.0.0.1"}:
        with pytest.raises(OSError, match=r".+"):
            socket.create_connection((address, client.server.port), timeout=2).close()


def test_the_token_becomes_a_cookie_and_leaves_the_address(client):
    token = client.server.address.split("token=")[1]
    status, headers, _ = client.ask("GET", f"/?token={token}", own=False)
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.ask("GET", "/")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/page.css", "/nowhere", "/?token=", "/?token=guess", "/page.js?token="]
)
def test_nothing_is_shown_without_the_token(client, path):
    status, headers, body = client.ask("GET", path, own=False)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert b"spot" not in body


@pytest.mark.parametrize("cookie", ["", "x", "deepauc-{port}=", "deepauc-{port}=gu\xe9ss", "other={token}"])
def test_a_wrong_cookie_is_no_cookie(client, cookie):
    token = client.server.address.split("token=")[1]
    value = cookie.format(port=client.server.port, token=token)
    assert client.ask("GET", "/", own=False, headers={"Cookie": value})[0] == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "[::1]:{port}",
        "",
        "127.0.0.1.nip.io:{port}",
    ],
)
def test_another_host_is_refused_though_the_cookie_is_right(client, host):
    assert client.ask("GET", "/", headers={"Host": host.format(port=client.server.port)})[0] == 403


def test_two_hosts_are_refused(client):
    assert client.ask("GET", "/", headers={"Host": [client.host, "evil.example"]})[0] in (400, 403)


def test_localhost_is_this_computer_too(client):
    assert client.ask("GET", "/", headers={"Host": f"localhost:{client.server.port}"})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_another_site_cannot_send_an_image(client, spot, headers):
    assert client.judge(spot, headers=headers)[0] == 403


def test_the_page_itself_can(client, spot):
    assert client.judge(spot, headers={"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_a_preflight_is_refused(client):
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = client.ask("OPTIONS", "/judge", headers=asked)
    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "own", "status"),
    [("GET", "/", True, 200), ("GET", "/", False, 403), ("GET", "/nowhere", True, 404), ("GET", "/judge", True, 405)],
)
def test_every_answer_carries_the_policy_and_no_answer_opens_it(client, method, path, own, status):
    found, headers, _ = client.ask(method, path, own=own)
    assert found == status
    for name, value in HEADERS.items():
        assert headers.get_all(name) == [value]
    assert "Server" not in headers
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_the_policy_allows_no_inline_script_and_no_other_place(client):
    policy = client.ask("GET", "/")[1]["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "default-src 'none'" in policy
