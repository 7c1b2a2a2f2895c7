"""Linearised predictives of networks with several places in a row: tokens (B, T, K) and pixels (B, K, H, W)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn
from torch.func import functional_call

import torchbayes as tb

ROWS, TIMES, HIGH, WIDE, CLASSES = 5, 4, 3, 2, 3


class Tagger(nn.Module):
    """Classes of every word, given all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(6, 3), nn.Linear(3, 3), nn.Linear(3, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        seen = self.embed(words)
        return self.head(torch.tanh(self.mix(seen + seen.mean(1, keepdim=True))))


def segmenter() -> nn.Sequential:
    """Classes of every pixel, on axis 1."""
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, CLASSES, 3, padding=1))


WORDS = classes(ROWS * TIMES, 6, seed=1).view(ROWS, TIMES)
IMAGES = normal(ROWS, 1, HIGH, WIDE, seed=2)
TAGS, LABELS = classes(ROWS * TIMES, CLASSES, seed=3).view(ROWS, TIMES), classes(ROWS * HIGH * WIDE, CLASSES, seed=4)
TASKS: dict[str, tuple[Any, Any, Tensor, Tensor]] = {
    "tokens": (Tagger, tb.likelihoods.Categorical(), WORDS, TAGS),
    "pixels": (segmenter, tb.likelihoods.Categorical(class_axis=1), IMAGES, LABELS.view(ROWS, HIGH, WIDE)),
}
every_task = pytest.mark.parametrize("task", [*TASKS])
every_structure = pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])


def fitted(task: str, structure: Any = "dense") -> tb.LaplacePosterior:
    torch.manual_seed(5)
    make, likelihood, inputs, targets = TASKS[task]
    model = tb.Model(make().double(), likelihood)
    method = tb.Laplace(structure=structure, check_mode=False, prior="model")
    actual = tb.fit(model, (inputs, targets), method, start=model.given_weights())
    assert isinstance(actual, tb.LaplacePosterior)
    return actual


