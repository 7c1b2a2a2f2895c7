"""Budgets of the code: sizes, arguments, inheritance, documentation, and numbers in the tests.

`python tools/budgets.py [ROOT]` reads ROOT/src, ROOT/experiments/src and ROOT/tests, prints one line per
breach and exits 1 if there is one.
An exception is a line `path::qualname rule reason` in ROOT/tools/budgets_allow.txt, where qualname is `<module>` for
a rule about a file, `<folder>` for that about a folder and `<all>` for that about the tests. A line that excuses
nothing is itself a breach.

folder-files    a folder has at most 15 files
file-lines, class-lines, class-methods: at most 400 lines, 200 lines, 12 methods (a property and its setter are one)
function-lines  a function has at most 40 lines from the first statement after its docstring to its last
cycle           of the files and folders in a folder, none imports itself through others: at heads, within functions
                or for type checkers; what a file in a folder imports, that folder imports
arguments       a function has at most 8 arguments besides self and cls
positional      a public function takes at most 3 of them by position; dunders whose signature Python fixes are exempt
depth           a class may have a parent and a grandparent in the package: inheritance depth 3
override        no class redefines what an ancestor in the package computes; constructors, stubs and defaults, which
                only return a value or an object, are exempt, and so is what calls the ancestor's by `super()`
documented      public modules, classes and functions have docstrings (not dunders, setters, overloads); a method may
                inherit that of an ancestor in the package
annotated       public functions and constructors annotate every argument and the return
comparisons     the tests hold on average one numeric comparison each: a call of allclose, isclose, approx, equal or
                a numeric assert_*; or, in an `assert`, a comparison with a number, by <, <=, >, >=, or under `.all()`
                (but not of len(...), .shape, .ndim and the like: those are sizes, not results)
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FILE_LINES, FUNCTION_LINES, CLASS_LINES, CLASS_METHODS, ARGUMENTS, POSITIONAL, DEPTH = 400, 40, 200, 12, 8, 3, 3
FOLDER_FILES = 15
CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
COMPARERS = {"allclose", "isclose", "approx", "equal", "assert_close", "assert_allclose", "assert_array_equal"}
SIZES = {"len", "shape", "ndim", "dim", "size", "numel"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class Breach(NamedTuple):
    """One place where a budget is exceeded."""

    path: str
    line: int
    qualname: str
    rule: str
    message: str

    @property
    def key(self) -> tuple[str, str]:
        """How a line of the allow-list names this breach."""
        return f"{self.path}::{self.qualname}", self.rule


@dataclass(eq=False)
class Module:
    """A parsed file of the package: its dotted name, what its names refer to, and its classes by qualified name."""

    path: str
    name: str
    source: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


def read_module(file: Path, root: Path) -> Module:
    """Parse one file and resolve its imports to dotted names."""
    sources = next(folder for folder in file.parents if folder.name == "src")
    parts = file.relative_to(sources).with_suffix("").parts
    package = parts[:-1]
    name = ".".join(package if parts[-1] == "__init__" else parts)
    source = file.read_text(encoding="utf-8")
    module = Module(file.relative_to(root).as_posix(), name, source, ast.parse(source))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) + 1 - node.level]) if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            module.imports |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            module.imports |= {alias.asname: alias.name for alias in node.names if alias.asname}
    module.classes = {name: node for name, node, _ in definitions(module.tree) if isinstance(node, ast.ClassDef)}
    return module


def definitions(tree: ast.AST, prefix: str = "", public: bool = True) -> Iterator[tuple[str, Definition, bool]]:
    """Yield (qualified name, definition, whether users see it) for every class and function below `tree`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            visible = public and (node.name.endswith("__") or not node.name.startswith("_"))
            yield prefix + node.name, node, visible
            yield from definitions(node, f"{prefix}{node.name}.", visible and isinstance(node, ast.ClassDef))
        else:
            yield from definitions(node, prefix, public)


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression such as `a.b`, `a.b[T]` or `a.b(...)`; empty for anything else."""
    if isinstance(node, ast.Subscript | ast.Call):
        return dotted(node.value if isinstance(node, ast.Subscript) else node.func)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def decorators(node: Definition) -> set[str]:
    """The last parts of the names of the decorators: {"property", "abstractmethod", "setter"}."""
    return {dotted(decorator).rpartition(".")[2] for decorator in node.decorator_list}


def statements(node: Function) -> list[ast.stmt]:
    """The body of a function without its docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def implements(node: Function) -> bool:
    """Whether a method is more than a docstring, `...`, `pass`, or `raise NotImplementedError`, and not abstract."""
    rest = [s for s in statements(node) if not isinstance(s, ast.Pass)]
    rest = [s for s in rest if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    refuses = [isinstance(s, ast.Raise) and s.exc is not None and dotted(s.exc) == "NotImplementedError" for s in rest]
    return not decorators(node) & {"abstractmethod", "overload"} and not all(refuses)


def computes(node: Function) -> bool:
    """Whether a method implements more than a default, which returns something that is known, or an object it makes."""
    rest = [s for s in statements(node) if not isinstance(s, ast.Delete)]
    calls = [dotted(part.func).rpartition(".")[2] for s in rest for part in ast.walk(s) if isinstance(part, ast.Call)]
    default = len(rest) == 1 and isinstance(rest[0], ast.Return) and all(name[:1].isupper() for name in calls)
    return implements(node) and not default


def extends(node: Function) -> bool:
    """Whether a method calls that of the same name of an ancestor."""
    calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == node.name and dotted(f.value) == "super" for f in calls)


