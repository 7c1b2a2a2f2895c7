"""Inline code in the docstrings of the package, held against the package like that of the pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.docs.code import fault_of
from tools.docs.pages import Fault

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_STANDS = re.compile(r"\b[A-Z]{4,}\.|\.[A-Z]{4,}\b")  # NUMBER.KIND.FIELD
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def check_docstrings(root: Path, words: set[str]) -> Iterator[Fault]:
    """Find inline code in docstrings that names what there is not.

    Args:
        root: of the repository.
        words: every word of the code, for single names.

    Yields:
        One fault per piece of inline code, at the line where its docstring begins.
    """
    for file in sorted([*(root / "src").rglob("*.py"), *(root / "experiments").rglob("*.py")]):
        yield from check_source(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"), words)


def check_source(path: str, source: str, words: set[str]) -> Iterator[Fault]:
    """Find inline code in the docstrings of one file that names what there is not.

    Yields:
        One fault per piece of inline code.
    """
    tree = ast.parse(source)
    nodes = [tree, *_statements(tree)]
    imported = {name: None for node in nodes if isinstance(node, ast.Import) for name in _bound(node)}
    for node in nodes:
        text = ast.get_docstring(node) if isinstance(node, _Documented) else None
        for snippet in _CODE.findall(text or ""):
            said = None if _STANDS.search(snippet) else fault_of(snippet, imported, words)
            if said is not None and (said := fault_of(snippet, imported | _names(node), words)) is not None:
                yield Fault(path, getattr(node, "lineno", 1), said)


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a block and in their own blocks; docstrings and imports are in no expression."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(block, field, ()):
            yield node
            yield from _statements(node)


def _bound(node: ast.Import) -> set[str]:
    return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}


def _names(node: ast.AST) -> dict[str, None]:
    """Return the names that a function or class has of its own: arguments, fields, variables."""
    inside = list(ast.walk(node))
    return {n.arg if isinstance(n, ast.arg) else n.id: None for n in inside if isinstance(n, ast.arg | ast.Name)}
