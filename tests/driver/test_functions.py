"""A network in evaluation mode must be a function of its weights and of each row alone; what is not is said."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.oracles import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.model.probes.functions import faults_of, watched

pytestmark = pytest.mark.usefixtures("unjudged_fits")

X = normal(24, 4).float()
Y = (X[:, 0] > 0).long()
MOVE_IN_EVAL = [
    tb.HMC(steps=2, burn_in=1),
    tb.NUTS(steps=2, burn_in=1),
    tb.MALA(steps=3, burn_in=1),
    tb.SGLD(steps=3, burn_in=1, thin=1, step_size=1e-4),
    tb.EllipticalSlice(steps=3, burn_in=1),
    tb.Laplace(prior="model", check_mode=False),
    tb.OnlineLaplace(epochs_of_descent=2, every=1, factor=1.0),
]
TRAIN = [tb.MAP(epochs=1), tb.SWAG(epochs=4, burn_in=0.0), tb.VI(epochs=1, kl_weight=1.0), tb.IVON(epochs=1)]


class Inner(nn.Module):
    """A layer, followed by something."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, inputs: Tensor) -> Tensor:
        return self.then(self.layer(inputs))


def network(then: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Inner(then), nn.Linear(4, 2))


def model(then: Callable[[Tensor], Tensor], **options: Any) -> tb.Model:
    return tb.Model(network(then), tb.likelihoods.Categorical(), tb.priors.Normal(), **options)


def said_of(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in said]


RANDOM = {
    "dropout": lambda h: F.dropout(h, 0.3),
    "noise": lambda h: h + 1e-3 * torch.randn_like(h),
    "depth": lambda h: h if float(torch.rand(())) < 0.7 else 0 * h,
    "numpy": lambda h: h * float(np.random.normal()),  # noqa: NPY002
    "python": lambda h: h * random.random(),
}


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("method", [MOVE_IN_EVAL[0], MOVE_IN_EVAL[5], TRAIN[0]], ids=lambda m: type(m).__name__)
def test_a_random_network_is_told_with_its_module(kind: str, method: Any) -> None:
    made = model(RANDOM[kind])
    start = made.network.module if method.needs.start is not None else None
    if method.needs.network == "eval":
        with pytest.raises(SettingError, match=r"`1` \(Inner\) draws random numbers in evaluation mode"):
            tb.fit(made, (X, Y), method, start=start, callbacks=())
        return
    said = said_of(lambda: tb.fit(made, (X, Y), method, callbacks=()))
    assert sum("`1` (Inner) draws random numbers" in one for one in said) == 1


@pytest.mark.parametrize("method", MOVE_IN_EVAL, ids=lambda m: type(m).__name__)
def test_what_needs_a_function_refuses(method: Any) -> None:
    made = model(RANDOM["dropout"])
    with pytest.raises(SettingError, match="in evaluation mode"):
        tb.fit(made, (X, Y), method, start=network(RANDOM["dropout"]), callbacks=())
    made = model(lambda h: h - h.mean(0))
    with pytest.raises(SettingError, match=r"change with the rows beside it.*coupled=True"):
        tb.fit(made, (X, Y), method, start=network(lambda h: h - h.mean(0)), callbacks=())


@pytest.mark.parametrize("method", TRAIN, ids=lambda m: type(m).__name__)
def test_what_trains_has_a_problem_that_is_saved(method: Any, tmp_path: Any) -> None:
    for then, told in ((RANDOM["dropout"], "random numbers"), (lambda h: h - h.mean(0), "rows beside it")):
        with pytest.warns(tb.ProblemWarning, match=told):
            posterior = tb.fit(model(then), (X, Y), method, callbacks=())
        again = tb.load(posterior.save(tmp_path / "posterior.safetensors"), posterior.model)
        assert any(told in problem for problem in again.problems)


@pytest.mark.parametrize("kind", ["dropout", "numpy", "a generator of its own"])
def test_prediction_says_it_of_a_posterior_that_does_not_know(kind: str, tmp_path: Any) -> None:
    plain = model(torch.tanh)
    path = tb.posteriors.Draws(plain, normal(1, 4, plain.layout.size).float()).save(tmp_path / "draws.safetensors")
    source = np.random.default_rng(0)
    then = RANDOM.get(kind, lambda h: h * float(source.normal()))
    changed = tb.load(path, model(then))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=12)
    for call in (
        lambda: tb.predict(changed, X),
        lambda: tb.predict(changed.functions(4), X),
        lambda: [*tb.stream(changed, loader)][:0],
        lambda: tb.evaluate(changed, (X, Y)),
    ):
        assert any("`1` (Inner) draws random numbers" in one for one in said_of(call))
    assert said_of(lambda: tb.predict(tb.load(path, plain), X)) == []