def check_function(node: Function, public: bool, method: bool) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for each budget a function exceeds."""
    marks, body, spec = decorators(node), statements(node), node.args
    if body and (lines := (node.end_lineno or 0) - body[0].lineno + 1) > FUNCTION_LINES:
        yield "function-lines", f"the body has {lines} lines (at most {FUNCTION_LINES}); move a part into a helper"
    positional = [*spec.posonlyargs, *spec.args][1 if method and "staticmethod" not in marks else 0 :]
    named = [*positional, *filter(None, [spec.vararg]), *spec.kwonlyargs, *filter(None, [spec.kwarg])]
    if len(named) > ARGUMENTS:
        yield "arguments", f"{len(named)} arguments (at most {ARGUMENTS}); group those that belong together"
    if not public:
        return
    dunder = node.name.startswith("__")
    if len(positional) > POSITIONAL and (not dunder or node.name in {"__init__", "__call__"}):
        yield "positional", f"{len(positional)} positional arguments (at most {POSITIONAL}); put `*` after the third"
    missing = [argument.arg for argument in named if argument.annotation is None]
    if missing or node.returns is None:
        yield "annotated", f"no annotation of {', '.join([*missing, *([] if node.returns else ['the return'])])}"


def check_class(node: ast.ClassDef, public: bool) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for each budget a class exceeds on its own, without regard to its bases."""
    if (lines := (node.end_lineno or 0) - node.lineno + 1) > CLASS_LINES:
        yield "class-lines", f"{lines} lines (at most {CLASS_LINES}); split it"
    methods = {member.name for member in node.body if isinstance(member, Function)}
    if len(methods) > CLASS_METHODS:
        yield "class-methods", f"{len(methods)} methods (at most {CLASS_METHODS}); make some of them functions"
    if public and ast.get_docstring(node) is None:
        yield "documented", "no docstring; say what it is"


def find(modules: dict[str, Module], module: Module, name: str) -> tuple[Module, str] | None:
    """The module and qualified name of the class that `name` means in `module`, through re-exports."""
    if name in module.classes:
        return module, name
    head, _, rest = name.partition(".")
    target = module.imports.get(head, head) + (f".{rest}" if rest else "")
    owner = max((owner for owner in modules if target.startswith(f"{owner}.")), key=len, default="")
    return find(modules, modules[owner], target[len(owner) + 1 :]) if owner else None


