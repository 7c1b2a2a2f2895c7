"""What every exported function returns, yields and raises stands in its docstring.

`python tools/public.py` runs ruff's rules on that, and prints what they say of the names that the packages export
(`__all__`) and of the public methods of exported classes. Within the house a name and a sentence may do.
"""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torchbayes

_RULES = "DOC201,DOC402,DOC501"
_RUFF = [sys.executable, "-m", "ruff", "check", "--isolated", "--preview", "--exit-zero", f"--select={_RULES}"]
_OPTIONS = ["--output-format=json", "--config=lint.pydocstyle.convention='google'"]


_OPTIONAL = {"torchbayes.botorch": "botorch"}  # package -> what it imports, which need not be installed


def main() -> int:
    """Print every rule that the docstring of an exported function breaks; return 1 if there is one."""
    names = exported()
    ran = subprocess.run([*_RUFF, *_OPTIONS, *map(str, names)], capture_output=True, text=True, check=True)
    wrong = []
    for finding in json.loads(ran.stdout):
        file, line = Path(finding["filename"]), finding["location"]["row"]
        qualname = enclosing(ast.parse(file.read_text(encoding="utf-8")), line)
        if any(qualname == name or qualname.startswith(f"{name}.") for name in names[file]) and "._" not in qualname:
            wrong.append(f"{file.relative_to(Path.cwd())}:{line}: {qualname}: {finding['message']}")
    print("\n".join(wrong) or "Exported functions say what they return and raise.")
    return 1 if wrong else 0


def exported() -> dict[Path, set[str]]:
    """Return, for each file, the qualified names of what packages export and the file defines."""
    packages = [torchbayes]
    for module in pkgutil.iter_modules(torchbayes.__path__, "torchbayes."):
        if module.ispkg and (module.name not in _OPTIONAL or find_spec(_OPTIONAL[module.name])):
            packages.append(import_module(module.name))
    names: dict[Path, set[str]] = defaultdict(set)
    for value in (getattr(package, name) for package in packages for name in getattr(package, "__all__", ())):
        if inspect.isclass(value) or inspect.isfunction(value):
            names[Path(inspect.getfile(inspect.unwrap(value)))].add(value.__qualname__)  # verbs are decorated
    return names


def enclosing(tree: ast.AST, line: int) -> str:
    """Return the qualified name of the innermost definition around a line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            return ".".join(filter(None, [node.name, enclosing(node, line)]))
    return ""


if __name__ == "__main__":
    sys.exit(main())