def test_a_prediction_costs_two_small_passes_more_once() -> None:
    rows = list[int]()

    def counted(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return hidden

    made = model(counted)
    posterior = tb.posteriors.Draws(made, normal(1, 4, made.layout.size).float())
    for _ in range(2):
        tb.predict(posterior, X)
    assert rows.count(8) == 2
    assert {*rows} == {8, 24}


ORDINARY = {
    "plain": torch.tanh,
    "dropout": nn.Dropout(0.5),
    "batch norm": nn.BatchNorm1d(4),
    "drawn and not used": lambda h: h + 0 * float(torch.rand(())),
    "a fixed generator": lambda h: h + torch.randn(4, generator=torch.Generator().manual_seed(0)),
    "bfloat16 inside": lambda h: (h.bfloat16() @ h.new_ones(4, 4).bfloat16()).float(),
    "attention over places": lambda h: F.scaled_dot_product_attention(*[h[:, None, :, None]] * 3)[:, 0, :, 0],
    "a large offset": lambda h: h + 1e4,
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_networks_are_functions(kind: str) -> None:
    made = model(ORDINARY[kind])
    batch = made.unpack((X[:8], Y[:8]))
    with watched(torch.device("cpu")) as drawn:
        outputs = made.check(batch)
    assert drawn.moved == (kind == "drawn and not used")
    assert faults_of(made, batch, outputs, drew=drawn.moved) == ("", "", "", "")


class Force(Inner):
    """Minus the gradient of an energy, whether gradients are on or not."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            points = inputs.detach().requires_grad_()
            return -torch.autograd.grad(self.then(self.layer(points)).sum(), points, create_graph=True)[0]


def test_a_network_that_turns_gradients_on_is_a_function() -> None:
    made = tb.Model(Force(torch.tanh), tb.likelihoods.Gaussian(), tb.priors.Normal())
    batch = made.unpack((X[:8], X[:8]))
    torch.set_warn_always(True)
    try:
        assert faults_of(made, batch, made.check(batch), drew=False) == ("", "", "", "")
    finally:
        torch.set_warn_always(False)


def test_a_fit_costs_one_small_pass_more_and_moves_no_generator() -> None:
    rows = list[int]()

    def counted(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return hidden

    made, state = model(counted), torch.get_rng_state()
    tb.fit(made, (X, Y), tb.MAP(epochs=1, plan="loop"), callbacks=())
    assert rows.count(2) == 1
    assert torch.equal(torch.get_rng_state(), state)


COUPLED = {
    "mean over rows": lambda h: h - h.mean(0),
    "attention over rows": lambda h: F.scaled_dot_product_attention(*[h[None]] * 3)[0],
    "number of rows": lambda h: h / len(h),
    "place of a row": lambda h: h + torch.arange(len(h))[:, None],
    "neighbour": lambda h: h + h.roll(1, 0),
}


@pytest.mark.parametrize("kind", COUPLED)
def test_rows_that_are_coupled_in_the_network_are_told(kind: str) -> None:
    with pytest.raises(SettingError, match=r"outputs of a row change with the rows beside it.*`chunk_size`"):
        tb.fit(model(COUPLED[kind]), (X, Y), tb.HMC(steps=2, burn_in=1), callbacks=())


class Cox:
    """The partial likelihood of times without censoring: −log Σ_{at risk} e^{f} + f of each row."""

    coupled = False

    def parameters(self) -> dict[str, Any]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Any = None) -> torch.distributions.Distribution:
        return torch.distributions.Exponential(outputs[..., 0].exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        score, at_risk = outputs[..., 0], targets[..., None, :] >= targets[..., :, None]
        return score - torch.where(at_risk, score[..., None, :], -torch.inf).logsumexp(-1)

    def check(self, outputs: Tensor, targets: Any) -> None:
        pass


class Declared(Cox):
    """The same, which says that its rows are coupled."""

    coupled = True


TIMES = torch.rand(24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def survival(likelihood: Any, **options: Any) -> tb.Model:
    return tb.Model(nn.Linear(4, 1, bias=False).double(), likelihood, tb.priors.Normal(), **options)


@pytest.mark.parametrize("method", [*MOVE_IN_EVAL[:6], *TRAIN], ids=lambda m: type(m).__name__)
def test_a_likelihood_whose_rows_are_coupled_is_refused_by_every_method(method: Any) -> None:
    with pytest.raises(SettingError, match=r"log probability of a row changes.*under Cox.*coupled=True"):
        tb.fit(survival(Cox()), (X.double(), TIMES), method, start=nn.Linear(4, 1, bias=False).double(), callbacks=())


def test_the_density_by_itself_refuses_chunks_of_coupled_rows() -> None:
    made = survival(Cox())
    rows = made.unpack((X, TIMES))
    with pytest.raises(SettingError, match="log probability of a row changes"):
        tb.LogDensity(made, 24, rows, chunk_size=10)
    tb.LogDensity(made, 24, rows)  # all of them go through at once


@pytest.mark.parametrize("made", [survival(Declared()), survival(Cox(), coupled=True)])
def test_declared_coupled_rows_go_through_at_once(made: tb.Model) -> None:
    rows, weights = made.unpack((X, TIMES)), normal(2, 4)
    density = tb.LogDensity(made, 24, rows, chunk_size=5)
    scores = X.double() @ weights.T
    at_risk = TIMES[None, :] >= TIMES[:, None]
    exact = [(s - torch.where(at_risk, s[None, :], -torch.inf).logsumexp(-1)).sum() for s in scores.T]
    torch.testing.assert_close(density.value(weights).log_likelihood, torch.stack(exact), rtol=1e-12, atol=0)
    with pytest.raises(SettingError, match=r"all 24 must go through at once; got 8"):
        density(weights, rows.map(lambda t: t[:8].expand(2, 8, *t.shape[1:])))


def test_the_mode_of_coupled_rows_is_that_of_all_rows() -> None:
    made, data = survival(Declared()), (X.double(), TIMES)
    method = tb.MAP(epochs=150, batch_size=24, optimizer=tb.Adam(0.05))
    actual = tb.fit(made, data, method, callbacks=()).weights_MD[0]
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    newton = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def loss() -> Tensor:
        newton.zero_grad()
        value = -made.log_joint(weights, made.unpack(data), 24)
        value.backward()
        return value

    newton.step(loss)
    torch.testing.assert_close(actual, weights.detach(), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (tb.MAP(epochs=1, batch_size=8), "got 8"),
        (tb.SGLD(steps=3, burn_in=1, thin=1, step_size=1e-4, batch_size=12), "got 12"),
        (tb.VI(epochs=1, kl_weight=1.0, batch_size=24, alpha=0.5), "row by row"),
        (tb.Laplace(prior="model"), "takes each row alone"),
        (tb.EP(), "takes each row alone"),
    ],
)
def test_what_takes_coupled_rows_apart_is_refused(method: Any, told: str) -> None:
    start = nn.Linear(4, 1, bias=False).double()
    with pytest.raises(SettingError, match=told):
        tb.fit(survival(Declared()), (X.double(), TIMES), method, start=start, callbacks=())


def test_coupled_networks_predict_all_rows_at_once() -> None:
    made = model(lambda h: h - h.mean(0), coupled=True)
    drawn = tb.fit(made, (X, Y), tb.HMC(steps=3, burn_in=1), callbacks=()).functions(4)
    whole = tb.predict(drawn, X).outputs_SBK
    assert torch.equal(tb.predict(drawn, X, chunk_size=5).outputs_SBK, whole)
    nll = tb.evaluate(drawn, (X, Y), chunk_size=5).metrics["nll"]
    exact = -whole.double().softmax(-1).mean(0)[torch.arange(24), Y].log().mean()
    assert nll == pytest.approx(float(exact), rel=1e-5)
    with pytest.raises(ValueError, match="no part of a larger one"):
        tb.evaluate(drawn, [(X[:12], Y[:12]), (X[12:], Y[12:])])
    with pytest.raises(SettingError, match="takes each row alone"):
        tb.geometry.spectrum(made, (X, Y), drawn.weights_SD[0])
