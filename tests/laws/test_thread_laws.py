"""Laws of threads: what several do at once with one model or posterior is, bit for bit, what each does alone.

A pause in every network lets other threads run in the middle of a forward pass. Another thread, which is the user's,
draws from PyTorch's default generator and seeds it all the while: it is neither disturbed nor does it disturb.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import everything, normal
from tests.methods.adapters.adapted import Adapted
from torchbayes.catalogue.methods import classes, small
from torchbayes.networks import DropConnect
from torchbayes.randomness.generators import drawing_under

ROWS, CLASSES, THREADS, DRAWS = 16, 2, 2, 4


class Pause(nn.Module):
    """Passes its inputs on, after other threads have had their turn."""

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0)
        return inputs


class Recurrent(nn.Module):
    """A recurrent layer with dropout between its two levels, read at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pause = nn.GRU(2, 3, num_layers=2, dropout=0.2, batch_first=True), Pause()
        self.head = nn.Linear(3, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.pause(self.body(inputs.unflatten(-1, (2, 2)))[0][:, -1]))


class Attending(nn.Module):
    """An encoder layer of a transformer, and the mean over its places."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(2, 1, 4, dropout=dropout, batch_first=True)
        self.pause, self.head = Pause(), nn.Linear(2, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.pause(self.body(inputs.unflatten(-1, (2, 2)))).mean(1))


class Noisy(nn.Module):
    """A network with noise of its own in training, and a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pause, self.head = nn.Linear(4, 4), Pause(), nn.Linear(4, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.pause(torch.tanh(self.first(inputs)))
        if self.training:
            hidden = hidden * (1 + 0.1 * torch.randn_like(hidden))
        return self.head(hidden) + 0 * self.calls


def dense(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *between, Pause(), nn.Linear(6, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)),
    "layer norm": lambda: dense(nn.LayerNorm(6), nn.GELU()),
    "batch norm": lambda: dense(nn.BatchNorm1d(6), nn.ReLU(inplace=True)),
    "recurrent": Recurrent,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), Pause(), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)
    ),
    "attention": Attending,
    "dropout": lambda: dense(nn.Dropout(0.3), nn.Tanh()),
    "attention with dropout": lambda: Attending(0.2),
    "noise": Noisy,
    "drop connect": lambda: nn.Sequential(DropConnect(nn.Linear(4, 6)), Pause(), nn.Tanh(), nn.Linear(6, CLASSES)),
    "adapted": lambda: nn.Sequential(Adapted(4, 6, rank=2).float(), Pause(), nn.Linear(6, CLASSES)),
    "rates": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, CLASSES)),
}

# of their base another is fitted in threads: one descent, one Metropolis test, one kind of noise, one of particles
STUDIES = {"SWA", "FGE", "Snapshots", "Simplex", "HMC", "MALA", "SGLD", "RepulsiveEnsemble"}
STUDIES |= {"MAMS", "UnderdampedLangevin", "MCLMC", "EllipticalSlice", "OnlineLaplace", "BSAM", "SVGD", "MNF", "SMILE"}
STUDIES |= {"SWAG", "Curve", "RandomWalk", "MILE", "VI", "NormalizingFlow", "VBLL", "MCBatchNorm"}
STUDIES |= {"SGNHT", "SGHMC"}  # which answers in threads below
STUDIES |= {"BLoB"}  # which descends as VI does
STUDIES |= {"ConcreteDropout"}  # which masks as MCDropout does
FITS: list[tuple[str, str]] = [
    ("MAP", "recurrent"),
    ("SWA", "noise"),
    ("SWAG", "batch norm"),
    ("Curve", "layer norm"),
    ("Simplex", "perceptron"),
    ("Laplace", "convolution"),
    ("OnlineLaplace", "layer norm"),
    ("HMC", "layer norm"),
    ("NUTS", "perceptron"),
    ("MALA", "convolution"),
    ("RandomWalk", "attention"),
    ("EllipticalSlice", "recurrent"),
    ("MCLMC", "layer norm"),
    ("MAMS", "attention"),
    ("UnderdampedLangevin", "convolution"),
    ("MILE", "perceptron"),
    ("SGLD", "noise"),
    ("SGHMC", "dropout"),
    ("SGNHT", "drop connect"),
    ("SMILE", "layer norm"),
    ("VI", "dropout"),
    ("IVON", "noise"),
    ("NormalizingFlow", "layer norm"),
    ("MNF", "convolution"),
    ("VBLL", "layer norm"),
    ("SVGD", "recurrent"),
    ("RepulsiveEnsemble", "attention"),
    ("MCDropout", "attention with dropout"),
    ("ConcreteDropout", "rates"),
    ("MCBatchNorm", "batch norm"),
    ("FGE", "attention"),
    ("Snapshots", "convolution"),
    ("BSAM", "batch norm"),
    ("TFB", "adapted"),
    ("BLoB", "adapted"),
]
TRAINED = {"epochs": 1, "batch_size": 8, "plan": "loop"}
SAMPLED = {"steps": 3, "burn_in": 1, "thin": 1, "batch_size": 8, "plan": "loop"}


