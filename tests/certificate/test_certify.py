"""Certificates of posteriors that are right, and of posteriors made wrong on purpose, of linear models in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import LinearGaussian, classes, normal
from torchbayes.certificate.refits import _judged, needed_levels
from torchbayes.certificate.simulation import _thinned
from torchbayes.linalg import Dense, Diagonal

NOISE = 0.5


@cache
def model(noise: float = NOISE) -> tb.Model:
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(noise), tb.priors.Normal(1.0))


@cache
def rows(count: int = 60, noise: float = NOISE) -> tuple[Tensor, Tensor]:
    inputs = normal(count, 3)
    return inputs, inputs @ normal(3, 1, seed=1) + noise * normal(count, 1, seed=2)


def exact(of: tb.Model, data: Any, seed: int = 0, *, scale: float = 1.0, shift: float = 0.0) -> tb.Gaussian:
    """The conjugate posterior, its standard deviations times `scale`, its mean moved by `shift` of them."""
    noise = of.likelihood.scale  # type: ignore[attr-defined]
    mean, covariance = LinearGaussian(data[0], data[1].squeeze(1), 1.0, noise).posterior()
    root = torch.linalg.inv(torch.linalg.cholesky(torch.linalg.inv(covariance))).T
    return tb.Gaussian(of, (mean + shift * covariance.diagonal().sqrt())[None], Dense(scale * root[None]))


def from_prior(of: tb.Model, data: Any, seed: int = 0) -> tb.Gaussian:
    return tb.Gaussian(of, torch.zeros(1, 4).double(), Diagonal(torch.ones(1, 4).double()))


def point(of: tb.Model, data: Any, seed: int = 0) -> tb.Point:
    return tb.Point(of, exact(of, data).mean_MD)


def lottery(of: tb.Model, data: Any, seed: int = 0) -> tb.Point:
    """A method whose result depends on its seed."""
    return tb.Point(of, exact(of, data).mean_MD + normal(1, 4, seed=seed % 1000))


def chains(of: tb.Model, data: Any, seed: int = 0, *, draws: int = 300, memory: float = 0.0) -> tb.Draws:
    """Four chains of the exact posterior, AR(1) in each weight."""
    gaussian = exact(of, data)
    noise = gaussian.sample(4 * draws, seed=seed).view(draws, 4, 4) - gaussian.mean_MD
    steps = [noise[0]]
    for each in noise[1:]:
        steps.append(memory * steps[-1] + (1 - memory**2) ** 0.5 * each)
    return tb.Draws(of, (torch.stack(steps) + gaussian.mean_MD).transpose(0, 1))


def stuck(of: tb.Model, data: Any, seed: int = 0) -> tb.Draws:
    """Chains that stay where they began."""
    weights = chains(of, data, seed).weights_MSD
    return tb.Draws(of, weights[:, :1] + 0.01 * (weights - weights.mean(1, keepdim=True)))


def certify(fit: Any, *checks: str, data: Any = None, of: tb.Model | None = None, **budget: Any) -> tb.Certificate:
    of, data = of or model(), data or rows()
    return tb.certify(
        fit(of, data),
        data,
        fit,
        budget=tb.Budget(checks=checks, **{"simulations": 100, **budget}),
    )


CASES: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = [
    ("simulation", exact, ("green",)),
    ("simulation", partial(exact, scale=0.6), ("red",)),
    ("simulation", partial(exact, scale=1.6), ("red",)),
    ("simulation", partial(exact, shift=0.8), ("red",)),
    ("simulation", from_prior, ("red",)),
    ("simulation", point, ("red",)),
    ("simulation", partial(chains, draws=100, memory=0.9), ("green",)),
    ("k-hat", exact, ("green",)),
    ("k-hat", partial(exact, scale=0.5), ("red",)),
    ("k-hat", from_prior, ("red",)),
    ("k-hat", chains, ("not judged",)),
    ("R-hat", chains, ("green",)),
    ("R-hat", stuck, ("red",)),
    ("R-hat", partial(chains, draws=20), ("amber", "red")),
    ("R-hat", exact, ("not judged",)),
    ("leave-one-out", exact, ("green",)),
    ("leave-one-out", partial(exact, shift=3.0), ("red",)),
    ("leave-one-out", point, ("not judged",)),
    ("reference", exact, ("green",)),
    ("reference", partial(exact, scale=0.5), ("amber",)),
    ("reference", partial(exact, shift=3.0), ("red",)),
    ("reference", point, ("red",)),
    ("seeds", exact, ("green",)),
    ("seeds", lottery, ("red",)),
]
SHORT = {"reference": tb.NUTS(chains=4, steps=400, burn_in=150), "rows": 60}


def _name(value: Any) -> str:
    if isinstance(value, partial):
        return f"{value.func.__name__}-{'-'.join(map(str, value.keywords.values()))}"
    return value.__name__ if callable(value) else "-".join([value] if isinstance(value, str) else value)


@pytest.mark.parametrize(("check", "fit", "grades"), CASES, ids=_name)
def test_what_is_wrong_is_flagged_and_what_is_right_is_not(check: str, fit: Any, grades: tuple[str, ...]) -> None:
    actual = certify(fit, check, **SHORT)[check]
    assert actual.grade in grades, actual
    assert actual.meaning.endswith(".")
    if actual.grade != "not judged":
        assert actual.numbers
        assert actual.threshold
        assert bool(actual.remedy) == (actual.grade != "green" or check == "simulation")


def test_a_directory_is_of_one_method_and_one_model(tmp_path: Path) -> None:
    def fitted(epochs: int) -> Any:
        return lambda model, data, seed: tb.fit(model, data, tb.MAP(epochs=epochs), seed=seed, callbacks=())

    data, budget = rows(12), tb.Budget(checks=("coverage",), folds=2)
    posterior = fitted(2)(model(), data, 0)
    tb.certify(posterior, data, fitted(2), budget=budget, directory=tmp_path)
    tb.certify(posterior, data, fitted(2), budget=budget, directory=tmp_path)
    with pytest.raises(ValueError, match="holds results of another method"):
        tb.certify(posterior, data, fitted(3), budget=budget, directory=tmp_path)
    with pytest.raises(ValueError, match="holds results of another model"):
        tb.certify(posterior, data, fitted(2), model=model(1.0), budget=budget, directory=tmp_path)


@pytest.mark.parametrize(
    ("good", "bad", "rows", "grade"),
    [
        (5, 0, 100, "green"),
        (4, 1, 100, "red"),
        (3, 2, 100, "red"),
        (1, 1, 6, "red"),
        (9, 1, 20, "amber"),
        (4, 1, 3, "amber"),
    ],
)
def test_fits_that_are_all_wrong_do_not_excuse_themselves(good: int, bad: int, rows: int, grade: str) -> None:
    right = (torch.arange(rows).double() + 0.5) / rows
    levels = [right] * good + [torch.full_like(right, 0.9999)] * bad
    assert _judged(levels, [1.0] * len(levels)).grade == grade


@pytest.mark.parametrize(("noise", "grade"), [(0.5, "green"), (0.3, "red"), (1.0, "red")])
def test_coverage_sees_a_wrong_noise(noise: float, grade: str) -> None:
    actual = certify(exact, "coverage", data=rows(400), of=model(noise))["coverage"]
    assert actual.grade == grade
    assert actual.numbers["rows"] == 400
    if grade == "red":
        assert ("too few" in actual.meaning) == (noise < 0.5)


def test_the_prior_is_seen_by_the_data_alone() -> None:
    """Returned as posterior, it has uniform ranks of every function of the weights (Modrák et al. 2023)."""
    actual = certify(from_prior, "simulation")["simulation"]
    from torchbayes.certificate.uniformity import uniformity

    p_values = {name: uniformity(torch.tensor(u).double()).p_value for name, u in actual.curves.items()}
    assert p_values.pop("log likelihood") < 0.001
    assert min(p_values.values()) * len(p_values) > 0.05
    assert {"log prior", "mean output", "output outside", "output at row 0"} == {
        name for name in p_values if name not in {"output at row 20", "output at row 40"}
    }


def test_sizes_of_errors_are_those_that_were_put_in() -> None:
    """Outputs of a linear model have the width of its weights."""
    numbers = certify(partial(exact, scale=0.6), "simulation", simulations=200)["simulation"].numbers
    assert numbers["width"] == pytest.approx(0.6, rel=0.2)
    assert numbers["shift / sd"] == pytest.approx(0.0, abs=0.35)
    assert numbers["resolves"] == pytest.approx(0.1, abs=0.01)


def test_right_posteriors_seldom_raise_an_alarm() -> None:
    """Ten certificates with other seeds: at 5 %, three alarms have a probability of .012."""
    posterior = exact(model(), rows())
    budget = tb.Budget(checks=("simulation",), simulations=30, rows=20)
    grades = [tb.certify(posterior, rows(), exact, budget=budget, seed=s).grade for s in range(10)]
    assert grades.count("green") >= 8


def test_truths_from_the_posterior_are_refitted_with_all_rows() -> None:
    seen = []

    def fit(of: tb.Model, data: Any, seed: int) -> tb.Gaussian:
        seen.append(len(data[0]))
        return exact(of, data)

    budget = {"source": "posterior", "rows": 30, "simulations": 100}
    posterior = exact(model(), rows())
    actual = tb.certify(posterior, rows(), fit, budget=tb.Budget(checks=("simulation",), **budget))
    assert actual.grade == "green"
    assert set(seen) == {90}
    wrong = tb.certify(
        exact(model(), rows(), shift=1.5),
        rows(),
        exact,
        budget=tb.Budget(checks=("simulation",), **budget),
    )
    assert wrong.grade == "red"


def test_an_interrupted_certificate_goes_on(tmp_path: Path) -> None:
    fits = []

    def fit(of: tb.Model, data: Any, seed: int) -> tb.Gaussian:
        fits.append(seed)
        if len(fits) == 12:
            raise KeyboardInterrupt
        return exact(of, data)

    budget = tb.Budget(checks=("simulation", "coverage", "seeds"), simulations=30)
    posterior = exact(model(), rows())
    again = partial(tb.certify, posterior, rows(), fit, budget=budget)
    with pytest.raises(KeyboardInterrupt):
        again(directory=tmp_path)
    resumed = again(directory=tmp_path)
    assert len(fits) == 12 + 19 + 5 + 2
    assert resumed == again()
    with pytest.raises(ValueError, match="holds results of another seed"):
        again(directory=tmp_path, seed=1)


def test_fits_that_fail_are_counted() -> None:
    def fit(of: tb.Model, data: Any, seed: int) -> tb.Gaussian:
        if seed % 5 == 0:
            raise tb.DivergedError("the loss is not finite.")
        return exact(of, data)

    actual = tb.certify(
        exact(model(), rows()),
        rows(),
        fit,
        budget=tb.Budget(checks=("simulation",), simulations=40),
        seed=1,
    )["simulation"]
    assert actual.grade == "amber"
    assert "fits failed (the loss is not finite)" in actual.meaning
    assert actual.numbers["simulations"] < 40


def test_a_method_whose_fits_diverge_is_not_certified() -> None:
    def fit(of: tb.Model, data: Any, seed: int) -> tb.Gaussian:
        raise tb.DivergedError("the loss is not finite.")

    budget = tb.Budget(checks=("simulation", "coverage", "k-hat", "seeds"), simulations=4)
    actual = tb.certify(exact(model(), rows()), rows(), fit, budget=budget)
    assert actual.grade == "red"
    assert {check.name: check.grade for check in actual} == {
        "simulation": "red",
        "coverage": "red",
        "k-hat": "green",
        "seeds": "red",
    }


def test_a_reference_of_one_chain_has_a_floor() -> None:
    wrong = partial(exact, shift=3.0)
    actual = certify(wrong, "reference", rows=60, reference=tb.NUTS(chains=1, steps=300, burn_in=100))["reference"]
    assert actual.grade == "red"
    assert actual.numbers["floor"] < next(iter(actual.numbers.values()))


def test_thinned_draws_are_of_all_chains() -> None:
    """Four chains that stand at exact draws are worth four draws, one of each, whatever the lengths."""
    for length in (4, 5, 10, 100):
        of = SimpleNamespace(members=4, chain_length=length)
        standing = torch.tensor([-3.0, -1.0, 1.0, 3.0]).double().repeat(length) + 0.01 * normal(4 * length)
        kept = _thinned({"f": standing}, of)
        assert len({*kept}) == len(kept)
        assert {draw % 4 for draw in kept} == {*range(min(4, len(kept)))}


def test_without_a_method_what_fits_again_is_not_judged() -> None:
    actual = tb.certify(exact(model(), rows()), rows(), budget=tb.Budget(**SHORT))
    grades = {check.name: check.grade for check in actual}
    assert {name for name, grade in grades.items() if grade == "not judged"} == {
        "simulation",
        "coverage",
        "seeds",
        "R-hat",
    }
    assert "method=" in actual["simulation"].meaning
    assert actual.grade == "green"


def test_the_page_and_the_numbers_hold_every_check(tmp_path: Path) -> None:
    actual = certify(partial(exact, scale=0.6), "simulation", "k-hat", "R-hat")
    page = actual.save(tmp_path / "certificate.html")
    text, numbers = page.read_text(), json.loads(page.with_suffix(".json").read_text())
    assert numbers["grade"] == "red"
    assert [each["name"] for each in numbers["checks"]] == ["simulation", "k-hat", "R-hat"]
    assert all(check.meaning.split(":")[0] in text for check in actual)
    assert list(actual.frame()["grade"]) == ["red", "red", "not judged"]
    assert repr(actual) == "Certificate: red(simulation=red, k-hat=red, R-hat=not judged)"


def mode(of: tb.Model, data: Any) -> Tensor:
    weights = torch.zeros(of.layout.size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=60, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -of.log_joint(weights, of.unpack(data), len(data[0]))
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return weights.detach()


@pytest.mark.parametrize("kind", [tb.likelihoods.Categorical(), tb.likelihoods.Bernoulli()])
def test_classes_are_simulated_and_covered(kind: Any) -> None:
    """Few weights and many rows: Laplace is right within what 40 simulations see."""
    outputs = 3 if isinstance(kind, tb.likelihoods.Categorical) else 1
    of = tb.Model(nn.Linear(2, outputs).double(), kind, tb.priors.Normal(1.0))
    inputs = normal(80, 2)
    labels = classes(80, 3) if outputs == 3 else classes(80, 2).double()[:, None]
    method = tb.Laplace(structure="dense", prior="model")

    def fit(of: tb.Model, data: Any, seed: int) -> Any:
        return tb.fit(of, data, method, start=mode(of, data), callbacks=())

    data = inputs, labels
    budget = tb.Budget(checks=("simulation", "coverage"), simulations=12, folds=2)
    actual = tb.certify(fit(of, data, 0), data, fit, budget=budget)
    assert actual["simulation"].numbers["p"] > 0.05
    assert actual["simulation"].grade == "amber"
    assert "12 simulations are too few to say" in actual["simulation"].meaning
    assert actual["coverage"].grade == "green"


def test_sets_of_classes_need_the_levels_of_their_definition() -> None:
    """Sets of the most probable classes; a target drawn from the probabilities needs a uniform level."""
    probs = torch.softmax(normal(4000, 4), -1)
    drawn = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    evaluation = tb.evaluate(tb.Predictive.from_probs(probs), drawn)
    levels = needed_levels(evaluation, seed=0)
    for level in (0.5, 0.8, 0.95):
        assert float((levels <= level).double().mean()) == pytest.approx(level, abs=0.025)
    one = tb.evaluate(tb.Predictive.from_probs(torch.tensor([[0.5, 0.3, 0.2]]).double()), torch.tensor([1]))
    assert 0.5 <= float(needed_levels(one, seed=3)) <= 0.8


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"simulations": 1}, "simulations"),
        ({"rows": 0}, "rows"),
        ({"folds": 1}, "folds"),
        ({"seeds": 0}, "seeds"),
        ({"source": "data"}, "source"),
        ({"checks": ("sbc",)}, "checks"),
        ({"checks": "simulation"}, "checks"),
        ({"reference": tb.NUTS}, "reference"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"`{word}`"):
        tb.Budget(**settings)


def test_arguments_that_do_not_fit_are_refused() -> None:
    posterior = exact(model(), rows())
    for wrong, word in [({"method": tb.HMC}, "method"), ({"method": "HMC"}, "method"), ({"seed": -1}, "seed")]:
        with pytest.raises((ValueError, TypeError), match=f"`{word}`"):
            tb.certify(posterior, rows(), **wrong)
    with pytest.raises(TypeError, match="`posterior`"):
        tb.certify(nn.Linear(3, 1), rows())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        tb.certify(posterior, (rows()[0] * float("nan"), rows()[1]))


def test_one_row_leaves_nothing_to_cover() -> None:
    actual = certify(exact, "coverage", data=rows(1))["coverage"]
    assert actual.grade == "not judged"
    assert "at least 2 rows" in actual.meaning


def test_a_prior_that_the_fit_chose_is_chosen_again() -> None:
    """Laplace tunes the prior: fits of other rows begin with the model as it was given."""
    data, method = rows(), tb.Laplace(structure="dense")
    chosen: Any = tb.fit(model(), data, method, start=exact(model(), data).mean_MD[0], callbacks=())
    assert chosen.prior_chosen
    seen: list[tb.Model] = []

    def fit(of: tb.Model, data: Any, seed: int) -> Any:
        seen.append(of)
        return exact(of, data)

    budget = tb.Budget(checks=("coverage",), folds=2)
    without = tb.certify(chosen, data, fit, budget=budget)["coverage"]
    assert without.grade == "not judged"
    assert "Give `model=`" in without.meaning
    assert tb.certify(chosen, data, fit, model=model(), budget=budget)["coverage"].grade == "green"
    assert all(of is model() for of in seen)
    other = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))
    with pytest.raises(ValueError, match="`model`"):
        tb.certify(chosen, data, fit, model=other)


def test_a_known_problem_is_shown_and_leaves_nothing_green() -> None:
    check = tb.Check("k-hat", "green", {"k-hat": 0.1}, meaning="Good.")
    actual = tb.Certificate((check,), problems=("chain 2 never moved",))
    assert actual.grade == "amber"
    assert "1 problem" in repr(actual)
    assert "chain 2 never moved" in actual.page().html
    assert tb.Certificate((check,)).grade == "green"
    assert tb.Certificate(()).grade == "not judged"
    assert "Nothing could be judged" in tb.Certificate(()).page().html