def ancestors(modules: dict[str, Module], module: Module, qualname: str) -> list[list[tuple[Module, str]]]:
    """Every chain of in-package bases above a class, nearest first."""
    resolved = [find(modules, module, dotted(base)) for base in module.classes[qualname].bases]
    bases = [base for base in resolved if base is not None and base != (module, qualname)]
    return [[base, *chain] for base in bases for chain in (ancestors(modules, *base) or [[]])]


def check_documented(
    modules: dict[str, Module], module: Module, owner: str, node: Function
) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for a public function without a docstring, and for a method that inherits none either."""
    if node.name.startswith("_") or decorators(node) & {"setter", "deleter", "overload"} or ast.get_docstring(node):
        return
    chains = ancestors(modules, module, owner) if owner in module.classes else []
    above = (member for chain in chains for place, base in chain for member in place.classes[base].body)
    if not any(isinstance(m, Function) and m.name == node.name and ast.get_docstring(m) for m in above):
        yield "documented", "no docstring; say what it returns, with shapes and units"


def check_bases(modules: dict[str, Module], module: Module, qualname: str) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for too deep an inheritance and for overrides of concrete methods."""
    chains = ancestors(modules, module, qualname)
    if (depth := 1 + max(map(len, chains), default=0)) > DEPTH:
        yield "depth", f"inheritance depth {depth} (at most {DEPTH}); hold the ancestor as a field instead"
    own = set()
    for member in module.classes[qualname].body:
        if isinstance(member, Function) and extends(member):
            continue
        names = member.targets if isinstance(member, ast.Assign) else [getattr(member, "target", member)]
        own |= {getattr(name, "id", getattr(name, "name", None)) for name in names}
    for owner, base in dict.fromkeys(link for chain in chains for link in chain):
        for member in owner.classes[base].body:
            if isinstance(member, Function) and member.name in own - CONSTRUCTORS and computes(member):
                yield "override", f"`{member.name}` is implemented by {base}; make it abstract there, or rename this"


def imported(module: Module, modules: dict[str, Module]) -> set[str]:
    """The modules of the package that a module imports anywhere: at its head, in functions, or for type checkers."""
    dotted_names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            dotted_names |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            dotted_names |= {alias.name for alias in node.names}
    return (dotted_names & modules.keys()) - {module.name}