def method_of(name: str) -> Any:
    """A short run of a method of the catalogue, in a loop over its members."""
    kind = classes()[name]
    known = {each.name for each in fields(kind)}
    settings: dict[str, Any] = {k: v for k, v in (SAMPLED if "steps" in known else TRAINED).items() if k in known}
    settings |= {"transform": "spline", "layers": 1, "hidden": 4, "bins": 4} if name == "NormalizingFlow" else {}
    settings |= {"members": 2} if name in {"SVGD", "RepulsiveEnsemble"} else {}
    settings |= {"max_doublings": 3} if name == "NUTS" else {}
    settings |= {"epochs_of_descent": 1, "every": 4} if name == "OnlineLaplace" else {}
    if name == "MILE":
        sampler = tb.MCLMC(steps=16, burn_in=12, thin=1, plan="loop")  # a sixth of it is a step
        settings |= {"members": 2, "sampler": sampler, "ensemble": method_of("MAP")}
    return kind(**settings, **small(kind))


def model_of(network: str | nn.Module) -> tb.Model:
    """A classifier that makes its networks, or is given one."""
    made = NETWORKS[network] if isinstance(network, str) else network
    return tb.Model(made, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


X = normal(ROWS, 4, seed=3, dtype=torch.float32)
Y = (X[:, 0] > 0).long()


@pytest.fixture
def small_turns() -> Iterator[None]:
    """Let threads change as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class User:
    """A thread that draws numbers from PyTorch's default generator while a `with` lasts."""

    def __enter__(self) -> User:
        self._state, self._over, self.numbers = torch.get_rng_state(), threading.Event(), list[Tensor]()
        self._thread = threading.Thread(target=self._draw)
        self._thread.start()
        return self

    def _draw(self) -> None:
        while not self._over.wait(1e-4):
            if len(self.numbers) % 7 == 0:
                torch.manual_seed(11)
            self.numbers.append(torch.rand(3))

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        mine = torch.Generator().manual_seed(11)
        wanted = [torch.rand(3, generator=mine) for _ in range(7)]
        torch.set_rng_state(self._state)
        assert all(torch.equal(actual, wanted[n % 7]) for n, actual in enumerate(self.numbers)), (
            "the user was disturbed"
        )


def at_once(*asked: Callable[[], Any]) -> list[Any]:
    """What functions return, each in a thread of its own, that start together; their errors are raised here."""
    actual: list[Any] = [None] * len(asked)
    start = threading.Barrier(len(asked))

    def run(n: int) -> None:
        start.wait()
        try:
            actual[n] = asked[n]()
        except Exception as error:
            actual[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(asked))]
    with User():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for each in actual:
        if isinstance(each, Exception):
            raise each
    return actual


