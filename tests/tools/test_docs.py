"""The API pages show something: each names a module that exists and has public names of its own or in `__all__`."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_api_page_has_names_to_show(page: Path) -> None:
    modules = re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(modules) >= 1
    for module in modules:
        path = ROOT / "src" / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        body = ast.parse(file.read_text(encoding="utf-8")).body
        defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        exported = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        shown = [name for name in defined if not name.startswith("_")] + exported
        assert shown, f"{module} has no __all__ and defines nothing public, so its page would be empty"