def siblings(modules: dict[str, Module]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """What each file or folder imports of those beside it, by their paths in parts: files inside count for a folder."""
    parts = {name: Path(module.path).with_suffix("").parts[1:] for name, module in modules.items()}
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for name, module in modules.items():
        for other in imported(module, modules):
            together = zip(parts[name], parts[other], strict=False)
            depth = next(depth for depth, (mine, its) in enumerate(together, start=1) if mine != its)
            edges[parts[name][:depth]].add(parts[other][:depth])
    return edges


def check_cycles(modules: dict[str, Module]) -> Iterator[Breach]:
    """Yield a breach for every file or folder of a package that is reached from what it imports of those beside it."""
    edges, files = siblings(modules), {module.path for module in modules.values()}
    sources = min(files).partition("src/")[0] + "src"
    for place, beside in [*edges.items()]:
        seen, rest = set(), [*beside]
        while rest:
            if (other := rest.pop()) not in seen:
                seen.add(other)
                rest += edges[other]
        if place in seen:
            back = sorted(".".join(other) for other in seen if place in edges[other])
            message = f"imported by {', '.join(back)}, which it leads to"
            path = "/".join((sources, *place))
            file = f"{path}.py" in files
            yield Breach(f"{path}.py" if file else path, 1, "<module>" if file else "<folder>", "cycle", message)


def check_package(root: Path) -> Iterator[Breach]:
    """Yield every breach in the packages under ROOT/src and ROOT/experiments/src."""
    if not (files := sorted([*(root / "src").glob("*/**/*.py"), *(root / "experiments" / "src").glob("*/**/*.py")])):
        sys.exit(f"no package under {root / 'src'}; give the root of the repository")
    for folder, count in Counter(file.parent.relative_to(root).as_posix() for file in files).items():
        if count > FOLDER_FILES:
            yield Breach(folder, 1, "<folder>", "folder-files", f"{count} files (at most {FOLDER_FILES}); split it")
    modules = {module.name: module for module in (read_module(file, root) for file in files)}
    for package in {name.partition(".")[0] for name in modules}:
        yield from check_cycles({name: each for name, each in modules.items() if name.partition(".")[0] == package})
    for module in modules.values():
        internal = module.name.partition(".")[0] == "torchbayes_experiments"  # but for what its first file gives out
        public = not internal and not any(part.startswith("_") for part in module.name.split("."))
        if (lines := len(module.source.splitlines())) > FILE_LINES:
            yield Breach(module.path, 1, "<module>", "file-lines", f"{lines} lines (at most {FILE_LINES}); split it")
        if public and ast.get_docstring(module.tree) is None:
            yield Breach(module.path, 1, "<module>", "documented", "no docstring; say what is in it")
        for qualname, node, visible in definitions(module.tree, public=public):
            if isinstance(node, ast.ClassDef):
                rules = [*check_class(node, visible), *check_bases(modules, module, qualname)]
            else:
                owner = qualname.rpartition(".")[0]
                rules = [*check_function(node, visible, owner in module.classes)]
                rules += check_documented(modules, module, owner, node) if visible else []
            yield from (Breach(module.path, node.lineno, qualname, *rule_and_message) for rule_and_message in rules)


def compares_numbers(node: ast.AST, asserted: set[int], under_all: set[int]) -> bool:
    """Whether a node is a numeric comparison, as the rule `comparisons` counts them."""
    if isinstance(node, ast.Call):
        return dotted(node.func).rpartition(".")[2] in COMPARERS
    if not isinstance(node, ast.Compare) or id(node) not in asserted:
        return False
    sides = [node.left, *node.comparators]
    if any(getattr(part, "attr", getattr(part, "id", "")) in SIZES for side in sides for part in ast.walk(side)):
        return False
    values = [side.operand if isinstance(side, ast.UnaryOp) else side for side in sides]
    number = any(isinstance(value, ast.Constant) and type(value.value) in {int, float} for value in values)
    ordered = any(isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in node.ops)
    return number or ordered or id(node) in under_all


def check_tests(root: Path) -> Iterator[Breach]:
    """Yield a breach if the tests under ROOT/tests compare fewer numbers than there are tests."""
    files = sorted((root / "tests").glob("**/*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    tests = sum(isinstance(node, Function) and node.name.startswith("test_") for node in nodes)
    asserted = {id(part) for node in nodes if isinstance(node, ast.Assert) for part in ast.walk(node.test)}
    under_all = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "all"}
    count = sum(compares_numbers(node, asserted, under_all) for node in nodes)
    if count < tests:
        yield Breach("tests", 1, "<all>", "comparisons", f"{count} numeric comparisons in {tests} tests; add oracles")


def main(root: Path) -> int:
    """Print every breach that the allow-list does not excuse; return 1 if there is one."""
    breaches = [*check_package(root), *check_tests(root)]
    allow = root / "tools" / "budgets_allow.txt"
    lines = allow.read_text(encoding="utf-8").splitlines() if allow.exists() else []
    wrong, excused, keys = [], set(), {b.key for b in breaches}
    for number, line in enumerate(lines, start=1):
        place, rule, reason, *_ = [*line.split(maxsplit=2), "", "", ""]
        if not place or place.startswith("#"):
            continue
        excused.add((place, rule))
        if not reason or (place, rule) not in keys:
            problem = "excuses nothing; remove it" if reason else "wants `path::qualname rule reason`"
            wrong.append(f"{allow.relative_to(root)}:{number}: {line}: {problem}")
    wrong += [f"{b.path}:{b.line}: {b.qualname}: {b.rule}: {b.message}" for b in breaches if b.key not in excused]
    print("\n".join(wrong) or "Budgets kept.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2])))
