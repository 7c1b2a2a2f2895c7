"""General code asks a posterior or a method for what it needs, never for its class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torchbayes as tb
from torchbayes.catalogue.methods import classes
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.stochastic import Stochastic
from torchbayes.posteriors.posterior import KINDS

ROOT = Path(tb.__file__).parent
KNOWN = {kind.__name__ for kind in (*KINDS.values(), *classes().values(), Sampler, Stochastic)} - {"Gaussian"}
OWN = {"posteriors", "methods", "experiments"}
WORDS = re.compile("isinstance|issubclass"), re.compile("|".join([*KNOWN, "Gaussian"]))


def asked_for_class(source: str) -> Iterator[str]:
    """Every `isinstance` by a posterior's or a method's class; a likelihood is called Gaussian too."""
    tree = ast.parse(source)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
                if (node.module or "").startswith("torchbayes.posteriors")}  # fmt: skip
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"isinstance", "issubclass"}
        ):
            names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.args[1])}
            if names & (KNOWN | ({"Gaussian"} & imported)):
                yield ast.unparse(node)


def test_it_is_found() -> None:
    text = "from torchbayes.posteriors import Gaussian\nisinstance(q, Gaussian | int)\nisinstance(m, tb.HMC)\n"
    assert len([*asked_for_class(text)]) == 2
    assert not [*asked_for_class("from torchbayes.model.likelihoods import Gaussian\nisinstance(q, Gaussian)")]


def test_general_code_does_not_ask_for_a_class() -> None:
    files = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in OWN]
    texts = {path: path.read_text() for path in files}  # those without the words are not parsed, which takes long
    asking = {path: text for path, text in texts.items() if WORDS[0].search(text) and WORDS[1].search(text)}
    actual = {f"{path.relative_to(ROOT)}: {each}" for path, text in asking.items() for each in asked_for_class(text)}
    assert len(files) > 100
    assert actual == set()
