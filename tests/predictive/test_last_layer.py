"""A last layer's closed form as a plain module: what `Linearised` predicts, without a Jacobian."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from tests.oracles import assert_close
from tests.posteriors.modules.test_modules import OF_CLASSES, OF_NUMBERS, Transformer, assert_predicts, double, tokens
from tests.predictive.test_linearised import FITTED, GIVEN, given
from torch import Tensor, nn

import torchbayes as tb

M, ROWS, TEST, K = 2, 12, 5, 3
# only the curvature matters: the fits start far from a mode
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be trusted")
CATEGORICAL = tb.likelihoods.Categorical()


def backbone(outputs: int = K, *, bias: bool = True) -> nn.Module:
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, outputs, bias=bias)
    return double(nn.Sequential(*layers)).eval()


def model_of(likelihood: Any = CATEGORICAL, outputs: int = K, *, random: Any = "3.*", bias: bool = True) -> tb.Model:
    return tb.Model(backbone(outputs, bias=bias), likelihood, random=random)


def gaussian(model: tb.Model, kind: str = "dense") -> tb.Gaussian:
    return tb.Gaussian(model, normal(M, model.layout.size), given(kind, model.layout.size))


def laplace(likelihood: Any = CATEGORICAL, outputs: int = K, **settings: Any) -> tb.LaplacePosterior:
    model, targets = model_of(likelihood, outputs), normal(ROWS, outputs)
    data = (normal(ROWS, 4), targets.argmax(1) if likelihood is CATEGORICAL else targets)
    posterior = tb.fit(model, data, tb.Laplace(**{"prior": "model", **settings}), start=backbone(outputs))
    assert isinstance(posterior, tb.LaplacePosterior)
    return posterior


def assert_agrees(linearised: tb.Linearised, inputs: Any, names: list[str], *, exported: bool = False) -> None:
    module, prediction = linearised.module(), tb.predict(linearised, inputs)
    assert_predicts(module, prediction, inputs, names)
    if exported:
        shapes = ({0: torch.export.Dim("rows", min=1)},)
        assert_predicts(
            torch.export.export(module, (inputs,), dynamic_shapes=shapes).module(), prediction, inputs, names
        )
        torch.compiler.reset()  # all modules share the code of `forward`, whose compilations are counted
        assert_predicts(torch.compile(module, backend="eager", fullgraph=True), prediction, inputs, names)


@pytest.mark.parametrize("link", ["probit", "pairwise", "bridge"])
@pytest.mark.parametrize("kind", GIVEN)
def test_every_covariance_and_link(kind: str, link: Any) -> None:
    assert_agrees(tb.Linearised(gaussian(model_of(), kind), link), normal(TEST, 4), OF_CLASSES)


# one of the forms that a module has; the others are a study
EXPORTED = ("laplace low rank",)


@pytest.mark.parametrize("name", FITTED)
def test_every_laplace(name: str) -> None:
    assert_agrees(tb.Linearised(laplace(**FITTED[name])), normal(TEST, 4), OF_CLASSES, exported=name in EXPORTED)


@pytest.mark.parametrize("name", FITTED)
def test_regression(name: str) -> None:
    posterior = laplace(tb.likelihoods.Gaussian((0.3, 0.5)), 2, **FITTED[name])
    assert_agrees(tb.Linearised(posterior), normal(TEST, 4), OF_NUMBERS)


@pytest.mark.study  # `test_every_laplace` exports one
def test_other_forms_are_exported() -> None:
    diagonal = laplace(**FITTED["laplace diagonal"])
    assert_agrees(tb.Linearised(diagonal), normal(TEST, 4), OF_CLASSES, exported=True)
    linear = tb.Model(double(nn.Linear(4, K)), CATEGORICAL)
    assert_agrees(tb.Linearised(gaussian(linear)), normal(TEST, 4), OF_CLASSES, exported=True)
    for name in ("laplace ekfac", "laplace dense"):
        regression = laplace(tb.likelihoods.Gaussian((0.3, 0.5)), 2, **FITTED[name])
        assert_agrees(tb.Linearised(regression), normal(TEST, 4), OF_NUMBERS, exported=True)


@pytest.mark.parametrize("random", ["3.*", "3.weight"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_biases(kind: str, random: str, bias: bool) -> None:
    likelihood = tb.likelihoods.Gaussian("learned", outputs=K)
    posterior = gaussian(model_of(likelihood, random=random, bias=bias), kind)
    assert_agrees(tb.Linearised(posterior), normal(TEST, 4), OF_NUMBERS)


def test_binary_classes() -> None:
    assert_agrees(tb.Linearised(gaussian(model_of(tb.likelihoods.Bernoulli(), 1))), normal(TEST, 4), OF_CLASSES)


def test_a_linear_network() -> None:
    model = tb.Model(double(nn.Linear(4, K)), CATEGORICAL)
    assert_agrees(tb.Linearised(gaussian(model)), normal(TEST, 4), OF_CLASSES)


def test_tokens_and_inputs_in_parts() -> None:
    posterior = gaussian(tb.Model(double(Transformer(each=True)), CATEGORICAL, random="head.*"), "diagonal")
    inputs = {"tokens": tokens(), "mask": tokens() > 6}
    assert_agrees(tb.Linearised(posterior), inputs, OF_CLASSES)


def test_moved_and_saved(tmp_path: Path) -> None:
    posterior = laplace(tb.likelihoods.Gaussian(0.3), 1, structure="kronecker")
    module, at = tb.Linearised(posterior.with_noise(2.0)).module(), normal(TEST, 4)
    loaded = tb.load_module(module.save(tmp_path / "module.safetensors"), model_of(tb.likelihoods.Gaussian(0.3), 1))
    for name, tensor in loaded(at).items():
        assert torch.equal(tensor, module(at)[name])
    assert_close(loaded(at)["aleatoric"], torch.full((TEST, 1), 0.36, dtype=torch.float64))
    single = module.float()(at.float())
    assert_close(single["variance"], loaded(at)["variance"], rtol=1e-4)


class Scaled(nn.Module):
    """A last layer whose outputs are not those of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * self.head(self.body(inputs).relu())


class Twice(Scaled):
    """A last layer that is used twice."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.head(self.body(inputs)).relu())


def test_what_is_no_closed_form_is_refused() -> None:
    for random in ("*", "3.bias", ["0.*", "3.*"], {"3.weight": torch.arange(K * 6).view(K, 6) > 4}):
        with pytest.raises(ValueError, match=r"one linear layer, the last one; random are .*`posterior.module"):
            tb.Linearised(gaussian(model_of(random=random))).module()
    with pytest.raises(ValueError, match="the link 'samples' draws functions"):
        tb.Linearised(gaussian(model_of(tb.likelihoods.Poisson()))).module()
    for net in (Scaled(), Twice()):
        posterior = gaussian(tb.Model(double(net), CATEGORICAL, random="head.*"))
        with pytest.raises(ValueError, match=r"must return what `head.weight` gives, at its only call"):
            tb.Linearised(posterior).module()(normal(TEST, 4))
        with pytest.raises(ValueError, match=r"must return what `head.weight` gives, at its only call"):
            torch.export.export(tb.Linearised(posterior).module(), (normal(TEST, 4),))
    with pytest.raises(ValueError, match="`level` must lie between"):
        tb.Linearised(gaussian(model_of())).module(level=0.0)
