"""A page of Markdown, taken apart: blocks of code, inline code, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

_SNIPPET = re.compile(r'^--8<-- "([^"]+)"$', flags=re.MULTILINE)


class Fault(NamedTuple):
    """Something that a page says and that is not so.

    Attributes:
        path: of the page, from the root of the repository.
        line: where it stands, counted from 1.
        message: what is wrong.
    """

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        """Return the fault as one line."""
        return f"{self.path}:{self.line}: {self.message}"


class Piece(NamedTuple):
    """Some text of a page.

    Attributes:
        text: the text; of a block its code, of a link its target.
        line: where it begins.
        info: what is said of a block behind its fence, such as its language.
    """

    text: str
    line: int
    info: str = ""


@dataclass(frozen=True)
class Page:
    """A page of Markdown.

    Attributes:
        path: from the root of the repository, with slashes.
        text: what it says.
    """

    path: str
    text: str

    @cached_property
    def _tokens(self) -> list[Token]:
        text = re.sub(r"^(?=\[\^\w+\]:)", r"\\\\", self.text, flags=re.MULTILINE)  # a footnote is not a link target
        return MarkdownIt("commonmark").enable("table").parse(text)

    @cached_property
    def blocks(self) -> list[Piece]:
        """Fenced blocks of code."""
        kept = [token for token in self._tokens if token.type == "fence"]
        return [Piece(token.content, _line(token), token.info.strip()) for token in kept]

    @cached_property
    def spans(self) -> list[Piece]:
        """Inline code; its line is where its paragraph begins."""
        return [Piece(token.content, line) for token, line in self._inline() if token.type == "code_inline"]

    @cached_property
    def paragraphs(self) -> list[Piece]:
        """Words of paragraphs and items of lists; inline code is one word, a line break one space."""
        pieces = []
        for before, token in zip(self._tokens, self._tokens[1:], strict=False):
            if before.type == "paragraph_open":
                said = [("x" if t.type == "code_inline" else t.content or " ") for t in token.children or ()]
                pieces.append(Piece("".join(said), _line(token)))
        return pieces

    @cached_property
    def links(self) -> list[Piece]:
        """Targets of links and images."""
        targets = [(token.attrGet("href") or token.attrGet("src"), line) for token, line in self._inline()]
        return [Piece(str(target), line) for target, line in targets if target]

    @cached_property
    def anchors(self) -> set[str]:
        """Names of the headings, as MkDocs makes them."""
        anchors = set()
        for token, following in zip(self._tokens, self._tokens[1:], strict=False):
            if token.type == "heading_open":
                words = "".join(t.content for t in following.children or () if t.type in {"text", "code_inline"})
                slug = re.sub(r"[^\w\s-]", "", words.encode("ascii", "ignore").decode()).strip().lower()
                anchors.add(re.sub(r"[-\s]+", "-", slug))
        return anchors

    def _inline(self) -> Iterator[tuple[Token, int]]:
        for token in self._tokens:
            for child in token.children or ():
                yield child, _line(token)

    def fault(self, line: int, message: str) -> Fault:
        """Return a fault of this page."""
        return Fault(self.path, line, message)


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 1


def read(root: Path) -> list[Page]:
    """Return the pages of the repository at `root`; what a page takes from another file is in its place."""
    files = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    files += sorted((root / "docs").rglob("*.md"))
    pages = [Page(f.relative_to(root).as_posix(), f.read_text(encoding="utf-8")) for f in files if f.is_file()]
    return [Page(page.path, _SNIPPET.sub(lambda m: _snippet(root, m[1]), page.text)) for page in pages]


def _snippet(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8") if (root / name).is_file() else f"[{name}]({name})"
