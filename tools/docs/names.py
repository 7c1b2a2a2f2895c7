"""What code on a page may name: every public name of the package, and what becomes of it when it is called.

A value is `Thing`, an object itself, `Of`, an instance of some classes, or None where that is not known. What is not
known is not complained of.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache, cached_property
from typing import Any, Literal, get_args, get_origin

import torch

import torchbayes
import torchbayes_experiments

# classes of PyTorch whose arguments the pages mention
BORROWED = [torch.nn.Parameter, torch.utils.data.DataLoader, torch.distributions.Normal]
_MISSING = object()


@dataclass(frozen=True)
class Thing:
    """An object itself."""

    value: Any


@dataclass(frozen=True)
class Of:
    """An instance of one of some classes."""

    types: tuple[type, ...]


Value = Thing | Of | None


@cache
def modules() -> dict[str, types.ModuleType]:
    """Return every module of the library and of its experiments by its dotted name."""
    by_name: dict[str, types.ModuleType] = {each.__name__: each for each in (torchbayes, torchbayes_experiments)}
    for package in [*by_name.values()]:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith(("__main__", "torchbayes.sequences")):  # a former path, which warns
                by_name[info.name] = importlib.import_module(info.name)
    return by_name


@cache
def public() -> dict[str, list[Any]]:
    """Return every name that some module of the package defines or holds, with the objects it stands for."""
    values: dict[str, list[Any]] = {}
    for dotted, module in modules().items():
        values.setdefault(dotted.rpartition(".")[2], []).append(module)
        for name, value in vars(module).items():
            if inspect.ismodule(value):
                continue
            own = getattr(value, "__module__", dotted) == dotted or (dotted == "torchbayes" and name[0] != "_")
            if own and all(value is not other for other in values.get(name, ())):
                values.setdefault(name, []).append(value)
    return values


@cache
def methods() -> set[str]:
    """Return the names of all methods: `means()` is one of an object that the text has named."""
    classes = [value for values in public().values() for value in values if inspect.isclass(value)]
    return {name for kind in classes for name, member in vars(kind).items() if inspect.isfunction(member)}


@cache
def keywords() -> dict[str, list[tuple[Any, Any]]]:
    """Return every parameter and field of the package by its name, with its annotation and its owner."""
    hints: dict[str, list[tuple[Any, Any]]] = {}
    for values in [*public().values(), BORROWED]:
        for value in values:
            owned = [m for n, m in vars(value).items() if inspect.isfunction(m)] if inspect.isclass(value) else []
            for each in [value, *owned]:
                if callable(each):
                    for name, hint in _parameters(each).items():
                        hints.setdefault(name, []).append((hint, each))
    return hints


def _parameters(callable_: Any) -> dict[str, Any]:
    try:
        names = inspect.signature(callable_).parameters
    except (ValueError, TypeError):
        return {}
    hints = _hints(callable_)
    return {name: hints.get(name) for name in names}


@cache
def _hints(value: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(value.__init__ if inspect.isclass(value) and not is_dataclass(value) else value)
    except (NameError, TypeError, AttributeError):
        return {}


def instances(hint: Any) -> Value:
    """Return the value that an annotation promises."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        parts = [instances(part) for part in get_args(hint) if part is not type(None)]
        if any(not isinstance(part, Of) for part in parts):
            return None
        return Of(tuple(kind for part in parts if isinstance(part, Of) for kind in part.types))
    if hint is typing.Any:  # promises nothing; it is a class since Python 3.11
        return None
    kind = get_origin(hint) or hint
    return Of((kind,)) if inspect.isclass(kind) and kind is not object else None


