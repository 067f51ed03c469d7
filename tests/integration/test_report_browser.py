"""The report in a real browser; skips, and says so, where one is missing."""

from itertools import pairwise

import pytest

from tests.integration.pdf_pages import filled

PATIENCE = 180_000  # ms, for whatever a browser beside other work is asked for
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture
def open_page(open_address):
    """Opens a file; see `open_address`."""
    return lambda path, **screen: open_address(path.as_uri(), **screen)


def comes_true(page, condition):
    """A browser scrolls, and speaks on its console, in its own time."""
    for _ in range(PATIENCE // 20):
        if condition():
            return True
        page.wait_for_timeout(20)
    return condition()


@pytest.fixture(params=["auc", "multi", "folds"])
def report(request, written_reports):
    return written_reports[request.param]


def test_it_opens_without_a_word_on_the_console_and_asks_for_nothing(report, open_page):
    page = open_page(report.html)
    assert page.said == []
    assert [request.url for request in page.requested] == [report.html.as_uri()]
    assert page.title() == f"Report of run {report.findings.run}"


@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_figures_are_visible_and_the_page_fits_its_screen(report, open_page, size):
    page = open_page(report.html, size=size)
    boxes = [figure.bounding_box() for figure in page.query_selector_all("figure svg")]
    assert len(boxes) == len(report.figures)
    for box in boxes:
        assert box["width"] > 250
        assert box["height"] > 60
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
    drawn = page.eval_on_selector_all("figure svg", "all => all.map(one => one.querySelectorAll('path, use').length)")
    assert min(drawn) > 4
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    outside = page.eval_on_selector_all(
        "main p, h1, h2, h3, figcaption, dd, nav a",
        "all => all.filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.textContent)",
    )
    assert outside == []


def test_text_in_figures_stays_inside_them(report, open_page):
    page = open_page(report.html)
    outside = page.eval_on_selector_all(
        "figure svg text",
        """all => all.filter(one => {
            const text = one.getBoundingClientRect(), card = one.closest("figure").getBoundingClientRect();
            return text.left < card.left || text.right > card.right || text.bottom > card.bottom;
        }).map(one => one.textContent)""",
    )
    assert outside == []


def test_tables_sort_by_number_and_by_word(written_reports, open_page):
    page = open_page(written_reports["multi"].html)
    table = page.locator("#result table").first
    values = "rows => rows.map(row => row.cells[3].dataset.value)"
    names = "rows => rows.map(row => row.cells[0].textContent)"
    before = table.locator("tbody tr").evaluate_all(names)
    button = table.locator("thead button").nth(3)
    button.click()
    rising = [float(v) for v in table.locator("tbody tr").evaluate_all(values)]
    assert rising == sorted(rising)
    assert len(rising) == 3
    assert table.locator("thead th").nth(3).get_attribute("aria-sort") == "ascending"
    button.focus()
    page.keyboard.press("Enter")  # the keyboard does it too
    falling = [float(v) for v in table.locator("tbody tr").evaluate_all(values)]
    assert falling == rising[::-1]
    table.locator("thead button").first.click()
    after = table.locator("tbody tr").evaluate_all(names)
    assert sorted(after) == sorted(before)
    assert table.locator("thead th[aria-sort]").count() == 1


def test_rows_without_a_value_come_last_in_both_directions(written_reports, open_page):
    page = open_page(written_reports["auc"].html)
    table = page.locator("table[aria-label^='Stages on validation']")
    button = table.locator("thead button").nth(2)
    for _ in range(2):
        button.click()
        last = table.locator("tbody tr").last.locator("td").nth(1)
        assert last.text_content() == "—"


def test_anchors_lead_to_their_sections(report, open_page):
    page = open_page(report.html)
    links = page.locator("nav a")
    assert links.count() >= 8
    for link in links.all():
        target = link.get_attribute("href")
        link.click()
        section = page.locator(target)

        def is_there(target=target, section=section):
            top = section.evaluate("one => one.getBoundingClientRect().top")
            bottom = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
            return page.evaluate("location.hash") == target and (abs(top) < 5 or bottom)

        assert comes_true(page, is_there), target


def luminance(colour):
    channels = [int(c) / 255 for c in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


COLOURS = """selectors => selectors.map(selector => {
    const one = document.querySelector(selector);
    let ground = one;
    while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
    const style = getComputedStyle(one);
    return [one instanceof SVGElement ? style.fill : style.color, getComputedStyle(ground).backgroundColor];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(written_reports, open_page, scheme):
    page = open_page(written_reports["auc"].html, scheme=scheme)
    selectors = [
        "main p",
        "figcaption",
        ".device",
        ".missing",
        ".headline .detail",
        "nav a",
        "svg text",
        "dt",
        "footer",
    ]
    for selector, (ink, ground) in zip(selectors, page.evaluate(COLOURS, selectors), strict=True):
        assert contrast(ink, ground) >= 4.5, selector
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    line = page.evaluate("getComputedStyle(document.querySelector('svg [style*=\"stroke: var(--blue)\"]')).stroke")
    assert contrast(line, ground) >= 3


def test_print_is_light_and_without_navigation(written_reports, open_page):
    page = open_page(written_reports["auc"].html, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("nav").is_visible()
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_no_printed_page_is_half_empty(report, open_page):
    page = open_page(report.html)
    shares = filled(page.pdf(format="A4"))
    assert len(shares) >= 5
    assert min(shares[:-1]) > 0.55  # the last page ends where the report does


def test_a_page_that_is_half_empty_is_seen(written_reports, open_page, tmp_path):
    text = written_reports["auc"].html.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(
        text.replace("@media print {", "@media print { section { break-before: page; }"), encoding="utf-8"
    )
    assert min(filled(open_page(broken).pdf(format="A4"))[:-1]) < 0.5


def test_printing_leaves_the_tables_sortable(report, open_page):
    page = open_page(report.html)
    buttons = page.locator("thead button").count()
    page.pdf(format="A4")
    assert comes_true(page, lambda: page.locator("thead button").count() == buttons > 0)
    button = page.locator("thead button").first
    button.click()
    assert button.locator("xpath=..").get_attribute("aria-sort") == "ascending"


def test_every_control_and_figure_has_a_name(report, open_page):
    page = open_page(report.html)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, [role=img], [role=region], table")].filter(one => {
            const by = one.getAttribute("aria-labelledby");
            const label = by ? document.getElementById(by).textContent : one.getAttribute("aria-label");
            return !(label || one.textContent).trim();
        }).length"""
    )
    assert nameless == 0
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_scripts_other_than_its_own_are_blocked_by_the_page_itself(written_reports, open_page, tmp_path):
    text = written_reports["auc"].html.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("</main>", "<script>document.title = 'hacked'</script></main>"), encoding="utf-8")
    page = open_page(broken)
    assert page.title() == "Report of run auc"
    assert comes_true(page, lambda: any("Content Security Policy" in line for line in page.said))


