"""The methods for adapters by name: their settings for a length of training, their prior, and where they begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torchbayes.catalogue.methods import IVON, MAP, SGHMC, SWAG, TFB, BLoB, Laplace
from torchbayes.checks import nearest
from torchbayes.lora.settings import Length, Settings
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.protocol import Method
from torchbayes.methods.schedules import Cosine
from torchbayes.model.priors import Flat, Normal

_WARMUP, _EPS = 0.06, 1e-6  # of the reference
_CHAINS, _DRAWS = 2, 20  # of SGHMC, and draws that each chain keeps
_AVERAGED = 0.5  # learning rate and length of SWAG, over those of the training it begins at
_NARROW = (
    0.01  # standard deviation of the first draws of IVON: an adapter bears no wider ones, and forgets what it learned
)
Make = Callable[[Settings, Length], Method]


class Entry(NamedTuple):
    """A method.

    Attributes:
        label: its name in tables and pictures.
        line: what it is.
        make: its settings.
        around: whether it begins at the trained adapter; else it trains a fresh one, or the one that is given.
        prior: None for the prior of the settings.
        scaled: whether the rows of A have scales.
        drawn: whether its draws are different networks.
    """

    label: str
    line: str
    make: Make
    around: bool = False
    prior: dict[str, Any] | None = None
    scaled: bool = False
    drawn: bool = True


def _descent(settings: Settings, length: Length) -> dict[str, Any]:
    optimizer = Adam(length.lr, eps=_EPS)
    return {"epochs": length.epochs, "batch_size": settings.batch_size, "optimizer": optimizer}


def _map(settings: Settings, length: Length, members: int = 1) -> Method:
    return MAP(members=members, **_descent(settings, length), schedule=Cosine(warmup=_WARMUP))


def _swag(settings: Settings, length: Length) -> Method:
    shorter = replace(length, epochs=max(2, round(_AVERAGED * length.epochs)))
    return SWAG(**_descent(settings, shorter), averaging_lr=_AVERAGED * length.lr)


def _blob(settings: Settings, length: Length) -> Method:
    return BLoB(**_descent(settings, length), schedule=Cosine(warmup=_WARMUP))


def _ivon(settings: Settings, length: Length) -> Method:
    rows = length.steps * settings.batch_size / length.epochs
    return IVON(epochs=length.epochs, batch_size=settings.batch_size, hessian_init=1 / (_NARROW**2 * rows))


def _sghmc(settings: Settings, length: Length) -> Method:
    kept = max(1, min(_DRAWS, length.steps // 2))
    thin = max(1, length.steps // 2 // kept)
    return SGHMC(chains=_CHAINS, steps=2 * thin * kept, burn_in=thin * kept, thin=thin, batch_size=settings.batch_size)


METHODS: dict[str, Entry] = {
    "map": Entry("MAP", "one trained adapter", _map, drawn=False),
    "ensemble": Entry("ensemble", "adapters trained from fresh starts", lambda s, n: _map(s, n, s.members)),
    "laplace": Entry(
        "Laplace",
        "a Gaussian by the curvature at the trained adapter, with the prior's strength chosen by the evidence",
        lambda s, n: Laplace("kronecker", batch_size=s.batch_size, check_mode=False),
        around=True,
    ),
    "tfb": Entry(
        "TFB",
        "a Gaussian around the trained adapter, as wide as the loss bears",
        lambda s, n: TFB(batch_size=s.batch_size, draws=s.draws),
        around=True,
    ),
    "swag": Entry("SWAG", "a Gaussian of the iterates that go on from the trained adapter", _swag, around=True),
    "ivon": Entry(
        "IVON",
        "an independent normal distribution of each weight, by natural gradients from the trained adapter",
        _ivon,
        around=True,
    ),
    "blob": Entry(
        "BLoB",
        "the factor A is normal, and B is trained along with it",
        _blob,
        prior={"*lora_A*": Normal(0.2), "*": Flat()},
    ),
    "scalabl": Entry(
        "ScalaBL",
        "one normal number for each row of A, and the rest is trained along with it",
        _blob,
        prior={"*lora_scales": Normal(1.0), "*": Flat()},
        scaled=True,
    ),
    "sghmc": Entry("SGHMC", "chains on minibatches that begin at the trained adapter", _sghmc, around=True),
}
ALL = "all"
DEFAULT = "laplace"


def named(methods: Any) -> list[str]:
    """Return methods by name, each once; `all` stands for every one. Raises ValueError for another name."""
    names = [*methods] if isinstance(methods, list | tuple) else [methods]
    for name in names:
        if name != ALL and name not in METHODS:
            raise ValueError(f"there is no method for adapters called {name!r}. {nearest(name, [*METHODS, ALL])}")
    if not names:
        raise ValueError(f"say which methods: {', '.join(METHODS)}, or {ALL}.")
    return list(METHODS if ALL in names else dict.fromkeys(names))
