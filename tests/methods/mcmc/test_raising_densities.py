"""Densities that raise exceptions or have the wrong shape: rejected, counted, or said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import some_of
from tests.oracles import assert_close, normal
from torch import Tensor, distributions, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.density import Value
from torchbayes.methods.faults import evaluated, is_fault
from torchbayes.methods.protocol import DivergedError
from torchbayes.methods.sampler import Sampler
from torchbayes.native.processes import LostRankError

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "hmc": lambda chains: tb.HMC(chains, 24, 12, step_size=0.5, trajectory=1.2, jitter=0.5),
    "hmc adapted": lambda chains: tb.HMC(chains, 24, 18, trajectory=1.2),
    "nuts": lambda chains: tb.NUTS(chains, 14, 10, step_size=0.4, mass="unit", max_doublings=4),
    "mala": lambda chains: tb.MALA(chains, 40, 20),
    "random walk": lambda chains: tb.RandomWalk(chains, 40, 20, step_size=1.5),
    "mams": lambda chains: tb.MAMS(chains, 24, 12, step_size=1.0, trajectory=2.0, mass="unit", max_leapfrogs=4),
}
samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
WALL = 0.3  # of the half space in which the target is


@pytest.fixture(autouse=True)
def checked_distributions():
    """Let Distributions check their parameters: torch.compile, in a test before, turns that off for good."""
    distributions.Distribution.set_default_validate_args(True)


def inside(weights_MD: Tensor) -> Tensor:
    return weights_MD[:, 0] < WALL


def no_density(weights_MD: Tensor) -> Tensor:
    """N(0, I), and −∞ beyond the wall."""
    return torch.where(inside(weights_MD), -0.5 * weights_MD.double().square().sum(1), -torch.inf)


def invalid(weights_MD: Tensor) -> Tensor:
    """N(0, I), and a ValueError of torch beyond the wall: a scale that is not positive."""
    room_M = WALL - weights_MD[:, 0].detach()
    return -0.5 * weights_MD.double().square().sum(1) + 0 * distributions.Normal(0.0, room_M).entropy()


def not_positive_definite(weights_MD: Tensor) -> Tensor:
    """N(0, I), and a LinAlgError, which is a RuntimeError, beyond the wall."""
    room_M11 = (WALL - weights_MD[:, :1].detach()).unsqueeze(-1)
    return -0.5 * weights_MD.double().square().sum(1) + 0 * torch.linalg.cholesky(room_M11).sum((1, 2))


def start(chains: int) -> Tensor:
    return -normal(chains, 2).abs()


# --- proposals ---


@pytest.mark.parametrize(("make", "broken"), some_of(SAMPLERS.values(), [invalid, not_positive_definite], one_in=2))
@pytest.mark.parametrize("chains", [7, pytest.param(1, marks=pytest.mark.study)])
def test_an_exception_rejects_as_no_density_does(make: Callable[[int], Sampler], broken: Any, chains: int):
    """Of seven chains that are evaluated together, exactly those that went beyond the wall, for every pattern."""
    expected = tb.sample(tb.FunctionDensity(no_density), make(chains), start(chains), seed=2)
    actual = tb.sample(tb.FunctionDensity(broken), make(chains), start(chains), seed=2)
    assert torch.equal(actual.weights_MSD, expected.weights_MSD)
    for name in ("acceptance", "divergent", "step_size", "gradients"):
        assert torch.equal(actual.numbers[name], expected.numbers[name])
    assert torch.equal(actual.numbers["failed"], expected.numbers["divergent"])
    assert 0 < actual.numbers["failed"].mean() < 1
    assert (expected.numbers["failed"] == 0).all()


def test_what_failed_can_be_read_in_the_state_and_the_first_exception():
    method, density = tb.RandomWalk(4, 5, 0, step_size=1e6), tb.FunctionDensity(not_positive_definite)
    state: Any = method.init(density, start(4), seeds=[1, 2, 3, 4])
    seen = []
    for _ in range(5):
        state, info = method.step(density, state)
        seen.append(info.now())
        assert bool(info.faults.raised_M.any()) == bool(info.now())
    assert any("LinAlgError: linalg.cholesky:" in str(each.get("fault")) for each in seen)


@pytest.mark.parametrize("failing", [[], [3], [0, 6], [1, 2, 3], [*range(8)]])
def test_the_chains_that_fail_are_found_by_halves(failing: list[int]):
    """Rows may be different targets, so each is evaluated in its own place, and one failure takes few calls."""
    calls: list[int] = []

    def density(weights_MD: Tensor, batch: Any = None) -> Value:
        calls.append(len(weights_MD))
        if (weights_MD[:, 0] > 10).any():
            raise np.linalg.LinAlgError("singular")
        rows_M = torch.arange(8) * weights_MD[:, 0]
        return Value(rows_M.double(), weights_MD + torch.arange(8)[:, None], -rows_M.double())

    at_MD, known_MD = normal(8, 2), normal(8, 2, seed=1)
    at_MD[failing] += 100
    value, faults = evaluated(density, at_MD, known_MD=known_MD)  # type: ignore[arg-type]
    fine = [m for m in range(8) if m not in failing]
    assert faults.raised_M.nonzero().flatten().tolist() == failing
    assert faults.first == ("LinAlgError: singular" if failing else "")
    assert_close(value.log_density[fine], (torch.arange(8) * at_MD[:, 0])[fine])
    assert_close(value.gradient[fine], (at_MD + torch.arange(8)[:, None])[fine])
    assert_close(value.log_likelihood[fine], -(torch.arange(8) * at_MD[:, 0])[fine])
    assert (value.log_density[failing] == -torch.inf).all()
    assert set(calls) == {8}
    assert len(calls) <= 1 + 6 * max(1, len(failing))
    assert failing or len(calls) == 1


@pytest.mark.parametrize("size", [16, 21])
def test_trajectories_that_failed_are_over(size: int):
    """They are not evaluated beyond the wall any more, and are rejected wherever they end."""
    places: list[Tensor] = []

    def ring(weights_MD: Tensor) -> Tensor:
        places.append(weights_MD.detach().clone())
        if ((weights_MD[:, 0] > 1) & (weights_MD[:, 0] < 2)).any():
            raise ValueError("within the ring")
        return -0.5 * (weights_MD / 5).square().sum(1)

    method = tb.HMC(size, 1, 0, step_size=0.8, trajectory=12.0)
    start_MD = torch.zeros(size, 1, dtype=torch.float64)
    chains = tb.sample(tb.FunctionDensity(ring), method, start_MD, seed=1)
    failed = chains.numbers["failed"][:, 0] == 1
    assert 0 < failed.sum() < size
    assert (chains.weights_MSD[failed, 0, 0] == 0).all()
    assert (chains.numbers["acceptance"][failed] == 0).all()
    ends = chains.weights_MSD[~failed, 0, 0]
    assert ((ends < 1) | (ends > 2)).all()


OTHER_ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    NotImplementedError(),
    TypeError("unexpected"),
    LostRankError("rank 1 is lost"),
    SettingError("no such plan"),
]


# all samplers ask `faults` what an error is
@pytest.mark.parametrize(("make", "error"), some_of(SAMPLERS.values(), OTHER_ERRORS, one_in=3))
def test_what_is_no_fault_of_the_target_ends_the_run(make: Callable[[int], Sampler], error: BaseException):
    calls: list[int] = []

    def breaks(weights_MD: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise error
        return no_density(weights_MD)

    with pytest.raises(type(error)):
        tb.sample(tb.FunctionDensity(breaks), make(2), start(2))
    assert len(calls) == 31


def test_a_rank_that_shares_the_rows_passes_its_exceptions_on():
    density: Any = SimpleNamespace(ranks=tb.Ranks(data=2))
    assert not is_fault(ValueError("here alone"), density)
    assert is_fault(ValueError("here"), SimpleNamespace(ranks=tb.Ranks(chains=2)))  # type: ignore[arg-type]


# --- where chains start, and chains without proposals ---


@samplers
@pytest.mark.parametrize(
    ("start_MD", "words"),
    [
        ([[-1.0, 0.0], [1.0, 0.0]], "where chain 1 starts: LinAlgError: linalg.cholesky"),
        ([[1.0, 0.0], [2.0, 0.0]], "where the chains start: LinAlgError: linalg.cholesky"),
    ],
)
def test_an_exception_at_the_start_is_an_error_that_names_the_chain(
    make: Callable[[int], Sampler], start_MD: list[list[float]], words: str
):
    with pytest.raises(ValueError, match=words):
        tb.sample(tb.FunctionDensity(not_positive_definite), make(2), torch.tensor(start_MD).double())


@pytest.mark.parametrize("make", [tb.SGLD, tb.SGHMC, tb.SGNHT])
def test_a_chain_on_minibatches_goes_back_from_where_the_density_cannot_be_computed(make: Callable[..., Sampler]):
    method = make(2, 120, 0, step_size=0.1, batch_size=None)
    with pytest.warns(tb.ProblemWarning, match="diverged"):
        chains = tb.sample(tb.FunctionDensity(invalid), method, start(2))
    assert torch.isfinite(tb.FunctionDensity(invalid)(chains.weights_MSD.flatten(0, 1)).log_density).all()


def test_chains_on_minibatches_end_where_the_density_cannot_be_computed_anywhere():
    def never(w: Tensor) -> Tensor:
        raise ValueError("no number here")

    words = r"cannot be computed at step 7 of 50: ValueError: no number here. A chain on minibatches has no proposals"
    with pytest.raises(DivergedError, match=words):
        tb.sample(tb.FunctionDensity(never), tb.SGLD(2, 50, 0, step_size=0.1, batch_size=None), start(2))


# --- models ---


class Odd(nn.Module):
    """A network that the kernel does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs).sin()


