"""Laws of posteriors whose draws have masks or statistics of their own, and of the methods that give them.

The laws of methods are run on networks that have what the methods need: each network of the registry with dropout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws import cases, test_method_laws
from tests.laws.cases import CLASSES, Nested, Net, Tied, assert_same_tensors, everything, made, normal
from tests.laws.test_method_laws import break_after, keep_every
from tests.posteriors.layers.layer_networks import Wrapped, stack
from tests.ranks import check, launch
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import member_seeds


class TiedDropout(Tied):
    """The tied layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(self.dropout(torch.tanh(self.first(inputs)))))


class NestedDropout(Nested):
    """The nested blocks with dropout at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.dropout(inputs + self.gain * self.body["block"](inputs)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Dropout(0.2)), nn.Linear(6, CLASSES))


def conv_batch_norm() -> nn.Module:
    block = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout2d(0.1))
    return nn.Sequential(nn.Conv2d(1, 3, 3), block, nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))


def frozen_backbone() -> nn.Module:
    return nn.Sequential(cases.frozen_backbone()[0], nn.Dropout(0.1), nn.Linear(5, CLASSES))  # type: ignore[index]


WITH_DROPOUT = {
    "mlp": Net(mlp),
    "conv_batch_norm": Net(conv_batch_norm, (1, 4, 4)),
    "tied": Net(TiedDropout),
    "nested": Net(NestedDropout),
    "frozen": Net(frozen_backbone),
    "dropout": cases.NETWORKS["dropout"],
}
METHODS = {"mc_dropout": tb.MCDropout}
LAWS = [
    test_method_laws.test_interrupted_and_resumed_equals_uninterrupted,
    test_method_laws.test_members_together_equal_members_alone,
    test_method_laws.test_step_is_pure_and_donating_changes_nothing,
    test_method_laws.test_pieces_by_hand_equal_fit,
    test_method_laws.fit_moves_nothing_else,
    test_method_laws.test_only_random_weights_move,
    test_method_laws.test_saved_posterior_is_the_returned_one,
]


@pytest.fixture(autouse=True)
def networks_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every network of the registry have dropout."""
    monkeypatch.setattr(cases, "NETWORKS", WITH_DROPOUT)


def runs(kinds: Mapping[str, Any], laws: Iterable[Callable[..., None]], names: Iterable[str]) -> Iterator[Any]:
    """Each law on each network that it is about: one network in three runs, in turn; the others are studies."""
    laws = sorted(laws, key=lambda law: "network" not in inspect.signature(law).parameters)
    for (name, make), (turn, law) in product(kinds.items(), enumerate(laws)):
        networks = tuple(names) if "network" in inspect.signature(law).parameters else ("",)
        for place, network in enumerate(networks):
            marks = pytest.mark.study if (turn + place) % min(3, len(networks)) else ()
            yield pytest.param(make, law, network, id=f"{name}-{law.__name__}-{network}".rstrip("-"), marks=marks)


def obey(law: Callable[..., None], make: Callable[..., Any], network: str, request: pytest.FixtureRequest) -> None:
    """Run a law of methods with what it asks for: a method, a network by name, and fixtures."""
    actual: dict[str, Any] = {"make": make, "network": network, "plans": ("loop",)}
    law(**{n: actual[n] if n in actual else request.getfixturevalue(n) for n in inspect.signature(law).parameters})


@pytest.mark.parametrize(("make", "law", "network"), [*runs(METHODS, LAWS, WITH_DROPOUT)])
def test_law_of_methods(
    make: Callable[..., Any], law: Callable[..., None], network: str, request: pytest.FixtureRequest
) -> None:
    obey(law, make, network, request)


