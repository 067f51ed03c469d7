"""A real browser, Debian's chromium driven by playwright; tests skip, and say so, where one is missing."""

import os
import shutil

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 180_000  # ms, for whatever a browser beside other work is asked for
DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def open_address(chromium):
    """Opens an address in light or dark on a screen of a size; notes what the console says and what is asked for."""
    contexts = []

    def open_it(address, *, size=DESKTOP, scheme="light"):
        context = chromium.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.said, page.requested = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.requested.extend([request]))
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