def attribute(value: Value, name: str) -> tuple[Value, str | None]:
    """Return what an attribute is, and what is wrong with it."""
    if isinstance(value, Thing):
        attribute_value = getattr(value.value, name, _MISSING)
        if attribute_value is not _MISSING:
            return Thing(attribute_value), None
        if inspect.ismodule(value.value):
            dotted = f"{value.value.__name__}.{name}"
            return (Thing(modules()[dotted]), None) if dotted in modules() else (None, f"there is no `{dotted}`")
        if inspect.isclass(value.value):
            return _member(value.value, name)
        return None, f"`{getattr(value.value, '__name__', value.value)}` has no `{name}`"
    if value is None:
        return None, None
    members = [_member(kind, name) for kind in value.types]
    return next((f for f in members if f[1] is None), members[0])


def _member(kind: type, name: str) -> tuple[Value, str | None]:
    own = inspect.getattr_static(kind, name, _MISSING)
    if isinstance(own, property | cached_property):
        return instances(_hints(own.fget if isinstance(own, property) else own.func).get("return")), None
    if own is not _MISSING and not isinstance(own, types.MemberDescriptorType):
        return (Thing(getattr(kind, name)) if callable(own) else None), None
    if name in (hints := _hints(kind)) or own is not _MISSING or hasattr(kind, "__getattr__"):
        return instances(hints.get(name)), None
    structural = getattr(kind, "_is_protocol", False)  # a protocol does not say what else there is
    if (
        structural
        or f"self.{name}" in _source(kind)
        or any(_member(below, name)[1] is None for below in kind.__subclasses__())
    ):
        return None, None
    return None, f"`{kind.__name__}` has no `{name}`"


@cache
def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def called(function: Value, node: ast.Call, *, partly: bool) -> tuple[Value, str | None]:
    """Return what a call gives, and what is wrong with its arguments.

    Args:
        function: what is called.
        node: the call.
        partly: whether arguments may be left out, as in inline code.

    Returns:
        The value, and a sentence or None.
    """
    if not isinstance(function, Thing):
        return None, None
    value = function.value
    if not callable(value):
        return None, f"`{getattr(value, '__name__', value)}` cannot be called"
    result = Of((value,)) if inspect.isclass(value) else instances(_hints(value).get("return"))
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return result, None
    if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
        return result, None
    parameters = list(signature.parameters)
    if parameters[:1] == ["self"]:  # a method taken off its class
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    filled = any(isinstance(a, ast.Constant) and a.value is ... for a in node.args)
    given = [] if filled else list(node.args)
    named = {k.arg: k.value for k in node.keywords if k.arg is not None}
    try:
        bound = (signature.bind_partial if partly or filled else signature.bind)(*given, **named)
    except TypeError as error:
        return result, f"`{getattr(value, '__name__', value)}` takes no such arguments: {error}"
    return result, next(_words(value, bound.arguments), None)