@pytest.mark.parametrize(
    "network",  # what is trained are the networks of `test_every_method_learns_on_every_network_and_nothing_else_moves`
    [pytest.param(n, marks=() if n == "frozen" else pytest.mark.study) for n in WITH_DROPOUT],
)
def test_it_learns_on_every_network(network: str) -> None:
    model, data = cases.model_of(network, torch.float32), cases.rows_of(network, torch.float32)
    posterior = tb.fit(model, data, tb.MCDropout(2, epochs=40, batch_size=8), callbacks=())
    assert posterior.tensors()["weights_MD"].dtype == torch.float32
    evaluation = tb.evaluate(posterior, data)
    assert evaluation.metrics["accuracy"] > (0.5 if network == "frozen" else 0.7)


# --- batch norm, which starts at trained networks


def statistics(**options: Any) -> tb.BatchNormPosterior:
    """One small fit of two members, on four minibatches of 6 rows, twice."""
    model, data = cases.model_of("conv_batch_norm"), cases.rows_of("conv_batch_norm")
    start = 0.5 * normal(2, model.layout.size, seed=5)
    method = options.pop("method", tb.MCBatchNorm(7, draws=8))
    return tb.fit(model, data, method, **{"start": start, "seed": 7, "callbacks": (), **options})  # type: ignore[return-value]


def test_interrupted_batch_norm_equals_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = statistics(directory=tmp_path / "whole")
    keep_every(monkeypatch, 10.0)
    for steps in (3, 4):  # within the first pass, and at the start of the second
        with monkeypatch.context() as inside:
            break_after(inside, tb.MCBatchNorm, steps)
            with pytest.raises(KeyboardInterrupt):
                statistics(directory=tmp_path / str(steps))
        resumed = statistics(directory=tmp_path / str(steps), resume=True)
        assert_same_tensors(everything(resumed), everything(expected))
        assert cases.losses(tmp_path / str(steps)) == cases.losses(tmp_path / "whole")


def test_members_of_batch_norm_together_equal_members_alone() -> None:
    together, model = everything(statistics()), cases.model_of("conv_batch_norm")
    start = 0.5 * normal(2, model.layout.size, seed=5)
    for m, seed in enumerate(member_seeds(7, 2)):
        alone = everything(statistics(start=start[m], seed=seed))
        for name, tensor in together.items():
            torch.testing.assert_close(tensor[m], alone[name][0], rtol=1e-10, atol=1e-12)


def fit_on_ranks(folder: Path) -> None:
    """Fit members on two processes; each saves what it got."""
    with pytest.MonkeyPatch.context() as monkeypatch, tb.Ranks.grid(1, 2) as ranks:
        monkeypatch.setattr(cases, "NETWORKS", WITH_DROPOUT)
        for name, posterior in {"norm": statistics(ranks=ranks), "dropout": dropped(ranks)}.items():
            posterior.save(folder / f"{name}_{ranks.chain_rank}.safetensors")


def dropped(ranks: tb.Ranks | None = None) -> Posterior:
    method = tb.MCDropout(members=3, epochs=3, batch_size=6, plan="loop")
    return tb.fit(cases.model_of(), cases.rows_of(), method, seed=7, ranks=ranks, callbacks=())


@pytest.mark.slow
@pytest.mark.study  # the driver shares members alike for all methods, as tests/laws/test_rank_laws.py sees
def test_ranks_that_share_members_equal_one_process(tmp_path: Path) -> None:
    check(launch(fit_on_ranks, 2, tmp_path, tmp_path))
    for name, alone in {"norm": statistics(), "dropout": dropped()}.items():
        for rank in range(2):
            actual = tb.load(tmp_path / f"{name}_{rank}.safetensors", alone.model)
            for key, tensor in everything(alone).items():
                torch.testing.assert_close(everything(actual)[key], tensor, rtol=1e-8, atol=1e-9)


# --- posteriors


def in_weights(members: int) -> Posterior:
    return _dropout(stack, members)


def beside_weights(members: int) -> Posterior:
    return _dropout(lambda: Wrapped(stack()), members)


def _dropout(make: Callable[[], nn.Module], members: int) -> Posterior:
    model = tb.Model(make().double(), tb.likelihoods.Categorical())
    return tb.DropoutPosterior(model, normal(members, model.layout.size, seed=3), statistics_known=True)


