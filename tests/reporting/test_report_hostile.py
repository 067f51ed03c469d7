"""Labels, ids, patients and columns as an attacker would call them: shown as they are, never run, never markup."""

import re

import numpy as np

from deepauc.reporting.document.blocks import Picture, shown
from deepauc.reporting.figures.canvas import render


def test_nothing_from_the_data_becomes_markup(hostile_report, parse_page):
    text = hostile_report.html.read_text(encoding="utf-8")
    page = parse_page(text)
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "alert" not in page.text("script")
    shown_text = page.text("main")
    assert "<script>alert(1)</script>" in shown_text  # as text, in full
    assert "{{ 7 * 7 }}" in shown_text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert "\\u202e" in shown_text


def test_nothing_from_the_data_becomes_markdown(hostile_report):
    text = hostile_report.markdown.read_text(encoding="utf-8")
    prose = re.sub(r"(?ms)^(`{3,})json\n.*?^\1$", "", text)  # code blocks show what they hold
    assert "\\<script\\>" in prose
    assert not re.search(r"(?<!\\)<", prose)
    assert not re.search(r"(?<!\\)\[link", prose)
    widths = [line.replace("\\|", "").count("|") for line in prose.splitlines() if line.startswith("|")]
    tables = prose.split("\n\n")
    for table in (t for t in tables if t.startswith("|")):
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1, table
    assert widths


def test_names_are_made_fit_to_show():
    assert shown("plain µ 😀") == "plain µ 😀"
    assert shown("a\x00\n\u202eb") == "a\\x00\\n\\u202eb"
    assert shown("\ud800") == "\\ud800"
    assert shown("שלום") == "\u2068שלום\u2069"
    assert shown("x" * 500) == "x" * 79 + "…"


def test_a_figure_takes_any_words():
    def draw(axes):
        axes.set_title(shown("$x_{ <b>&amp; \x01 😀 שלום"))
        axes.plot([0, 1], [0, np.nan])

    found = render(Picture(name="n", caption="c", alt='<i> & "quoted"', draw=draw))
    assert "<b>" not in found.svg
    assert "$x_{ &lt;b&gt;&amp;amp; \\x01" in found.svg
    assert "&lt;i&gt;" in found.svg