def assert_alike(actual: Any, wanted: Any) -> None:
    """Two trees of tensors and numbers are equal bit for bit."""
    if isinstance(wanted, Tensor):
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual.nan_to_num(), wanted.nan_to_num())
    elif is_dataclass(wanted):
        assert_alike(vars(actual), vars(wanted))
    elif isinstance(wanted, dict):
        assert actual.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_alike(actual[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(actual) == len(wanted)
        for one, other in zip(actual, wanted, strict=True):
            assert_alike(one, other)
    else:
        assert actual == wanted


def test_every_method_of_the_catalogue_is_fitted_in_threads() -> None:
    sites = {"EP", "PBP"}  # of networks of their own, below
    assert {name for name, _ in FITS} == classes().keys() - sites
    assert {network for _, network in FITS} == NETWORKS.keys()


@pytest.mark.parametrize(
    ("name", "network"), [pytest.param(*fit, marks=pytest.mark.study if fit[0] in STUDIES else ()) for fit in FITS]
)
@pytest.mark.filterwarnings("ignore")
def test_fits_in_threads_are_those_of_their_seeds(name: str, network: str, small_turns: None) -> None:
    model, method = model_of(network), method_of(name)

    def ask(seed: int) -> Any:
        start = None
        if method.needs.start is not None:
            start = model.network.fresh([seed, seed + 10][: method.needs.modes])[0]
        posterior = tb.fit(model, (X, Y), method, seed=seed, start=start, callbacks=())
        return everything(posterior), tb.predict(posterior, X, draws=DRAWS * posterior.members, seed=seed).probs

    wanted = [ask(seed) for seed in range(THREADS)]
    assert_alike(at_once(*(lambda seed=seed: ask(seed) for seed in range(THREADS))), wanted)


# functions of one network and of several masks are asked in threads above, by `predict`
PREDICTIONS: list[Any] = [
    pytest.param("MAP", "recurrent", {"members": 2}, marks=pytest.mark.study),
    ("SWAG", "batch norm", {"rank": 2}),
    ("Laplace", "convolution", {}),
    ("Laplace", "attention", {"structure": "diagonal", "prior": "model", "check_mode": False}),
    pytest.param("MCDropout", "attention with dropout", {}, marks=pytest.mark.study),
    ("MCBatchNorm", "batch norm", {}),
    ("VI", "noise", {}),
    ("SGHMC", "drop connect", {"steps": 8}),
    ("NormalizingFlow", "layer norm", {"transform": "planar"}),
]
VERBS: dict[str, Callable[[Any, int], Any]] = {
    "predict": lambda posterior, n: tb.predict(posterior, X[n:], draws=DRAWS, seed=n).probs,
    "stream": lambda posterior, n: [
        (each.probs, y)
        for each, y in tb.stream(posterior, list(zip(X[n:].split(8), Y[n:].split(8), strict=True)), draws=DRAWS)
    ],
    "evaluate": lambda posterior, n: tb.evaluate(posterior, (X[n:], Y[n:]), draws=DRAWS, seed=n).metrics,
    "uncertainty": lambda posterior, n: dict(vars(tb.uncertainty(posterior, X[n:], draws=DRAWS, seed=n))),
}
OF_SOME: dict[str, dict[str, Callable[[Any, int], Any]]] = {
    "Laplace": {"tune": lambda posterior, n: (n, everything(tb.tune(posterior)))},
    "SGHMC": {"diagnose": lambda posterior, n: tb.diagnose(posterior, X[n:])},
    "NormalizingFlow": {"diagnose": lambda posterior, n: tb.diagnose(posterior, X, Y, draws=8 + n)},
}


# one posterior of points, one of a Gaussian, one of draws, and one whose masks are beside the weights
OFTEN = {"MAP-recurrent", "Laplace-convolution", "SGHMC-drop connect", "MCDropout-attention with dropout"}


@pytest.mark.parametrize(
    ("name", "network", "settings"),
    [pytest.param(*case, marks=() if f"{case[0]}-{case[1]}" in OFTEN else pytest.mark.study) for case in PREDICTIONS],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_one_posterior_answers_in_threads_as_it_does_alone(
    name: str, network: str, settings: dict[str, Any], small_turns: None
) -> None:
    with drawing_under(5):
        model = model_of(NETWORKS[network]())
    start = model.network.fresh([3])[0] if method_of(name).needs.start is not None else None
    posterior: Any = tb.fit(model, (X, Y), replace(method_of(name), **settings), start=start, callbacks=())
    module = posterior.module(draws=4)
    verbs = {**VERBS, "module": lambda _, n: module(X[n:]), **OF_SOME.get(name, {})}
    wanted = {verb: [ask(posterior, n) for n in range(THREADS)] for verb, ask in verbs.items()}
    fresh = pickle.loads(pickle.dumps(copy.deepcopy(posterior)))  # knows nothing yet
    for verb, ask in verbs.items():
        assert_alike(at_once(*(lambda n=n, ask=ask: ask(fresh, n) for n in range(THREADS))), wanted[verb])
    several = [*verbs.items()] * 2
    actual = at_once(*(lambda n=n, ask=ask: ask(posterior, n % THREADS) for n, (_, ask) in enumerate(several)))
    assert_alike(actual, [wanted[verb][n % THREADS] for n, (verb, _) in enumerate(several)])