def batch_norm(members: int) -> Posterior:
    model = tb.Model(made("conv_batch_norm"), tb.likelihoods.Categorical())
    drawn = {f"1.0.running_{part}": normal(members, 6, 3, seed=4).square() + 0.5 for part in ("mean", "var")}
    weights = normal(members, model.layout.size, seed=3)
    return tb.BatchNormPosterior(model, weights, drawn, statistics_known=True)


POSTERIORS: dict[str, tuple[Callable[[int], Posterior], tuple[int, ...]]] = {
    "in_weights": (in_weights, (4,)),
    "beside_weights": (beside_weights, (4,)),
    "batch_norm": (batch_norm, (1, 4, 4)),
}
posteriors = pytest.mark.parametrize(("make", "shape"), POSTERIORS.values(), ids=POSTERIORS)


@posteriors
def test_same_seed_same_functions_other_seed_other_functions(make: Any, shape: tuple[int, ...]) -> None:
    inputs = normal(5, *shape)
    first, again, other = (make(3).functions(6, seed=s)(inputs) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@posteriors
def test_first_functions_of_a_longer_request_are_those_of_a_shorter_one(make: Any, shape: tuple[int, ...]) -> None:
    inputs = normal(5, *shape)
    long = make(3).functions(27, seed=4)(inputs)
    for draws in (3, 6, 15):
        torch.testing.assert_close(make(3).functions(draws, seed=4)(inputs), long[:draws], rtol=1e-12, atol=1e-13)


@posteriors
def test_draw_s_is_from_member_s_mod_m(make: Any, shape: tuple[int, ...]) -> None:
    """A member with no weights gives zeros, in its turn."""
    posterior = make(3)
    posterior.weights_MD[1] = 0
    outputs = posterior.functions(12, seed=6)(normal(5, *shape))
    assert ((outputs == 0).flatten(1).all(1)).tolist() == [False, True, False] * 4


@posteriors
def test_some_functions_are_those_of_all(make: Any, shape: tuple[int, ...]) -> None:
    inputs, functions = normal(5, *shape), make(2).functions(8, seed=1)
    outputs = functions(inputs)
    chosen = torch.tensor([True, False, False, True, True, False, False, False])
    torch.testing.assert_close(functions.some(chosen)(inputs), outputs[chosen], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(functions.some(slice(2, 4))(inputs), outputs[2:4], rtol=1e-12, atol=1e-13)
    places = torch.tensor([7, 0])
    torch.testing.assert_close(functions.some(places)(inputs), outputs[places], rtol=1e-12, atol=1e-13)


@posteriors
def test_saved_and_loaded_posterior_gives_the_same_functions(make: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    posterior, inputs = make(3), normal(5, *shape)
    loaded = tb.load(posterior.save(tmp_path / "q.safetensors"), posterior.model)
    assert type(loaded) is type(posterior)
    assert_same_tensors(everything(loaded), everything(posterior))
    assert torch.equal(loaded.functions(6, seed=3)(inputs), posterior.functions(6, seed=3)(inputs))


@posteriors
def test_draws_must_weigh_members_equally(make: Any, shape: tuple[int, ...]) -> None:
    for call in (make(3).functions, make(3).sample):
        with pytest.raises(ValueError, match=r"multiple of the 3 members; got 10. Try 9 or 12."):
            call(10)
    assert make(7).functions().draws == make(7).default_draws == 35
    assert len(shape) > 0


@posteriors
def test_average_weighs_members_equally(make: Any, shape: tuple[int, ...]) -> None:
    functions, inputs = make(3).functions(18, seed=8), normal(5, *shape)
    each = [tb.predict(functions.some(torch.arange(18) % 3 == m), inputs).probs for m in range(3)]
    torch.testing.assert_close(tb.predict(functions, inputs).probs, torch.stack(each).mean(0), rtol=1e-12, atol=1e-14)
