"""The costs in docs/cost.md are what the code does: gradients are counted, and the numbers of states and files."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.catalogue.data import defaults
from torchbayes.curvature.passes import _EXTRA
from torchbayes.methods.laplace.curvature_pass import CurvatureSettings
from torchbayes.methods.protocol import Method
from torchbayes.methods.sampler import Sampler

TEXT = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
CLASSES, MEMBERS, RANK = 10, 2, 3
SGD = tb.SGD(0.01)
SHORT: dict[str, Any] = {"chains": MEMBERS, "steps": 3, "burn_in": 1}


def row(method: str, above: str) -> list[str]:
    """The cells of the row that begins with a method, in the table under a heading."""
    section = TEXT.partition(f"## {above}\n")[2].partition("\n##")[0]
    (actual,) = [line for line in section.splitlines() if line.startswith("| ") and method in line.split("|")[1]]
    return [cell.strip() for cell in actual.strip("|").split("|")]


@pytest.fixture(scope="module")
def model() -> tb.Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, CLASSES))
    return tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(40, 7, generator=source), torch.randint(CLASSES, (40,), generator=source)


def test_the_work_on_the_digits_is_counted_from_the_settings() -> None:
    usual = defaults("digits")
    hmc, rows = usual["hmc"], len(tb.data.load("digits").train.targets)
    assert hmc.trajectory is not None
    assert hmc.step_size is not None
    leapfrogs = math.ceil(hmc.trajectory / hmc.step_size)
    assert row("`HMC`", "Work")[2] == f"{hmc.steps} × {leapfrogs} = {hmc.steps * leapfrogs:,}"
    assert row("`MAP`", "Work")[2] == row("`SWA`, `SWAG`", "Work")[2] == f"{usual['ensemble'].epochs}"
    assert usual["ensemble"].epochs is not None
    passes = usual["sgld"].steps / math.ceil(rows / usual["ensemble"].batch_size)
    assert usual["sgld"].steps == usual["sghmc"].steps == usual["csghmc"].steps
    assert row("`SGLD`", "Work")[2] == f"{usual['sgld'].steps:,} steps, {passes:.0f} passes"
    assert f"costs {hmc.steps * leapfrogs / usual['ensemble'].epochs:.0f} training runs" in TEXT


def test_the_work_by_default_is_counted_from_the_settings() -> None:
    online, laplace, nuts = tb.OnlineLaplace(), tb.Laplace(structure="low_rank", prior="model"), tb.NUTS()
    large, small = (online.order(steps) for steps in (1000, 1))
    said = f"{sum(large)} epochs and {large.count(False)} passes, on a small table {sum(small):,} steps"
    assert f"by default {said} and {small.count(False)}" in row("`OnlineLaplace`", "Work")[1]
    assert f"− 1 = {2**nuts.max_doublings - 1:,}" in row("`NUTS`", "Work")[1]
    backward = laplace.passes * 2 * (CurvatureSettings.of(laplace).directions + _EXTRA)
    assert f"`passes` ({laplace.passes}) passes, each with 2 (rank + {_EXTRA}) backward passes: {backward}" in TEXT
    assert tb.Laplace(structure="ekfac", prior="model").epochs == 2
    assert tb.Laplace(structure="dense", prior="model").epochs == 1


@pytest.mark.parametrize(
    ("method", "each"),
    [
        (tb.HMC(chains=1, steps=10, burn_in=0, step_size=0.1, trajectory=1.05), 11),
        (tb.MALA(chains=1, steps=10, burn_in=0, step_size=0.1), 1),
        (tb.RandomWalk(chains=1, steps=10, burn_in=0, step_size=0.1), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sampler_takes_as_many_gradients_as_its_steps_say(method: Sampler, each: int) -> None:
    taken = []

    def normal(weights_MD: Tensor) -> Tensor:
        taken.append(len(weights_MD))
        return -0.5 * weights_MD.square().sum(-1)

    tb.sample(tb.FunctionDensity(normal), method, torch.zeros(1, 3))
    assert sum(taken) == 1 + method.steps * each  # one where the chain starts


@pytest.mark.filterwarnings("ignore:.*not at a mode")  # no mode is needed to count
@pytest.mark.parametrize(
    ("settings", "columns"),
    [({}, CLASSES - 1), ({"curvature": "empirical"}, 1), ({"curvature": "fisher", "samples": 4}, 4)],
)
def test_laplace_goes_backward_once_for_each_column_and_once_more(
    settings: dict[str, Any],
    columns: int,
    model: tb.Model,
    data: tuple[Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, grad = [], torch.autograd.grad

    def counted(*args: Any, **options: Any) -> Any:
        if isinstance(args[1], list):  # through the network; else only through the likelihood, to its outputs
            calls.append(1)
        return grad(*args, **options)

    def taken(batches: int) -> int:
        calls.clear()
        method = tb.Laplace(**settings, batch_size=len(data[0]) // batches)
        tb.fit(model, data, method, start=model.given_weights(), callbacks=())
        return len(calls)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    assert taken(batches=2) - taken(batches=1) == columns + 1  # what a look at the network takes is taken once


def vectors(state: Any) -> Iterator[Tensor]:
    """Tensors of a state with an axis of weights."""
    if isinstance(state, Tensor):
        yield from [state] if state.ndim > 1 and state.is_floating_point() else []
    elif dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            yield from vectors(getattr(state, field.name))
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from vectors(part)


@pytest.mark.parametrize(
    ("method", "said", "multiple"),
    [
        (tb.MAP(members=MEMBERS, epochs=2, optimizer=SGD), "3 D with `SGD`", 3),
        (tb.MAP(members=MEMBERS, epochs=2, optimizer=tb.Adam()), "4 D with `Adam`", 4),
        (tb.SWA(members=MEMBERS, epochs=2, optimizer=SGD), "one D more", 4),
        (tb.SWAG(members=MEMBERS, epochs=4, rank=RANK, optimizer=SGD), "(2 + rank) D more than `MAP`", 5 + RANK),
        (tb.IVON(members=MEMBERS, epochs=2), "(3 + 2 S) D", 5),
        (tb.BSAM(members=MEMBERS, epochs=2), "4 D, and", 4),
        (tb.HMC(**SHORT, step_size=0.01, trajectory=0.02), "5 D, and", 5),
        (tb.NUTS(**SHORT, step_size=0.01), "5 D, and", 5),
        (tb.MALA(**SHORT), "2 D (with", 2),
        (tb.MALA(**SHORT, mass="prior"), '(with `mass="prior"` 3 D,', 3),
        (tb.MALA(**SHORT, mass="diagonal"), '`"diagonal"` or `"layer"` 5 D), and', 5),
        (tb.RandomWalk(**SHORT), "D (", 1),
        (tb.RandomWalk(**SHORT, mass="prior"), "(2 D,", 2),
        (tb.RandomWalk(**SHORT, mass="layer"), " 4 D), and", 4),
        (tb.SGLD(**SHORT, thin=1, preconditioned=False), "2 D (preconditioned 3 D), and", 2),
        (tb.SGLD(**SHORT, thin=1), "2 D (preconditioned 3 D), and", 3),
        (tb.SGHMC(**SHORT, thin=1, preconditioned=False), "3 D (preconditioned 4 D), and", 3),
        (tb.SGHMC(**SHORT, thin=1), "3 D (preconditioned 4 D), and", 4),
        (tb.SGNHT(**SHORT, thin=1, preconditioned=False), "3 D (preconditioned 4 D), and", 3),
        (tb.SGNHT(**SHORT, thin=1), "3 D (preconditioned 4 D), and", 4),
        (tb.SMILE(**SHORT, thin=1), "6 D (preconditioned 7 D; with", 6),
        (tb.SMILE(**SHORT, thin=1, preconditioned=True, trajectory=1.0), "with `trajectory` 2 D less), and", 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_state_is_as_large_as_the_page_says(
    method: Method | Sampler, said: str, multiple: int, model: tb.Model, data: tuple[Tensor, Tensor]
) -> None:
    held = [0]

    def look(event: tb.Event) -> None:
        held[0] = sum(tensor.numel() for tensor in vectors(event.state))

    tb.fit(model, data, method, callbacks=[look])
    assert held[0] == multiple * MEMBERS * model.layout.size
    assert said in row(f"`{type(method).__name__}`", "Memory")[1]


@pytest.mark.parametrize(
    ("transform", "said", "multiple"),
    [("planar", "8 (1 + layers) D", 8 * (1 + 3)), ("radial", "4 (2 + layers) D", 4 * (2 + 3))],
)
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_a_flow_is_as_large_as_the_page_says(
    transform: Any, said: str, multiple: int, model: tb.Model, data: tuple[Tensor, Tensor]
) -> None:
    """But for the numbers that each map has once."""
    method, held = tb.NormalizingFlow(transform, members=MEMBERS, epochs=2, layers=3, kl_weight=1.0), [0]

    def look(event: tb.Event) -> None:
        held[0] = sum(tensor.numel() for tensor in vectors(event.state))

    actual = tb.fit(model, data, method, callbacks=[look])
    size = MEMBERS * model.layout.size
    assert held[0] == pytest.approx(multiple * size, rel=0.02)
    cells = row(f'`NormalizingFlow("{transform}")`', "Memory")
    assert said in cells[1]
    assert sum(tensor.numel() for tensor in actual.tensors().values()) == pytest.approx(multiple / 4 * size, rel=0.02)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_multipliers_are_as_many_as_the_page_says(model: tb.Model, data: tuple[Tensor, Tensor]) -> None:
    """With 16 inputs of the two layers together; rows of hidden units are the rest."""
    held = [0]

    def look(event: tb.Event) -> None:
        held[0] = sum(tensor.numel() for tensor in vectors(event.state))

    tb.fit(model, data, tb.MNF(members=MEMBERS, epochs=2, layers=2, hidden=6, kl_weight=1.0), callbacks=[look])
    said = MEMBERS * (8 * model.layout.size + 4 * 16 * (7 + 2 * 2 * (3 * 6 + 2)))
    assert held[0] == pytest.approx(said, rel=0.05)
    assert "4 (7 + 2 `layers` (3 `hidden` + 2)) numbers for each multiplier" in row("`MNF`", "Memory")[1]


@pytest.mark.filterwarnings("ignore:.*not at a mode")
@pytest.mark.parametrize(
    ("method", "name", "said", "multiple"),
    [
        (tb.MAP(members=MEMBERS, epochs=2), "`MAP`", "D", 1),
        (tb.SWA(members=MEMBERS, epochs=2), "`SWA`", "D", 1),
        (tb.SWAG(members=MEMBERS, epochs=8, rank=RANK), "`SWAG`", "(2 + rank) D", 2 + RANK),
        (tb.IVON(members=MEMBERS, epochs=2), "`IVON`", "2 D", 2),
        (tb.BSAM(members=MEMBERS, epochs=2), "`BSAM`", "2 D", 2),
        (tb.Laplace(structure="diagonal", prior="model"), 'structure="diagonal"', "3 D", 3),
        (tb.Laplace(structure="low_rank", rank=RANK, prior="model"), '"low_rank"', "(3 + rank) D", 3 + RANK),
    ],
)
def test_a_posterior_is_as_large_as_the_page_says(
    method: Method, name: str, said: str, multiple: int, model: tb.Model, data: tuple[Tensor, Tensor]
) -> None:
    start = model.starting_weights(range(MEMBERS))[0] if isinstance(method, tb.Laplace) else None
    actual = tb.fit(model, data, method, start=start, callbacks=())
    sizes = [tensor.numel() for tensor in actual.tensors().values() if tensor.ndim > 1]  # the rest members share
    assert sum(sizes) == multiple * MEMBERS * model.layout.size
    assert row(name, "Memory")[2] == said
