"""Files that a page names, links, the navigation, and what some page has to tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from tools.docs.pages import Fault, Page

ENDINGS = "bin cff cpp csv hpp html json jsonl lock md npz png py safetensors sh toml txt yaml yml"
_FILE = re.compile(rf"[\w.*-]+(/[\w.*-]+)*/?|[\w./-]+\.({ENDINGS.replace(' ', '|')})")
_AFTER = set("\"'`")  # what stands after the name of a file in code, or before it
_BEFORE = _AFTER | set("{}/ ")


def looks_like_file(text: str) -> bool:
    """Return whether inline code reads like the path of a file or folder."""
    return bool(_FILE.fullmatch(text)) and ("/" in text or ("." in text and text.rpartition(".")[2] in ENDINGS.split()))


def check_files(page: Page, root: Path, words: str) -> Iterator[Fault]:
    """Find paths that are in no place a reader would look: the root, the package, the docs, the page's own folder.

    A file that the program writes has its name in the program: `words`, all of its text. Folders that git ignores
    come and go. A name in capitals stands for another, as RUN/config.yaml does.

    Yields:
        One fault per path.
    """
    ignored = [line.strip("/\n") for line in (root / ".gitignore").read_text().splitlines()]
    packages = [root / "src" / "torchbayes", root / "experiments" / "src" / "torchbayes_experiments"]
    places = [root, root / "src", *packages, root / "docs", (root / page.path).parent]
    for span in page.spans:
        path = PurePosixPath(span.text)
        if not looks_like_file(span.text) or _stands(path) or path.parts[0] in ignored:
            continue
        if not any((place / path).exists() for place in places) and not _written(path, words):
            yield page.fault(span.line, f"there is no file `{span.text}`, and nothing writes one")


def _stands(path: PurePosixPath) -> bool:
    return any(re.fullmatch(r"[A-Z-]{2,}", part) for part in path.parts) or path.name.startswith("NNNN")


def _written(path: PurePosixPath, words: str) -> bool:
    if len(path.parts) > 1:
        return False
    name = re.sub(r"\d+", r"\\{[^}]*\\}", re.escape(path.name))  # figure_1.png is written as figure_{number}.png
    # the pattern begins with letters, which are sought ten times faster than a choice of signs before them
    places = (match.span() for match in re.finditer(name, words))
    return any(words[i - 1 : i] in _BEFORE or words[j : j + 1] in _AFTER for i, j in places)


def check_links(pages: Sequence[Page], root: Path) -> Iterator[Fault]:
    """Find links to files, pages and headings that are not there.

    Yields:
        One fault per link.
    """
    known = {page.path: page for page in pages}
    for page in pages:
        for link in page.links:
            target, _, anchor = link.text.partition("#")
            if ":" in target:
                continue
            path = normpath((PurePosixPath(page.path).parent / target).as_posix()) if target else page.path
            if not (root / path).exists() and path not in known:
                yield page.fault(link.line, f"the link to `{link.text}` leads nowhere")
            elif anchor and path in known and anchor not in known[path].anchors:
                yield page.fault(link.line, f"`{path}` has no heading `#{anchor}`")
        for name in re.findall(r"\[\^(\w+)\](?!:)", page.text):
            if not re.search(rf"^\[\^{name}\]:", page.text, flags=re.MULTILINE):
                yield page.fault(1, f"the footnote `[^{name}]` says nothing")


def navigation(entries: Any) -> list[str]:
    """Return the pages of the navigation in mkdocs.yml, from docs/ on."""
    if isinstance(entries, str):
        return [entries]
    parts: Iterable[Any] = entries.values() if isinstance(entries, Mapping) else entries
    return [page for part in parts for page in navigation(part)]


def check_navigation(pages: Sequence[Page], named: Sequence[str]) -> Iterator[Fault]:
    """Find pages that the navigation leaves out, and its entries without a page.

    Yields:
        One fault per page.
    """
    there = {page.path.removeprefix("docs/"): page for page in pages if page.path.startswith("docs/")}
    for name in sorted(there.keys() - set(named)):
        yield there[name].fault(1, "the page is not in the navigation of mkdocs.yml")
    for name in sorted(set(named) - there.keys()):
        yield Fault("mkdocs.yml", 1, f"the navigation names `{name}`, and there is no such page")


def check_lists(pages: Sequence[Page]) -> Iterator[Fault]:
    """Find pages that the list which should have them leaves out: docs/index.md, or the decisions' own.

    Pages of experiments are listed by the gallery, which is made of all of them.

    Yields:
        One fault per page and list.
    """
    linked = {
        page.path: {
            normpath((PurePosixPath(page.path).parent / link.text.partition("#")[0]).as_posix()) for link in page.links
        }
        for page in pages
    }
    for page in pages:
        listed = page.path.startswith("docs/") and not page.path.startswith(("docs/index.md", "docs/experiments/"))
        lists = ["docs/index.md"] if listed else []
        if page.path.startswith("docs/decisions/0"):
            lists = ["docs/decisions/README.md"]
        for name in lists:
            if name in linked and page.path not in linked[name]:
                yield page.fault(1, f"{name} does not link to the page")


def check_told(page: Page | None, path: str, names: Iterable[str], kind: str) -> Iterator[Fault]:
    """Find names that a page must hold and does not: as inline code, alone or called.

    Yields:
        One fault per name.
    """
    said = {word for span in (page.spans if page else ()) for word in re.findall(r"\w+", span.text)}
    for name in sorted(set(names) - said):
        yield Fault(path, 1, f"the page does not name the {kind} `{name}`")


def check_listed(page: Page, names: Iterable[str]) -> Iterator[Fault]:
    """Find items of a list that begin with the name of an experiment that does not exist.

    Yields:
        One fault per item.
    """
    known = set(names)
    for line, text in enumerate(page.text.splitlines(), 1):
        if (match := re.match(r"\s*- `([a-z]\w+_\w+)`:? \(", text)) and match[1] not in known:
            yield page.fault(line, f"there is no experiment `{match[1]}`")
