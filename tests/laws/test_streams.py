"""One law of all random numbers: each purpose is drawn from at one place, and no two streams know of each other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.data import corrupt
from torchbayes.linalg import Diagonal
from torchbayes.methods.noise import normals
from torchbayes.randomness.seeds import Purpose, generator, member_seeds

SOURCE = Path(tb.__file__).parent
SEEDED = {"mix", "generator", "seeded"}
MAKERS = {"Generator", "manual_seed", "default_rng", "RandomState", "manual_seed_all"}
DRAWN = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
DRAWN_IN_PLACE = {"normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "random_", "geometric_"}
# what a split of a data set is, by number; NumPy's generators share no stream with PyTorch's
OWN = {
    "data/vectors.py": {"default_rng"},
    "data/user/rows.py": {"default_rng"},
    "data/text.py": {"RandomState"},
    "comparison/bands.py": {"Generator", "manual_seed"},
    "randomness/generators.py": {"Generator", "manual_seed"},  # under the seeds that it is given
}  # the points of one picture


CALLS = SEEDED | MAKERS | DRAWN | DRAWN_IN_PLACE
WORDS = re.compile(rf"\bPurpose\b|\b(?:{'|'.join(CALLS)})\s*\(")


@cache
def sources() -> dict[str, ast.Module]:
    """Every file that has a word or a call of this law: the others are not parsed, which takes long."""
    texts = {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return {path: ast.parse(text) for path, text in texts.items() if WORDS.search(text)}


def purposes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Purpose":
            yield node.attr


def faults(tree: ast.AST, allowed: set[str]) -> Iterator[str]:
    """Yield what draws random numbers that have no purpose."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = node.func if isinstance(node.func, ast.Attribute) else None
        name = method.attr if method else getattr(node.func, "id", "")
        if name not in CALLS:
            continue
        of = ast.unparse(method.value) if method else ""
        first = ast.unparse(node.args[0]) if node.args else ""
        if name in SEEDED and not of and not first.startswith(("Purpose.", "purpose")):
            yield f"line {node.lineno}: {name} without a purpose"
        if name in MAKERS and name not in allowed:
            yield f"line {node.lineno}: {name} beside the streams"
        drawn = (of == "torch" and name in DRAWN) or name in DRAWN_IN_PLACE
        if drawn and "generator" not in {keyword.arg for keyword in node.keywords}:
            yield f"line {node.lineno}: {of}.{name} without a generator"


def test_every_purpose_is_drawn_from_at_one_place():
    places = Counter(name for tree in sources().values() for name in purposes(tree))
    assert places == Counter(Purpose.__members__.keys())
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose.__members__) >= 50


def test_nothing_is_drawn_without_a_purpose():
    actual = {
        path: said
        for path, tree in sources().items()
        if path != "randomness/seeds.py" and (said := list(faults(tree, OWN.get(path, set()))))
    }
    assert not actual


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("generator(seed, 31)", "generator without a purpose"),
        ("mix(seed, s)", "mix without a purpose"),
        ("seeded(seed, device)", "seeded without a purpose"),
        ("seeded()", "seeded without a purpose"),
        ("torch.Generator().manual_seed(seed)", "manual_seed beside the streams"),
        ("np.random.default_rng(0)", "default_rng beside the streams"),
        ("torch.randn(3)", "torch.randn without a generator"),
        ("x.normal_()", "x.normal_ without a generator"),
    ],
)
def test_the_law_of_purposes_can_be_broken(line: str, said: str):
    assert any(said in fault for fault in faults(ast.parse(line), set()))
    assert not list(faults(ast.parse("torch.randn(3, generator=generator(Purpose.ORDER, seed))"), set()))


SIZE = 10_000


def test_streams_of_one_seed_are_uncorrelated():
    """Of some 2,000 pairs none is beyond 5.5 standard errors of the correlation of independent numbers."""
    drawn = torch.stack([torch.randn(SIZE, generator=generator(purpose, 0)) for purpose in Purpose])
    correlations = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert correlations.abs().max() < 5.5 / SIZE**0.5


def numbers() -> dict[str, Tensor]:
    """Return what the parts of the library draw at the default seed, each (draws, SIZE)."""
    with torch.random.fork_rng(devices=[]):
        module = nn.Linear(SIZE, 1, bias=False)
    model = tb.Model(module, tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    seeds = member_seeds(0, 5)
    weights_MD, _ = model.starting_weights(seeds)
    standard = tb.posteriors.Gaussian(model, torch.zeros(5, SIZE), Diagonal(torch.ones(5, SIZE)))
    narrow = tb.Model(lambda: nn.Linear(1, 1, bias=False), tb.likelihoods.Gaussian(1.0))
    targets = tb.predict(tb.posteriors.Point(narrow, torch.zeros(1, 1)), torch.zeros(SIZE, 1))
    grey = torch.full((1, 1, 100, 100), 0.5)
    actual = {
        "initial weights": weights_MD,
        "factory": tb.Model(lambda: nn.Linear(SIZE, 1, bias=False), model.likelihood).given_weights()[None],
        "posterior": standard.sample(10),
        "prior": model.prior.sample(5).float(),
        "targets": targets.sample(1).flatten(1),
        "corruption": corrupt(grey, "gaussian_noise", 1).flatten()[None],
        **{p.name: normals(seeds, p, 0, like=weights_MD) for p in (Purpose.MOMENTUM, Purpose.DIFFUSION)},
    }
    with torch.random.fork_rng(devices=[]):
        draws = [torch.manual_seed(seed) and draw(SIZE) for seed in range(3) for draw in (torch.randn, torch.rand)]
    actual["user"] = torch.stack(draws)
    return actual


def test_what_the_library_draws_at_its_default_seed_is_uncorrelated():
    """Above all noise of posterior draws and initial weights of members; users draw under small seeds too."""
    parts = numbers()
    bound = 5.5 / SIZE**0.5  # some 1,000 pairs
    for (name, one), (other, two) in combinations(parts.items(), 2):
        pairs = torch.corrcoef(torch.cat([one, two]))[: len(one), len(one) :]
        assert pairs.abs().max() < bound, f"{name} and {other}: {pairs.abs().max():.3f}"
    members = torch.corrcoef(parts["initial weights"]) - torch.eye(5)
    assert members.abs().max() < bound
