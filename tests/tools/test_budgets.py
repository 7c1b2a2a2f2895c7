"""Every budget fires on a made-up package that breaks it, and only there; exceptions need a reason and a use."""

from pathlib import Path

import pytest

from tools import budgets

FUNCTION = '''def f(x: int) -> int:
    """Return x."""
    return x
'''


LONG_DOC = '    """Do.\n' + "    more\n" * 50 + '    """\n'


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def breaches(root: Path, **modules: str) -> list[tuple[str, str]]:
    """(qualname, rule) of every breach of a package whose modules have these texts below a docstring."""
    files = {"__init__": "", **modules}
    write(root, {f"src/pkg/{name.replace('__in__', '/')}.py": f'"""Doc."""\n{text}' for name, text in files.items()})
    return [(breach.qualname, breach.rule) for breach in budgets.check_package(root)]


def function(arguments: str = "", returns: str = " -> None", lines: int = 1, doc: str = '    """Do."""\n') -> str:
    return f"def f({arguments}){returns}:\n{doc}" + "    print()\n" * lines


def class_with(members: list[str], head: str = "class A") -> str:
    return f'{head}:\n    """Doc."""\n' + "".join(f"    {line}\n" for text in members for line in text.splitlines())


def method(name: str, body: str = "return 1") -> str:
    return f'def {name}(self) -> int:\n    """Doc."""\n    {body}\n'


def names(count: int) -> str:
    return ", ".join(f"a{i}: int" for i in range(count))


def test_a_folder_has_room_for_15_files(tmp_path: Path) -> None:
    files = {f"sub__in__m{number}": "" for number in range(14)}
    assert breaches(tmp_path, **files, sub__in____init__="") == []
    assert breaches(tmp_path, sub__in__more="") == [("<folder>", "folder-files")]


def test_modules_that_import_each_other_are_breaches(tmp_path: Path) -> None:
    modules = {
        "a": "from pkg import b\n",
        "b": function(doc='    """Do."""\n    from pkg.c import g\n'),
        "c": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from pkg.a import b\n",
        "d": "from pkg.a import b\n",
    }
    assert breaches(tmp_path, **modules) == [("<module>", "cycle")] * 3
    actual = {breach.path: breach.message for breach in budgets.check_package(tmp_path)}
    assert actual["src/pkg/b.py"] == "imported by pkg.a, which it leads to"


def test_folders_that_import_each_other_are_breaches(tmp_path: Path) -> None:
    modules = {
        "low__in__a": "from pkg.high.b import x\n",
        "low__in__c": "",
        "high__in__b": "",
        "high__in__d": "import pkg.low.c\n",
        "e": "from pkg.low import a\n",
        "__init__": "from pkg.e import x\n",
    }
    assert breaches(tmp_path, **modules) == [("<folder>", "cycle")] * 2
    of_roots = {**modules, "high__in__b": "import pkg\n", "high__in__d": ""}
    assert breaches(tmp_path, **of_roots) == [("<module>", "cycle")] * 2 + [("<folder>", "cycle")] * 2


@pytest.mark.parametrize(
    ("rule", "kept", "broken"),
    [
        ("file-lines", "x = 1\n" * 399, "x = 1\n" * 400),
        ("function-lines", function(lines=40), function(lines=41)),
        ("function-lines", function(doc=LONG_DOC), function(lines=99)),
        ("arguments", function(f"*, {names(8)}"), function(f"*, {names(9)}")),
        ("arguments", function(f"*, {names(7)}, **kwargs: int"), function(f"*args: int, {names(7)}, **kwargs: int")),
        ("positional", function("a: int, b: int, c: int, *, d: int"), function("a: int, b: int, c: int, d: int")),
        ("positional", FUNCTION + "def _g(a, b, c, d): ...\n", function("a: int, /, b: int, c: int, d: int")),
        ("documented", "def _f() -> None: ...\n", function(doc="")),
        ("annotated", "def _f(a): ...\n", function("a")),
        ("annotated", function("a: int, *b: int"), function("a: int, *b")),
        ("annotated", function(), function(returns="")),
    ],
)
def test_a_function_or_file_breaks_exactly_the_budget_it_exceeds(
    tmp_path: Path, rule: str, kept: str, broken: str
) -> None:
    assert breaches(tmp_path, m=kept) == []
    assert [actual for _, actual in breaches(tmp_path, m=broken)] == [rule]


def test_class_budgets_count_lines_and_distinct_methods(tmp_path: Path) -> None:
    twelve = [method(f"m{i}") for i in range(12)]
    accessors = ["@property\n" + method("m0"), "@m0.setter\ndef m0(self, value: int) -> None: ...\n"]
    assert breaches(tmp_path, m=class_with([*accessors, *twelve[1:]])) == []
    assert breaches(tmp_path, m=class_with([*twelve, method("m12")])) == [("A", "class-methods")]
    assert breaches(tmp_path, m=class_with(["x = 1\n" * 198])) == []
    assert breaches(tmp_path, m=class_with(["x = 1\n" * 199])) == [("A", "class-lines")]
    assert breaches(tmp_path, m="class A: ...\nclass _B:\n    def g(self): ...\n") == [("A", "documented")]


def test_a_method_inherits_the_docstring_of_what_it_implements(tmp_path: Path) -> None:
    bare, base = "def g(self) -> int:\n    return 1\n", "@abstractmethod\n" + method("g", "...")
    child = "from pkg.a import A\n" + class_with([bare], head="class B(A)")
    assert breaches(tmp_path, a=class_with([base]), b=child) == []
    silent = class_with(["@abstractmethod\ndef g(self) -> int: ...\n", method("h")])
    assert breaches(tmp_path, a=silent, b=child) == [("A.g", "documented"), ("B.g", "documented")]


