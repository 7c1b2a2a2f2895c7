"""What objects say of themselves: one short line, a small table in a notebook, and never their tensors."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.laws.cases import POSTERIORS, model_of
from torchbayes.data import load
from torchbayes.display import Overview, as_html, as_line, brief
from torchbayes.report import figures


def html(shown: Any) -> str:
    return shown._repr_html_()


def _vectors(outputs: torch.Tensor) -> torch.distributions.Distribution:
    return torch.distributions.Independent(torch.distributions.Normal(outputs, 1.0), 1)


VECTORS = tb.Model(nn.Linear(1, 2), _vectors).likelihood


@pytest.mark.parametrize("name", POSTERIORS)
def test_posterior_says_members_draws_and_model_in_a_line(name: str) -> None:
    posterior = POSTERIORS[name](model_of(), 2)
    line = repr(posterior.with_problems(["chain 1 never moved"]))
    assert line.startswith(f"{type(posterior).__name__}(members=2, draws=")
    assert repr(posterior.model) in line
    assert "1 problem" in line
    assert "tensor(" not in line
    assert "object at 0x" not in line
    assert "chain 1 never moved" in html(posterior.with_problems(["chain 1 never moved"]))


def test_model_names_random_weights_of_all_with_their_priors() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    prior = {"*.bias": tb.priors.Normal(2.0), "*": tb.priors.Laplace(0.5)}
    model = tb.Model(net, tb.likelihoods.Categorical(label_smoothing=0.1), prior, random="2.*", temperature=0.5)
    line = repr(model)
    assert line.startswith("Model(network=Sequential, weights=10 of 26, likelihood=Categorical(label_smoothing=0.1), ")
    assert "Normal(scale=2.0" in line
    assert line.endswith("temperature=0.5, tempering=joint)")
    rows = re.findall(r"<tr>(.*?)</tr>", html(model))
    cells = [re.sub(r"<[^>]+>", "|", row) for row in rows]
    assert any("2.weight" in row and "2 × 4" in row and "Laplace(" in row for row in cells)
    assert any("2.bias" in row and "Normal(" in row for row in cells)


def test_predictive_shows_its_first_rows() -> None:
    outputs = torch.randn(3, 25, 4, generator=torch.Generator().manual_seed(0))
    predictive = tb.Predictive(outputs, tb.likelihoods.Categorical())
    page = html(predictive)
    assert repr(predictive) == "Predictive(draws=3, rows=25, likelihood=Categorical(), outputs=4)"
    assert page.count("<tr>") == 4 + 1 + 10  # facts, header, rows
    assert "The first 10 of 25." in page
    assert f"{predictive.probs[0].max():.4g}" in page


@pytest.mark.parametrize(
    "predictive",
    [
        tb.Predictive(torch.randn(2, 4, 5, 3), tb.likelihoods.Categorical()),  # several places in a row
        tb.Predictive(torch.randn(1, 4, 1), tb.likelihoods.Poisson()),
        tb.Predictive(torch.randn(2, 4, 1), tb.likelihoods.Bernoulli()),
        tb.Predictive(torch.randn(2, 4, 1), tb.likelihoods.Gaussian(0.3), {}, torch.rand(2, 4, 1)),
        tb.Predictive(torch.randn(2, 4, 2), VECTORS),
    ],
    ids=["tokens", "counts", "binary", "closed form", "vectors"],
)
def test_any_predictive_can_be_shown(predictive: tb.Predictive) -> None:
    assert repr(predictive).startswith("Predictive(draws=")
    assert html(predictive).startswith("<div>")


def test_diagnosis_says_its_verdict() -> None:
    model = tb.Model(nn.Linear(1, 1), tb.likelihoods.Gaussian(0.3))
    generator, inputs = torch.Generator().manual_seed(0), torch.linspace(-1, 1, 5)[:, None]
    mixed = 0.1 * torch.randn(4, 500, 2, generator=generator)
    apart = mixed + torch.arange(4.0)[:, None, None]
    short = mixed[:, :60]
    verdicts = [tb.diagnose(tb.Draws(model, draws), inputs).verdict for draws in (mixed, apart, short)]
    assert verdicts == ["converged", "not converged", "nearly converged"]
    assert repr(tb.diagnose(tb.Draws(model, apart), inputs)) == "Diagnosis(chains=4, draws=500, verdict=not converged)"


def test_images_are_shown_as_a_picture_and_vectors_are_not() -> None:
    digits, moons = load("digits", train_size=20), load("two_moons")
    assert repr(digits).startswith("Data(name=digits, train=20, test=360, inputs=1 × 8 × 8, task=classification")
    assert "data:image/png;base64,iVBOR" in html(digits)
    assert "<img" not in html(moons)


def test_figure_shows_itself_in_a_notebook() -> None:
    figure = figures.rhat_histogram({"weights": 1 + torch.rand(30)})
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_html_escapes_what_it_is_given() -> None:
    page = as_html(Overview("<b>", {"x<y": "<script>"}, header=("<i>",), rows=[("&",)], problems=["<img>"]))
    assert not re.search(r"<(b|script|i|img)>", page)
    assert "&amp;" in page


def test_line_counts_problems() -> None:
    assert as_line(Overview("A", {"n": 1200, "x": 0.123456})) == "A(n=1,200, x=0.1235)"
    assert as_line(Overview("A", problems=["a", "b"])) == "A(2 problems: see `.problems`)"


def test_brief_leaves_defaults_out() -> None:
    assert brief(tb.likelihoods.Categorical()) == "Categorical()"
    assert brief(tb.MAP(members=3)) == "MAP(members=3)"
    assert len(brief("x" * 1000)) <= 121
