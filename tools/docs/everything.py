"""All rules on all pages."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from tools.docs.code import check_blocks, check_spans
from tools.docs.commands import check_commands
from tools.docs.docstrings import check_docstrings
from tools.docs.names import modules
from tools.docs.pages import Fault, Page, read
from tools.docs.places import (
    check_files,
    check_links,
    check_listed,
    check_lists,
    check_navigation,
    check_told,
    navigation,
)
from tools.docs.prose import check_prose

import torchbayes
from tools import gallery
from torchbayes import experiments
from torchbayes.catalogue.methods import classes

_CODE = ("src", "experiments", "tests", "benchmarks")


def check(root: Path) -> list[Fault]:
    """Return every fault of every page of the repository at `root`."""
    root, pages = root.resolve(), read(root)
    words = code_of(root)
    known = set(re.findall(r"\w+", words))
    faults: list[Fault] = []
    for page in pages:
        faults += [*check_blocks(page), *check_spans(page, known), *check_files(page, root, words), *check_prose(page)]
        with tempfile.TemporaryDirectory() as folder:
            faults += check_commands(page, root, Path(folder))
    faults += check_docstrings(root, known)
    faults += check_links(pages, root)
    faults += check_navigation(pages, navigation(yaml.safe_load((root / "mkdocs.yml").read_text())["nav"]))
    faults += check_lists(pages)
    faults += check_completeness(pages)
    faults += [Fault("docs/experiments.md", 1, said) for said in gallery.faults(root)]
    return faults


def code_of(root: Path) -> str:
    """Return the text of all files of code, and of those that say how it is built."""
    files = [f for name in _CODE for f in (root / name).rglob("*") if f.suffix in {".py", ".cpp", ".hpp", ".html"}]
    files = [f for f in files if not f.is_relative_to(root / "tests" / "tools")]  # which holds wrong names on purpose
    built = ("pyproject.toml", "experiments/pyproject.toml", "Makefile", "mkdocs.yml", "tools/budgets.py")
    files += [root / name for name in built]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def check_completeness(pages: Sequence[Page]) -> Iterator[Fault]:
    """Find methods and public names that docs/methods.md and the API leave out, and experiments that there are not.

    Yields:
        One fault per name.
    """
    known = {page.path: page for page in pages}
    table = known.get("docs/methods.md")
    if not _shows_catalogue(table):
        yield from check_told(table, "docs/methods.md", list(classes()), "method")
    for page in pages:
        yield from check_listed(page, experiments.names())
    yield from check_shown(pages, {name: getattr(torchbayes, name) for name in torchbayes.__all__ if name[0] != "_"})


def _shows_catalogue(page: Page | None) -> bool:
    """Return whether a page has the table of all methods that is made of the catalogue."""
    return page is not None and "from torchbayes.catalogue.methods import METHODS" in page.text


def check_shown(pages: Sequence[Page], names: dict[str, Any]) -> Iterator[Fault]:
    """Find objects that no page of the API shows.

    Yields:
        One fault per name.
    """
    members: list[Any] = []
    for page in pages:
        for dotted in re.findall(r"^::: ([\w.]+)$", page.text, flags=re.MULTILINE):
            if dotted not in modules():
                yield page.fault(1, f"there is no module `{dotted}` to show")
                continue
            module = modules()[dotted]
            own = [v for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "") == dotted]
            members += [module, *(getattr(module, n) for n in getattr(module, "__all__", ())), *own]
    for name, value in names.items():
        if all(value is not shown for shown in members):
            yield Fault("docs/api", 1, f"no page shows `{name}`")
