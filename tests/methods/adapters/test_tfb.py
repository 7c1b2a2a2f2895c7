"""TFB: the form of an adapter with orthogonal columns, the noise around it, and the largest that a loss bears."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors, everything
from tests.laws.test_method_laws import break_after, keep_every
from tests.methods.adapters.adapted import Adapted
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.density import LogDensity
from torchbayes.methods.adapters.factors import factors_of, rotated
from torchbayes.methods.adapters.tfb import TFB
from torchbayes.model import Batch, Layout, Model, likelihoods

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),  # calls of PEFT
]
INPUTS, OUTPUTS, RANK, ROWS = 5, 4, 3, 200


def model_of(network: nn.Module, likelihood: Any = None) -> Model:
    return Model(network, likelihood or likelihoods.Gaussian(1.0), random="*lora*")


def regression(network: nn.Module, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    inputs = normal(ROWS, INPUTS, seed=1)
    return inputs, network(inputs).detach() + noise * normal(ROWS, OUTPUTS, seed=2)


@pytest.mark.parametrize(("outputs", "rank"), [(4, 3), (3, 3), (2, 3), (1, 1)])
def test_the_form_has_orthogonal_columns_and_the_same_product(outputs: int, rank: int):
    model = model_of(Adapted(outputs=outputs, rank=rank))
    (adapter,), weights_D = factors_of(model.layout), model.given_weights()
    turned_D, lengths_D = rotated([adapter], weights_D)
    (first, second), (old_first, old_second) = adapter.split(turned_D), adapter.split(weights_D)
    assert_close(second @ first, old_second @ old_first)
    values = torch.linalg.svdvals(old_second)
    assert_close(
        second.mT @ second, torch.diag(nn.functional.pad(values, (0, rank - len(values))).square()), atol=1e-14
    )
    assert_close(lengths_D[adapter.first].view(rank, -1)[:, 0], nn.functional.pad(values, (0, rank - len(values))))
    assert not lengths_D[adapter.second].any()
    assert torch.equal(weights_D, model.given_weights())


def variance(posterior: Any) -> Tensor:
    return posterior.covariance.variance_MD


def test_noise_has_one_variance_in_all_directions_of_an_adapter():
    network = Adapted()
    model = model_of(network)
    posterior = tb.fit(model, regression(network), TFB(batch_size=ROWS), start=network)
    (adapter,) = factors_of(model.layout)
    variance_RI, _ = adapter.split(variance(posterior)[0])
    _, second = adapter.split(posterior.mean_MD[0])
    left, *_ = torch.linalg.svd(network.lora_B.weight, full_matrices=False)
    for variance_R in variance_RI.mT:
        covariance = second @ torch.diag(variance_R) @ second.mT
        assert_close(covariance, variance_RI[0, 0] * second[:, 0].square().sum() * (left @ left.mT).detach())


def test_the_scale_is_that_of_a_linear_model():
    """E L(σ) − L(0) = ½ s² σ² r mean ‖x‖², as E ‖s σ U E x‖² = s² σ² r ‖x‖²."""
    network = Adapted()
    inputs, targets = regression(network)
    model, method = model_of(network), TFB(tolerance=0.1, passes=13, draws=400, batch_size=ROWS)
    posterior = tb.fit(model, (inputs, targets), method, start=network)
    (adapter,) = factors_of(model.layout)
    second = adapter.split(posterior.mean_MD[0])[1]
    scale = (adapter.split(variance(posterior)[0])[0][0, 0] * second[:, 0].square().sum()).sqrt()
    loss = -likelihoods.Gaussian(1.0).log_prob(network(inputs), targets).mean()
    expected = (2 * 0.1 * loss / (network.scaling**2 * RANK * inputs.square().sum(1).mean())).sqrt()
    assert_close(scale, expected, rtol=0.05)  # of 400 draws, 1 standard deviation is 1 %


def test_the_largest_scale_that_keeps_the_bound():
    network = Adapted(outputs=3)
    inputs = normal(ROWS, INPUTS, seed=1)
    targets = torch.distributions.Categorical(logits=network(inputs)).sample()
    model = model_of(network, likelihoods.Categorical())
    method, density = TFB(tolerance=0.01, passes=11, draws=5, batch_size=64), LogDensity(model, ROWS)
    state = _run(method, density, (inputs, targets), model.given_weights().unsqueeze(0))

    def loss(scale: float) -> float:
        tried = replace(state, trial_M=torch.tensor([scale]).double())
        whole = Batch(inputs.unsqueeze(0), targets.unsqueeze(0))
        return float(method._loss(density, tried, whole))

    accepted, start = float(state.accepted_M), float(state.loss_M)
    assert_close(start, loss(0.0))
    assert loss(accepted) <= 1.01 * start < loss(1.02 * accepted)  # 1e4^(1/1024) is 1.009


def _run(method: TFB, density: LogDensity, rows: tuple[Tensor, Tensor], weights_MD: Tensor) -> Any:
    batches = [Batch(x.unsqueeze(0), y.unsqueeze(0)) for x, y in zip(*(t.split(64) for t in rows), strict=True)]
    state = method.init(density, weights_MD, seeds=[3], steps_per_epoch=len(batches))
    while (visit := method.visit(state)) is not None:
        state, _ = method.step(density, state, batches[visit.number % len(batches)])
    return state


def test_members_are_searched_alone():
    network = Adapted()
    data, model = regression(network), model_of(network)
    weights_MD = torch.stack([model.given_weights(), 0.5 * model.given_weights()])
    both = tb.fit(model, data, TFB(batch_size=ROWS), start=tb.Point(model, weights_MD))
    alone = tb.fit(model, data, TFB(batch_size=ROWS), start=tb.Point(model, weights_MD[:1]))
    assert_close(variance(both)[:1], variance(alone), rtol=1e-10)
    assert not torch.equal(variance(both)[0], variance(both)[1])


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    network = Adapted()
    data, model, method = regression(network), model_of(network), TFB(batch_size=64)
    expected = tb.fit(model, data, method, start=network)
    keep_every(monkeypatch, 10)
    with monkeypatch.context() as inside:
        break_after(inside, TFB, 13)  # in the fourth pass of four batches
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, data, method, start=network, directory=tmp_path)
    resumed = tb.fit(model, data, method, start=network, directory=tmp_path, resume=True)
    assert_same_tensors(everything(resumed), everything(expected))


@pytest.mark.filterwarnings("default::torchbayes.ProblemWarning")
def test_a_search_that_says_little_is_said():
    network = Adapted()
    data, model = regression(network), model_of(network)
    with pytest.warns(tb.ProblemWarning, match="bears every σ tried"):
        tb.fit(model, data, TFB(largest=1e-4, batch_size=ROWS), start=network)
    with pytest.warns(tb.ProblemWarning, match="is a point: the loss grows by more than 1e-12 of itself"):
        posterior = tb.fit(model, data, TFB(tolerance=1e-12, batch_size=ROWS), start=network)
    assert not variance(posterior).any()
    sure = Adapted(outputs=2)
    inputs = normal(ROWS, INPUTS, seed=1) * 1e6
    with pytest.warns(tb.ProblemWarning, match="nats a row, of which a share of 0.003 says nothing"):
        tb.fit(
            model_of(sure, likelihoods.Categorical()),
            (inputs[:20], sure(inputs[:20]).argmax(1)),
            TFB(batch_size=ROWS),
            start=sure,
        )


def test_what_is_no_trained_adapter_is_refused():
    with pytest.raises(SettingError, match="no random weights are a pair of factors"):
        tb.fit(Model(nn.Linear(2, 1), likelihoods.Gaussian(1.0)), (torch.ones(3, 2), torch.ones(3)), TFB())
    network = Adapted()
    with pytest.raises(SettingError, match=r"whose other factor 'lora_B.weight' is not random"):
        tb.fit(Model(network, likelihoods.Gaussian(1.0), random="*lora_A*"), regression(network), TFB())
    with pytest.raises(SettingError, match=r"must be \(r, I\) and \(O, r\)"):
        factors_of(Layout({"lora_A": (2, 3), "lora_B": (4, 5)}))
    nn.init.zeros_(network.lora_B.weight)
    with pytest.raises(ValueError, match="every B is 0"):
        tb.fit(model_of(network), regression(network), TFB(), start=network)


def test_filters_and_adapters_of_several_names_are_found():
    shapes = {
        "a.lora_A.default.weight": (2, 3, 3, 3), "a.lora_B.default.weight": (8, 2, 1, 1),
        "b.lora_embedding_A.one": (4, 10), "b.lora_embedding_B.one": (6, 4), "head.weight": (2, 6),
    }  # fmt: skip
    first, second = factors_of(Layout(shapes))
    weights_D = normal(Layout(shapes).size)
    assert [tuple(t.shape) for t in (*first.split(weights_D), *second.split(weights_D))] == [
        (2, 27), (8, 2), (4, 10), (6, 4),
    ]  # fmt: skip


def test_an_adapter_of_peft_predicts_and_is_saved(tmp_path: Any):
    peft = pytest.importorskip("peft")
    from tests.architectures.test_transformers import network, rows_of

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted, rows = peft.get_peft_model(network("bert"), config), rows_of("bert")
    model = Model(adapted, likelihoods.Categorical(), random="*lora*")
    posterior = tb.fit(model, rows, TFB(passes=4, draws=2, batch_size=4), start=adapted)
    inputs = {key: value for key, value in rows.items() if key != "labels"}
    assert_close(tb.predict(posterior.centre, inputs).probs, tb.predict(adapted_point(model), inputs).probs, rtol=1e-4)
    loaded = tb.load(posterior.save(tmp_path / "tfb.safetensors"), model)
    assert torch.equal(tb.predict(loaded, inputs).probs, tb.predict(posterior, inputs).probs)


def adapted_point(model: Model) -> tb.Point:
    return tb.Point(model, model.given_weights().unsqueeze(0))
