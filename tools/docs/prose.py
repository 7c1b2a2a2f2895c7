"""How long sentences and paragraphs are on the pages that are read, and not looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.docs.pages import Fault, Page

SENTENCE, PARAGRAPH = 34, 85  # words, of which inline code is one
_READ = ("docs", "docs/start", "docs/tutorials")
_OTHERS = {"docs/changelog.md", "docs/contributing.md", "docs/security.md"}  # files of the repository


def check_prose(page: Page) -> Iterator[Fault]:
    """Find paragraphs and sentences that nobody reads in one breath.

    Yields:
        One fault per paragraph or sentence.
    """
    if str(PurePosixPath(page.path).parent) not in _READ or page.path in _OTHERS:
        return
    for text, line, _ in page.paragraphs:
        if (words := len(text.split())) > PARAGRAPH:
            yield page.fault(line, f"a paragraph of {words} words; make it two, of an idea each")
        for sentence in re.split(r"(?<=[.!?:])[)”]*\s+", text):
            if (words := len(sentence.split())) > SENTENCE:
                yield page.fault(line, f"a sentence of {words} words; make it two: {sentence[:60]}…")