@pytest.mark.parametrize(
    "method",
    [
        tb.HMC(2, 20, 5, step_size=0.1, trajectory=0.2, plan="native"),
        tb.NUTS(2, 20, 5, plan="native"),
        tb.RandomWalk(2, 20, 5, plan="native"),
        tb.SGLD(2, 20, 5, step_size=1e-4, plan="native", thin=1),
        tb.MAP(epochs=2, plan="native"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_setting_that_cannot_be_is_no_fault_of_the_target(method: Any):
    model = tb.Model(Odd(), tb.likelihoods.Gaussian(0.5))
    with pytest.raises(SettingError, match=r"^plan 'native' cannot run this model: .* Set another plan, or leave it"):
        tb.fit(model, (normal(9, 1), normal(9, 1, seed=1)), method, callbacks=())


def mean_with_a_scale(outputs: Tensor) -> distributions.Distribution:
    """A normal law whose scale is the second output: refused by torch where that is not positive."""
    return distributions.Normal(outputs[..., 0], outputs[..., 1])


def regression() -> tuple[tb.Model, tuple[Tensor, Tensor], nn.Module]:
    net = nn.Linear(1, 2).double()
    nn.init.zeros_(net.weight)
    net.bias.data = torch.tensor([0.0, 1.0]).double()
    model = tb.Model(net, tb.likelihoods.Custom(mean_with_a_scale), tb.priors.Normal(1.0))
    return model, (normal(9, 1), 0.3 * normal(9, seed=1)), net


@pytest.mark.parametrize("plan", [pytest.param("loop", marks=pytest.mark.study), "vmap"])
def test_a_fit_goes_on_beside_weights_that_a_likelihood_refuses(plan: str, tmp_path: Path):
    model, data, start = regression()
    method = tb.HMC(3, 24, 12, step_size=0.04, trajectory=0.12, plan=plan)
    posterior = tb.fit(model, data, method, start=start, directory=tmp_path, callbacks=())
    assert isinstance(posterior, tb.Draws)
    views = model.layout.split(posterior.weights_MSD)
    slope, shift = views["weight"][:, :, 1, 0], views["bias"][:, :, 1]
    assert (slope[..., None] * data[0][:, 0] + shift[..., None] > 0).all()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    failed = [record for record in records if sum(record["failed"])]
    assert 0 < len(failed) < 24
    assert all(record["fault"].startswith("ValueError: Expected parameter scale") for record in failed)
    assert not any("fault" in record for record in records if not sum(record["failed"]))


def test_a_fit_on_minibatches_leaves_its_last_state(tmp_path: Path):
    model, data, start = regression()
    method = tb.SGLD(2, 4000, 10, step_size=200.0, batch_size=3, plan="loop", thin=1)
    with pytest.raises(DivergedError, match="cannot be computed at step") as caught:
        tb.fit(model, data, method, start=start, directory=tmp_path, callbacks=())
    assert any("the last finite one, is in" in note for note in caught.value.__notes__)
    assert (tmp_path / "checkpoint.safetensors").exists()


# --- shapes ---

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "a column": lambda w: -0.5 * w.square().sum(1, keepdim=True),
    "a sum over chains": lambda w: -0.5 * w.square().sum(),
    "one for each weight": lambda w: -0.5 * w.square(),
    "one for all": lambda w: -0.5 * w.square().sum().reshape(1),
}
ALL: dict[str, Callable[[int], Sampler]] = {
    **SAMPLERS,
    **{
        kind.__name__: lambda chains, kind=kind: kind(chains, 20, 0, step_size=0.1, batch_size=None)
        for kind in (tb.SGLD, tb.SGHMC, tb.SGNHT)
    },
}


@pytest.mark.parametrize("log_density", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_a_density_of_the_wrong_shape_is_refused(make: Callable[[int], Sampler], log_density: Any):
    with pytest.raises(ValueError, match=r"one log density for each row of weights, shape \(3,\)"):
        tb.sample(tb.FunctionDensity(log_density), make(3), normal(3, 2))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_a_gradient_of_the_wrong_shape_is_refused(make: Callable[[int], Sampler]):
    class Summed(tb.FunctionDensity):
        def __call__(self, weights_MD: Tensor, batch: Any = None, **more: Any) -> Value:
            value = super().__call__(weights_MD, batch, **more)
            return value._replace(gradient=value.gradient.sum(0))

    with pytest.raises(ValueError, match=r"a gradient of their shape \(3, 2\); got \(3,\) and \(2,\)"):
        tb.sample(Summed(lambda w: -0.5 * w.square().sum(1)), make(3), normal(3, 2))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_starts_and_chains_agree(make: Callable[[int], Sampler]):
    density = tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))
    for shape in ((2, 2), (4, 2), (1, 2), (3, 2, 1)):
        with pytest.raises(ValueError, match="or one row for each of the 3 `chains` of the method"):
            tb.sample(density, make(3), torch.zeros(shape))
    with pytest.raises(ValueError, match=r"Set `chains=4`, or give 3 rows\."):
        tb.sample(density, make(3), torch.zeros(4, 2))
    for wrong in (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 2, dtype=torch.bfloat16), [[0.0, 0.0]] * 3):
        with pytest.raises(TypeError, match="`start_MD` must be a tensor of weights in float32 or float64; got "):
            tb.sample(density, make(3), wrong)  # type: ignore[arg-type]
    one_D = normal(2)
    together = tb.sample(density, make(3), one_D).weights_MSD
    assert torch.equal(together, tb.sample(density, make(3), one_D.expand(3, 2).clone()).weights_MSD)
    assert len(together.unique(dim=0)) == 3
