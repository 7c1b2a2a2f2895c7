"""Python on a page: blocks are read from top to bottom, inline code with the names of the page and of the package."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from tools.docs.names import Of, Reader, Thing, Value, keywords, methods, modules, public, takes
from tools.docs.pages import Fault, Page
from tools.docs.places import looks_like_file

# what a page calls an instance of these without having made one
NOUNS = {
    "posterior": "Posterior",
    "model": "Model",
    "density": "LogDensity",
    "prediction": "Predictive",
    "functions": "Functions",
    "evaluation": "Evaluation",
    "event": "Event",
    "method": "Method",
}
FOREIGN = {"DistributedDataParallel", "DTensor"}  # of PyTorch, named where a decision was taken against them
# what other packages call theirs, and `likelihood.NAME`, a name in the layout
ELSEWHERE = {"torch", "nn", "functools", "dataclasses", "arviz", "xarray", "keras", "likelihood"}
_SESSION = re.compile(r'session="(\w+)"')
_CHOICE = re.compile(r'([A-Za-z_]\w*)=("[^"]*"|[\w.+-]*|…)')


def check_blocks(page: Page) -> Iterator[Fault]:
    """Find names and arguments in Python blocks that there are none of.

    Yields:
        One fault per name.
    """
    yield from read_blocks(page)[1]


@lru_cache(maxsize=1)  # blocks and spans of a page are checked one after the other
def read_blocks(page: Page) -> tuple[dict[str, Value], list[Fault]]:
    """Return what the names of a page stand for after its last block, and the faults found.

    Blocks of one session share their names; a block that is not run when the page is built may use those of all.
    """
    sessions: dict[str, dict[str, Value]] = {}
    faults: list[Fault] = []
    for block in page.blocks:
        if block.info.split(" ")[0] not in {"python", "py"}:
            continue
        every = {name: value for names in sessions.values() for name, value in names.items()}
        reader = Reader(dict(sessions.get(_session(block.info), {})) if "exec=" in block.info else every)
        try:
            reader.read(ast.parse(block.text))
        except SyntaxError as error:
            faults.append(page.fault(block.line + (error.lineno or 1), f"the code does not compile: {error.msg}"))
        sessions[_session(block.info)] = reader.names
        faults += [page.fault(block.line + line, said) for line, said in reader.faults]
    return {name: value for names in sessions.values() for name, value in names.items()}, faults


def _session(info: str) -> str:
    match = _SESSION.search(info)
    return match[1] if match else ""


def check_spans(page: Page, words: set[str]) -> Iterator[Fault]:
    """Find inline code that names what there is not.

    Args:
        page: the page.
        words: every word of the code, for single names.

    Yields:
        One fault per piece of inline code.
    """
    own, _ = read_blocks(page)
    every = words | set(re.findall(r"\w+", " ".join(block.text for block in page.blocks)))
    for span in page.spans:
        said = fault_of(span.text, own, every)
        if said is not None:
            yield page.fault(span.line, said)


def fault_of(text: str, own: Mapping[str, Value], words: set[str]) -> str | None:
    """Return what is wrong with a piece of inline code, or None.

    Args:
        text: the code.
        own: what the names of the page stand for.
        words: every word that the code of the package, its tests and the page hold.
    """
    if re.fullmatch(r"[A-Za-z_]\w*", text):
        return None if text in words or text in FOREIGN else f"`{text}` is named nowhere in the code"
    if (choice := _CHOICE.fullmatch(text)) is not None:
        return _setting(choice[1], choice[2].strip('"'), quoted=choice[2].startswith('"'))
    if looks_like_file(text) and "(" not in text and not _dotted(text):
        return None
    try:
        tree = ast.parse(text.replace("…", "...").replace("..., ...", "..."), mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(tree, ast.Call | ast.Attribute) or re.search(r"\.NAME\b", text):
        return None  # likelihood.NAME stands for more than one name
    return _expression(tree, own)


def _dotted(text: str) -> bool:
    return re.fullmatch(r"\w+(\.\w+)+", text) is not None and text.partition(".")[0] in {"tb", "torchbayes"}


def _setting(name: str, value: str, *, quoted: bool) -> str | None:
    """Return what is wrong with `name=value`, a keyword argument on its own."""
    if name.isupper():
        return None  # a variable of the shell
    if name not in keywords():
        return f"nothing takes an argument `{name}`"
    if quoted and not any(takes(hint, value) for hint, _ in keywords()[name]):
        return f"no `{name}` can be {value!r}"
    return None


def _expression(tree: ast.expr, own: Mapping[str, Value]) -> str | None:
    """Return what is wrong with a dotted name or a call under every meaning of its names, or None."""
    heads = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    said: str | None = None
    for meaning in itertools.product(*(_meanings(head, own) for head in sorted(heads))):
        reader = Reader({name: value for part in meaning for name, value in part.items()}, partly=True)
        reader.read(tree)
        if not reader.faults:
            return None
        said = said or reader.faults[0][1]
    return said


def _meanings(head: str, own: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Return what a name may stand for, one entry each; an empty one where it stands for nothing."""
    if head in own:
        return [{head: own[head]}]
    if head in {"tb", "torchbayes"}:
        return [{head: Thing(modules()["torchbayes"])}]
    kinds = [value for value in public()[NOUNS[head]] if isinstance(value, type)] if head in NOUNS else []
    objects = public().get(head, [])
    values: list[Value] = [*([Of(tuple(kinds))] if kinds else []), *(Thing(value) for value in objects)]
    if head in ELSEWHERE | methods() and not kinds and all(inspect.ismodule(value) for value in objects):
        values.append(None)
    return [{head: value} for value in values] or [{}]