def test_self_is_no_argument_and_fixed_dunder_signatures_are_exempt(tmp_path: Path) -> None:
    init = f"def __init__(self, {names(3)}) -> None: ...\n"
    static = f'@staticmethod\ndef s({names(3)}) -> None:\n    """Do."""\n'
    protocol = f"def __exit__(self, {names(4)}) -> None: ...\n"
    assert breaches(tmp_path, m=class_with([init, static, protocol])) == []
    wide = class_with([f"def __init__(self, {names(4)}) -> None: ...\n"])
    assert breaches(tmp_path, m=wide) == [("A.__init__", "positional")]


def test_depth_follows_bases_through_imports_reexports_and_subscripts(tmp_path: Path) -> None:
    a = class_with([], head="class A")
    parent = "from pkg.m import A\n" + class_with([], head="class B(A[int])")
    modules = {"m": a, "sub__in____init__": "from .n import B\n", "sub__in__n": parent}
    modules["child"] = "import pkg.sub as s\n" + class_with([], head="class C(s.B)")
    assert breaches(tmp_path, **modules) == []
    grandchild = "from pkg.child import C\n" + class_with([], head="class D(C)")
    assert breaches(tmp_path, **modules, k=grandchild) == [("D", "depth")]
    outside = "from torch import nn\n" + class_with([], head="class C(nn.Sequential)")
    assert breaches(tmp_path, **modules, k=outside) == []


COMPUTES = method("m", body="return computed(1)")


@pytest.mark.parametrize(
    ("base", "child", "broken"),
    [
        (COMPUTES, method("m"), True),
        (COMPUTES, "m = print", True),
        (COMPUTES, method("n"), False),
        (COMPUTES, method("m", body="return 1 + super().m()"), False),
        (method("m"), method("m"), False),
        (method("m", body="return Made(self.x)"), method("m"), False),
        (method("m", body="x = 1\n    return x"), method("m"), True),
        ("@abstractmethod\n" + method("m"), method("m"), False),
        (method("m", body="..."), method("m"), False),
        (method("m", body="raise NotImplementedError"), method("m"), False),
        (method("m", body='raise ValueError("x")'), method("m"), True),
        ("def __init__(self) -> None:\n    self.x = 1\n", "def __init__(self) -> None:\n    self.x = 2\n", False),
    ],
)
def test_only_overrides_of_concrete_methods_are_breaches(tmp_path: Path, base: str, child: str, broken: bool) -> None:
    text = class_with([base]) + class_with([child], head="class B(A)")
    assert breaches(tmp_path, m=text) == ([("B", "override")] if broken else [])


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("assert torch.allclose(a, b)", 1),
        ("torch.testing.assert_close(a, b)", 1),
        ("assert a == pytest.approx(0.1)", 1),
        ("assert a == -3", 1),
        ("assert abs(a - b) < tolerance", 1),
        ("assert (a == b).all()", 1),
        ("assert (a < b).all()", 1),
        ("assert a == b", 0),
        ("assert a is True", 0),
        ("assert len(a) == 3", 0),
        ("assert a.shape == (3, 4)", 0),
        ("assert a.shape[0] == 3", 0),
        ("if a == 3: pass", 0),
    ],
)
def test_what_counts_as_a_numeric_comparison(tmp_path: Path, body: str, count: int) -> None:
    text = f"def test_one(a, b):\n    {body}\n"
    write(tmp_path, {"tests/test_a.py": text})
    assert len(list(budgets.check_tests(tmp_path))) == 1 - count
    write(tmp_path, {"tests/sub/test_b.py": text.replace("one", "two") + "def test_three(): ...\n"})
    [breach] = budgets.check_tests(tmp_path)
    assert breach.message.startswith(f"{2 * count} numeric comparisons in 3 tests")


def test_the_allow_list_excuses_with_a_reason_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def run(allow: str) -> tuple[int, list[str]]:
        write(tmp_path, {"tools/budgets_allow.txt": allow})
        return budgets.main(tmp_path), capsys.readouterr().out.splitlines()

    breaches(tmp_path, m=function(doc="") + class_with([method("m")]), n=FUNCTION)
    code, [line] = run("# nothing excused\n\n")
    assert code == 1
    assert line.startswith("src/pkg/m.py:2: f: documented: ")

    assert run("src/pkg/m.py::f documented its name says it all\n") == (0, ["Budgets kept."])

    code, [line] = run("src/pkg/m.py::f documented\n")
    assert code == 1
    assert "wants `path::qualname rule reason`" in line

    excuse = "src/pkg/m.py::f documented its name says it all\n"
    code, [line] = run(excuse + "src/pkg/n.py::f documented was needed once\n")
    assert code == 1
    assert line.startswith("tools/budgets_allow.txt:2: ")
    assert "excuses nothing" in line


def test_a_root_without_a_package_is_an_error_not_a_pass(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no package under"):
        budgets.main(tmp_path)


def test_a_module_without_a_docstring_is_a_breach_unless_it_is_private(tmp_path: Path) -> None:
    write(tmp_path, {"src/pkg/__init__.py": '"""Doc."""\n', "src/pkg/a.py": "x = 1\n", "src/pkg/_b.py": "x = 1\n"})
    assert [(breach.path, breach.rule) for breach in budgets.check_package(tmp_path)] == [
        ("src/pkg/a.py", "documented")
    ]