def truth(posterior: tb.LaplacePosterior, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, ..., K) and their Jacobian (B, ..., K, D), by autograd from the module alone."""
    model = posterior.model
    module = model.network.module

    def outputs(weights_D: Tensor) -> Tensor:
        actual = functional_call(module, model.layout.split(weights_D), (inputs,))
        return actual.movedim(1, -1) if actual.ndim == 4 else actual

    weights_D = model.given_weights()
    return outputs(weights_D), torch.as_tensor(torch.autograd.functional.jacobian(outputs, weights_D))


def covariance(posterior: tb.LaplacePosterior) -> Tensor:
    actual = posterior.gaussian.covariance
    return torch.stack([
        actual.matvec(unit.unsqueeze(0))[0] for unit in torch.eye(posterior.model.layout.size).double()
    ])


@every_task
def test_the_curvature_is_that_of_all_places(task: str):
    posterior, (_, _, inputs, _) = fitted(task), TASKS[task]
    outputs, jacobian = truth(posterior, inputs)
    probs = outputs.softmax(-1)
    curved = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    ggn = torch.einsum("...kd,...kl,...le->de", jacobian, curved, jacobian)
    assert_close(torch.linalg.inv(covariance(posterior)), ggn + torch.eye(len(ggn)), rtol=1e-8, atol=1e-8)


@every_structure
@every_task
def test_mean_and_covariance_of_every_place(task: str, structure: str):
    posterior, inputs = fitted(task, structure), TASKS[task][2]
    outputs, jacobian = truth(posterior, inputs)
    spread = covariance(posterior)
    expected = torch.einsum("...kd,de,...le->...kl", jacobian, spread, jacobian)
    for chunk in (2**24, 1):  # all rows at once, and one after another
        actual = tb.Linearised(posterior, chunk=chunk).functions(inputs)
        assert_close(actual.mean_MBK[0], outputs)
        assert_close(actual.covariance_MBKK[0], expected, rtol=1e-8)
        variance = tb.Linearised(posterior, chunk=chunk).functions(inputs, diagonal=True).covariance_MBKK[0]
        assert_close(variance, expected.diagonal(dim1=-2, dim2=-1), rtol=1e-8)
    together = tb.Linearised(posterior).joint(inputs[:2])
    flat = jacobian[:2].flatten(0, -2)
    assert_close(together.covariance_MBKK[0], (flat @ spread @ flat.T).view(*outputs[:2].shape * 2), rtol=1e-8)


@every_task
def test_probit_is_that_of_each_place(task: str):
    posterior, (_, _, inputs, targets) = fitted(task), TASKS[task]
    outputs, jacobian = truth(posterior, inputs)
    classes = outputs.shape[-1]
    # of each class from the mean of the others
    apart = (jacobian - jacobian.mean(-2, keepdim=True)) * classes / (classes - 1)
    variance = torch.einsum("...kd,de,...ke->...k", apart, covariance(posterior), apart)
    log_p = ((outputs - outputs.mean(-1, keepdim=True)) / (1 + math.pi / 8 * variance).sqrt()).log_softmax(-1)
    source = tb.Linearised(posterior, "probit")
    assert_close(tb.predict(source, inputs).probs, log_p.exp(), rtol=1e-8)
    expected = -log_p.gather(-1, targets.unsqueeze(-1)).flatten(1).sum(1).mean()
    actual = tb.evaluate(source, (inputs, targets))
    assert_close(actual.metrics["nll"], expected, rtol=1e-8)
    assert actual.metrics["accuracy"] == pytest.approx(float((log_p.argmax(-1) == targets).double().mean()))


@every_task
def test_samples_are_of_whole_functions(task: str):
    posterior, inputs = fitted(task), TASKS[task][2][:2]
    outputs, jacobian = truth(posterior, inputs)
    drawn = tb.predict(tb.Linearised(posterior, "samples", samples=40_000), inputs).outputs_SBK.flatten(2)
    flat = jacobian.flatten(1, -2)
    expected = flat @ covariance(posterior) @ flat.mT
    for row in range(len(inputs)):
        actual = torch.cov(drawn[:, row].T)
        error = 6 * (expected[row].diagonal().max() ** 2 * 2 / len(drawn)) ** 0.5  # standard errors of a covariance
        assert (actual - expected[row]).abs().max() < error
    assert (drawn.mean(0) - outputs.flatten(1)).abs().max() < 6 * (float(expected.amax()) / len(drawn)) ** 0.5


@pytest.mark.parametrize("link", ["auto", "pairwise", "bridge"])
@every_task
def test_other_links_give_probabilities_of_every_place(task: str, link: Any):
    inputs = TASKS[task][2]
    probs = tb.predict(tb.Linearised(fitted(task), link), inputs).probs
    assert probs.shape == (ROWS, *TASKS[task][3].shape[1:], CLASSES)
    assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))


def test_a_regression_at_places():
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian())  # with a learned noise scale
    inputs = normal(ROWS, TIMES, 2, seed=6)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    posterior = tb.fit(model, (inputs, inputs.sum(-1, keepdim=True)), method, start=model.given_weights())
    assert isinstance(posterior, tb.LaplacePosterior)
    actual = tb.predict(tb.Linearised(posterior), inputs)
    features = torch.cat([inputs, torch.ones(ROWS, TIMES, 1)], -1)
    expected = torch.einsum("btd,de,bte->bt", features, covariance(posterior)[:3, :3], features)
    assert_close(actual.epistemic.squeeze(-1), expected, rtol=1e-8)


def test_classes_on_axis_one_are_those_of_a_network_that_moves_them(tmp_path: Path):
    class Moved(nn.Sequential):
        def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(images).movedim(1, -1)

    _, likelihood, images, labels = TASKS["pixels"]
    ours = tb.Model(segmenter().double(), likelihood)
    theirs = tb.Model(Moved(*segmenter()).double(), tb.likelihoods.Categorical())
    method = tb.SWAG(members=2, epochs=6, rank=2)
    fits = [tb.fit(model, (images, labels), method) for model in (ours, theirs)]
    actual, expected = (tb.evaluate(fit, (images, labels)).metrics for fit in fits)
    assert actual == pytest.approx(expected)
    path = fits[0].save(tmp_path / "posterior.safetensors")
    assert_close(tb.predict(tb.load(path, ours), images).probs, tb.predict(fits[1], images).probs)
    with pytest.raises(ValueError, match="with classes on axis 1"):
        tb.load(path, tb.Model(segmenter().double(), tb.likelihoods.Categorical()))


@pytest.mark.parametrize("axis", [0, 2, "1", True])
def test_other_axes_of_classes_are_refused(axis: Any):
    with pytest.raises(ValueError, match="`class_axis` must be -1, the last axis, or 1; got"):
        tb.likelihoods.Categorical(class_axis=axis)


def test_the_functional_form_is_of_one_axis():
    make, likelihood, inputs, targets = TASKS["tokens"]
    model = tb.Model(make().double(), likelihood)
    with pytest.raises(ValueError, match=r"one axis of outputs.*gives \(4, 3\) for a row\. Use Laplace"):
        tb.functional_laplace(model, (inputs, targets), model.given_weights())
