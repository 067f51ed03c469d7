"""The page of `deepauc serve` in a real browser: files dropped and chosen, thresholds, faults, other sites."""

import functools
import http.server
import threading

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra serve is not installed: pip install 'deepauc[serve]'")

from deepauc.serve.judgement import ServedRun
from deepauc.serve.server import LocalServer
from deepauc.training.run.run import Run

PHONE, DESKTOP = {"width": 400, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module", params=["auc", "multi"])
def server(request, run_folders):
    server = LocalServer(ServedRun(run_folders / request.param))
    server.name = request.param
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.fixture
def open_page(open_address, server):
    """Opens the server's page; see `open_address`."""
    return lambda **screen: open_address(server.address, **screen)


@pytest.fixture(scope="module")
def images(server, tmp_path_factory, spots_task):
    """The first test images of the run, and a text that calls itself an image by a name that would be markup."""
    labels = ("spot",) if server.name == "auc" else ("spot", "coin & <b>", "عِلّة")
    folder, task = tmp_path_factory.mktemp("images"), spots_task(label_names=labels)
    paths = []
    for row in task.parts["test"][:2]:
        paths.append(folder / task.ids[row])
        Image.fromarray(task.source(np.array([row]))[0, ..., 0]).save(paths[-1])
    paths.append(folder / "<img src=x onerror=alert(1)>.png")
    paths[-1].write_text("no image")
    return paths


def scored(page, count):
    page.wait_for_function("count => document.querySelectorAll('.result').length === count", arg=count)
    page.wait_for_function("document.getElementById('status').textContent.endsWith('.')")


def test_the_address_is_left_without_its_token_and_nothing_else_is_asked_for(open_page, server):
    page = open_page()
    home = f"http://127.0.0.1:{server.port}/"
    assert page.url == home
    assert page.said == []
    assert {request.url for request in page.requested} == {server.address, home, f"{home}page.css", f"{home}page.js"}
    assert page.evaluate("document.cookie") == ""
    assert "Not a medical device" in page.locator("header .device").text_content()


def test_chosen_files_get_score_verdict_position_and_map(open_page, server, images, run_folders):
    page = open_page()
    page.set_input_files("#files", [str(path) for path in images])
    scored(page, 3)
    labels = 1 if server.name == "auc" else 3
    good = page.locator(".result:not(.failed)")
    assert good.count() == 2
    assert good.first.locator("[data-score]").count() == labels
    assert good.first.locator(".strip").count() == labels
    natural = good.first.locator("img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert len(natural) == labels
    assert min(natural) > 300
    scores, _ = Run(run_folders / server.name).scores("test")
    shown = good.last.locator("[data-score]").evaluate_all("all => all.map(one => Number(one.dataset.score))")
    assert shown == pytest.approx(np.atleast_1d(scores[0]).tolist(), abs=1e-5)  # new results stand first
    bad = page.locator(".result.failed")
    assert bad.locator("h3").text_content() == images[2].name
    assert "This is not an image" in bad.locator("p").text_content()
    assert len(page.said) == 1  # chromium's own word on the answer 422
    assert "422" in page.said[0]


def test_no_file_name_leaves_the_page(open_page, images):
    page = open_page()
    page.set_input_files("#files", [str(path) for path in images])
    scored(page, 3)
    sent = [request for request in page.requested if request.method == "POST"]
    assert len(sent) == 3
    for request in sent:
        told = request.url + " ".join(f"{name}: {value}" for name, value in request.all_headers().items())
        assert not any(path.stem in told for path in images)
        assert "referer" not in request.all_headers()


def test_dropped_files_are_scored_wherever_they_are_dropped(open_page, images):
    page = open_page()
    data = page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png"));
            return transfer;
        }""",
        list(images[0].read_bytes()),
    )
    for place in ("#drop", "footer"):
        page.dispatch_event(place, "dragover", {"dataTransfer": data})
        assert page.locator("#drop.over").count() == 1
        page.dispatch_event(place, "drop", {"dataTransfer": data})
    scored(page, 2)
    assert page.locator(".failed, #drop.over").count() == 0


def test_the_verdict_follows_the_chosen_threshold(open_page, server, images):
    page = open_page()
    page.set_input_files("#files", str(images[0]))
    scored(page, 1)
    facts = page.evaluate("JSON.parse(document.getElementById('facts').textContent)")
    places = page.locator("[data-score]")
    for name in [one["name"] for one in facts["labels"][0]["thresholds"]]:
        page.select_option("#threshold", name)
        for place in places.all():
            label = facts["labels"][int(place.get_attribute("data-label"))]
            (threshold,) = (one["value"] for one in label["thresholds"] if one["name"] == name)
            positive = float(place.get_attribute("data-score")) >= threshold
            assert (
                place.locator(".verdict").get_attribute("class") == f"verdict {'positive' if positive else 'negative'}"
            )
    assert page.locator("#threshold option[value=own]").count() == (server.name == "auc")
    if server.name == "auc":
        score = places.first.get_attribute("data-score")
        page.select_option("#threshold", "own")
        for own, verdict in ((score, "positive"), (str(float(score) + 1e-6), "negative")):
            page.fill("#own", own)
            assert places.first.locator(".verdict").get_attribute("class") == f"verdict {verdict}"


def test_all_of_it_by_keyboard_and_removed_again(open_page, images):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "files"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "threshold"
    page.set_input_files("#files", str(images[0]))
    scored(page, 1)
    page.locator("#clear").focus()
    page.keyboard.press("Enter")
    assert page.locator(".result").count() == 0
    assert page.evaluate("document.activeElement.id") == "files"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_it_fits_its_screen(open_page, images, size, scheme):
    page = open_page(size=size, scheme=scheme)
    page.set_input_files("#files", [str(path) for path in images])
    scored(page, 3)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    outside = page.eval_on_selector_all(
        "p, h1, h2, h3, h4, dd, dt, img, svg, label, select",
        "all => all.filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.tagName)",
    )
    assert outside == []


def test_a_busy_server_is_asked_again(open_page, server, images):
    page = open_page()
    refused = []

    def once(route):
        if refused:
            route.continue_()
        else:
            refused.append(route)
            route.fulfill(status=503, json={"error": "busy"})

    page.route("**/judge", once)
    page.set_input_files("#files", str(images[0]))
    scored(page, 1)
    assert len(refused) == 1
    assert page.locator(".failed").count() == 0


def test_another_site_gets_nothing_though_the_cookie_is_there(open_page, server, images, tmp_path):
    """A page of another origin in the same browser: no fetch, no form, no frame, no script reaches the run."""
    (tmp_path / "evil.html").write_text("<title>evil</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *_: None
    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    page = open_page()
    page.goto(f"http://localhost:{evil.server_port}/evil.html")
    found = page.evaluate(
        """async home => {
            const tried = {};
            const asked = async (name, options) => {
                try { tried[name] = (await fetch(home + "judge", options)).type; } catch { tried[name] = "refused"; }
            };
            await asked("typed", {method: "POST", body: "x", headers: {"Content-Type": "application/octet-stream"}});
            await asked("simple", {method: "POST", body: "x", mode: "cors", credentials: "include"});
            const loaded = (tag, name) => new Promise(tell => {
                const one = document.createElement(tag);
                one.onload = () => tell(true);
                one.onerror = () => tell(false);
                one.src = home + name;
                document.body.append(one);
            });
            tried.script = await loaded("script", "page.js");
            return tried;
        }""",
        f"http://127.0.0.1:{server.port}/",
    )
    assert found == {"typed": "refused", "simple": "refused", "script": False}
    evil.shutdown()
    evil.server_close()