def _words(value: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with arguments that must be one of some words."""
    hints = _hints(value)
    for name, node in given.items():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            known = choices(hints.get(name))
            if known is not None and node.value not in known:
                yield f"`{name}` of `{value.__name__}` cannot be {node.value!r}; it is one of {', '.join(known)}"


def choices(hint: Any) -> tuple[str, ...] | None:
    """Return the words that an annotation allows; None if it allows any, or none at all."""
    if get_origin(hint) is Literal:
        return tuple(word for word in get_args(hint) if isinstance(word, str))
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        parts = get_args(hint)
        words_of_parts = [choices(part) for part in parts]
        return (
            None
            if str in parts or not any(words_of_parts)
            else tuple(word for words in words_of_parts for word in words or ())
        )
    return None


def takes(hint: Any, word: str) -> bool:
    """Return whether an annotation allows a word; one that is not known does."""
    known = choices(hint)
    parts = get_args(hint) or (hint,)
    return word in known if known is not None else any(part in {None, str, Any} for part in parts)


@dataclass
class Reader:
    """Reads expressions and statements of Python, keeps what names stand for, and complains.

    Attributes:
        names: what names stand for.
        partly: whether calls may leave arguments out.
        faults: sentences, with the line of the code.
    """

    names: dict[str, Value]
    partly: bool = False
    faults: list[tuple[int, str]] = field(default_factory=list)

    def read(self, node: ast.AST) -> Value:
        """Return what an expression is, and complain of what it names."""
        reader: Callable[[Any], Value] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if reader is not None:
            return reader(node)
        for child in ast.iter_child_nodes(node):
            self.read(child)
        return None

    def _say(self, node: ast.AST, said: str | None) -> None:
        if said is not None:
            self.faults.append((getattr(node, "lineno", 1), said))

    def _name(self, node: ast.Name) -> Value:
        if isinstance(node.ctx, ast.Store):
            self.names[node.id] = None
        elif node.id not in self.names:
            if node.id == "super":  # whose class this reader does not follow
                return None
            if hasattr(builtins, node.id):
                return Thing(getattr(builtins, node.id))
            if not self.partly:  # else it stands for something: Model(net, …)
                self._say(node, f"nothing is called `{node.id}`")
            return None
        return self.names[node.id]

    def _head(self, node: ast.expr) -> Value:
        """Return what is called or looked into."""
        if isinstance(node, ast.Name) and node.id not in self.names and not hasattr(builtins, node.id):
            self._say(node, f"nothing is called `{node.id}`")
        return None if isinstance(node, ast.Constant) else self.read(node)

    def _attribute(self, node: ast.Attribute) -> Value:
        value, said = attribute(self._head(node.value), node.attr)
        self._say(node, said)
        return value

    def _call(self, node: ast.Call) -> Value:
        function = self._head(node.func)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self.read(argument)
        value, said = called(function, node, partly=self.partly)
        self._say(node, said)
        return value

    def _assign(self, node: ast.Assign) -> None:
        value = self.read(node.value)
        for target in node.targets:
            self.read(target)
            if isinstance(target, ast.Name):
                self.names[target.id] = value

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = importlib.import_module(alias.name)
            top = importlib.import_module(alias.name.partition(".")[0])
            self.names[alias.asname or alias.name.partition(".")[0]] = Thing(module if alias.asname else top)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        module = Thing(importlib.import_module(node.module or ""))
        for alias in node.names:
            value, said = attribute(module, alias.name)
            self.names[alias.asname or alias.name] = value
            self._say(node, said)

    def _functiondef(self, node: ast.FunctionDef) -> None:
        self.names[node.name] = None
        before = dict(self.names)
        for part in [node.returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))]:
            if part is not None:
                self.read(part)
        self._inside(node.args, *node.body)
        self.names = before

    def _lambda(self, node: ast.Lambda) -> None:
        before = dict(self.names)
        self._inside(node.args, node.body)
        self.names = before

    def _inside(self, arguments: ast.arguments, *body: ast.AST) -> None:
        for default in [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]:
            self.read(default)
        self.names |= {a.arg: None for a in ast.walk(arguments) if isinstance(a, ast.arg)}
        for part in body:
            self.read(part)

    def _classdef(self, node: ast.ClassDef) -> None:
        self.names[node.name] = None
        before = dict(self.names)
        for part in [*node.decorator_list, *node.bases, *node.body]:
            self.read(part)
        self.names = before

    def _comprehension(self, node: Any) -> None:
        before = dict(self.names)
        for part in node.generators:
            self.read(part.iter)
            self.read(part.target)
            for condition in part.ifs:
                self.read(condition)
        for part in (getattr(node, name, None) for name in ("key", "value", "elt")):
            if part is not None:
                self.read(part)
        self.names = before

    _listcomp = _setcomp = _dictcomp = _generatorexp = _comprehension

    def _for(self, node: ast.For) -> None:
        self.read(node.iter)
        self.read(node.target)
        for part in [*node.body, *node.orelse]:
            self.read(part)

    def _excepthandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.names[node.name] = None
        for part in [*([node.type] if node.type else []), *node.body]:
            self.read(part)