def test_hostile_names_are_text_and_nothing_else(hostile_report, open_page):
    page = open_page(hostile_report.html, size=PHONE)
    assert page.said == []
    assert [request.url for request in page.requested] == [hostile_report.html.as_uri()]
    assert page.title().startswith("Report of run run <script>")
    assert page.locator("img, iframe, object, main script").count() == 0
    assert page.evaluate("document.scripts.length") == 1
    assert page.get_by_text("<script>alert(1)</script>").count() > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_link_to_the_folded_appendix_opens_it(report, open_page):
    page = open_page(report.html)
    folded = page.locator("#training > details")
    assert folded.get_attribute("open") is None
    page.locator("nav a[href='#training']").click()
    assert comes_true(page, lambda: folded.get_attribute("open") is not None)
    assert page.locator("#training figure svg").first.is_visible()


def test_the_operating_points_are_on_the_first_screen(written_reports, open_page):
    page = open_page(written_reports["auc"].html)
    table = page.locator("#result table").first
    assert "sensitivity" in table.locator("tbody").text_content()
    assert table.bounding_box()["y"] < DESKTOP["height"]
    cells = table.locator("tbody tr").first.locator("td").nth(3)
    assert cells.bounding_box()["x"] + cells.bounding_box()["width"] <= DESKTOP["width"]
