"""A page read back."""

import html.parser

import pytest


class Page(html.parser.HTMLParser):
    """Tags with attributes, the texts of each tag, and ids."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.stack = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "use", "path"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, text):
        for tag in set(self.stack):
            self.texts.setdefault(tag, []).append(text)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag):
        return "".join(self.texts.get(tag, []))


@pytest.fixture(scope="session")
def parse_page():
    """Page(text): its tags, texts and attributes."""
    return Page
