"""Misspecification: closed forms of a line, the sandwich, quadrature, and every part of the verdict."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes_experiments.priors import misspecification as room
from torchbayes_experiments.priors.misspecification import (
    ASSUMED,
    BAYES,
    CURVED,
    EXPERIMENT,
    GROWING,
    OUTLIERS,
    STUDENT,
    TEMPERED,
    MisspecificationRecipe,
    nearest,
)

S = 0.3
TINY = MisspecificationRecipe(
    laws=(GROWING, OUTLIERS, CURVED),
    sizes=(20, 40),
    sets=6,
    points=5,
)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_sandwich_of_a_line_is_the_closed_form():
    # E x² = 1/3, E x⁴ = 1/5, E x⁶ = 1/7; the parabola x² − 1/3 has no line in it
    growing = nearest(GROWING, S)
    curved = nearest(CURVED, S)
    outliers = nearest(OUTLIERS, S)
    model = torch.diag(vector(1.0, 3.0)) * S**2
    for actual in (growing, curved, outliers):
        torch.testing.assert_close(actual.weights_D, vector(0.0, 1.0), rtol=0, atol=1e-12)
        torch.testing.assert_close(actual.model_DD, model, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(growing.sandwich_DD.diagonal(), vector(1, 9 * 5 / 7) * S**2)
    square = CURVED.amplitude**2
    middle, slope = square * (1 / 5 - 1 / 9), square * (1 / 7 - 2 / 15 + 1 / 27)
    torch.testing.assert_close(curved.sandwich_DD.diagonal(), vector(S**2 + middle, 9 * (S**2 / 3 + slope)))
    torch.testing.assert_close(outliers.sandwich_DD, model * (0.9 + 0.1 * 25))


def test_where_the_model_is_right_the_sandwich_is_its_covariance():
    actual = nearest(ASSUMED, S)
    torch.testing.assert_close(actual.sandwich_DD, actual.model_DD, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(actual.ratio(vector(-1.0, 0.3)), vector(1.0, 1.0))


def test_rows_have_the_mean_and_variance_of_their_law():
    x, y = OUTLIERS.draw((400, 500), S, torch.Generator().manual_seed(1))
    assert float((y - OUTLIERS.mean(x)).var()) == pytest.approx(S**2 * 3.4, rel=0.02)
    assert float(OUTLIERS.variance(x, S).mean()) == pytest.approx(S**2 * 3.4)
    x, y = GROWING.draw((400, 500), S, torch.Generator().manual_seed(1))
    squares = (y - GROWING.mean(x)) ** 2
    assert float(squares.mean()) == pytest.approx(S**2, rel=0.02)
    assert float((squares * x**2).mean()) == pytest.approx(5 * S**2 / 7, rel=0.02)


@pytest.mark.parametrize("power", [1.0, 2.5])
def test_normal_posteriors_are_those_of_the_library(power):
    x_RN, y_RN = CURVED.draw((3, 40), S, torch.Generator().manual_seed(2))
    heat = torch.full((3,), power, dtype=torch.float64)
    mean, covariance = room.normal_posterior((x_RN, y_RN), heat, noise=S, scale=2.0)
    for r in (0, 2):
        net = torch.nn.Linear(1, 1).double()
        with torch.no_grad():
            net.weight.fill_(mean[r, 1])
            net.bias.fill_(mean[r, 0])
        options = {"temperature": power, "tempering": "likelihood"}
        model = tb.Model(net, tb.likelihoods.Gaussian(S), tb.priors.Normal(2.0), **options)
        rows = (x_RN[r].unsqueeze(1), y_RN[r].unsqueeze(1))
        actual = tb.fit(model, rows, tb.Laplace(structure="dense", prior="model"), start=net, callbacks=())
        order = [1, 0]  # weight, then bias
        drawn = actual.sample(10_000).double()
        torch.testing.assert_close(drawn.mean(0), mean[r][order], rtol=0, atol=0.002)
        torch.testing.assert_close(drawn.std(0), covariance[r].diagonal().sqrt()[order], rtol=0.03, atol=0)


def test_student_posteriors_are_those_of_a_fine_grid():
    rows = OUTLIERS.draw((2, 60), S, torch.Generator().manual_seed(3))
    normal = room.normal_posterior(rows, torch.ones(2).double(), noise=S, scale=3.0)
    mean, covariance = room.student_posterior(rows, normal, recipe=TINY)
    for r in range(2):
        spots = [torch.linspace(float(m) - 0.5, float(m) + 0.5, 151, dtype=torch.float64) for m in mean[r]]
        w0, w1 = torch.meshgrid(*spots, indexing="ij")
        noise = torch.distributions.StudentT(3.0, w0.unsqueeze(-1) + w1.unsqueeze(-1) * rows[0][r], S)
        density = noise.log_prob(rows[1][r]).sum(-1) - (w0**2 + w1**2) / 18
        shares = density.flatten().softmax(0).reshape(density.shape)
        exact = torch.stack([(shares * w0).sum(), (shares * w1).sum()])
        torch.testing.assert_close(mean[r], exact, rtol=0, atol=1e-4)
        for place, w in enumerate((w0, w1)):
            spread = float((shares * (w - exact[place]) ** 2).sum())
            assert float(covariance[r, place, place]) == pytest.approx(spread, rel=1e-2)


def test_the_temperature_is_the_excess_of_the_sandwich():
    rows = OUTLIERS.draw((4, 20_000), S, torch.Generator().manual_seed(5))
    weights = vector(0.0, 1.0).expand(4, -1)
    actual = room.temperature(weights, rows, noise=S)
    torch.testing.assert_close(actual, torch.full((4,), 3.4).double(), rtol=0.05, atol=0)
    rows = GROWING.draw((4, 20_000), S, torch.Generator().manual_seed(5))
    expected = (1 + 15 / 7) / 2  # of intercept and slope
    assert float(room.temperature(weights, rows, noise=S).mean()) == pytest.approx(expected, rel=0.03)


def test_bands_are_judged_at_every_point():
    means, spread = torch.stack([vector(0.0, 0.0), vector(2.0, 0.0)]), torch.diag(vector(1.0, 0.25)).expand(2, 2, 2)
    actual = room.judged((means, spread), vector(0.0, 2.0), vector(0.5, 9.0), truth=vector(2.0, 0.0))
    assert actual["coverage"] == [1.0, 0.0]
    assert actual["coverage_true"] == [0.5, 1.0]
    assert actual["width"] == pytest.approx(room.Z * (1 + math.sqrt(2)))
    assert actual["distance"] == pytest.approx(math.sqrt((0.25 + 2.25 + 81 + 49) / 4))
    assert pytest.approx(norm.ppf(0.975)) == room.Z


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("laws")
    return directory, EXPERIMENT.run(TINY, 1, directory)


def test_what_is_known_is_beside_what_was_found(tiny):
    actual = tiny[1]["outliers"][1]
    assert actual["size"] == 40
    assert actual["exact"] == pytest.approx([2 * norm.cdf(room.Z / math.sqrt(3.4)) - 1] * 5)
    assert actual["true"] == pytest.approx(0, abs=1e-10)
    assert set(actual) == {"size", "points", "exact", "true", BAYES, TEMPERED, STUDENT}
    assert actual[BAYES]["temperature"] == 1
    assert actual[TEMPERED]["width"] > actual[BAYES]["width"]


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert len(before) == 6
    assert room.run(TINY, 1, directory) == actual
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def made_up(*, bayes=0.71, tempered=0.945, student=0.95, width=0.1, near=0.02, right=0.95, beside=0.3):
    """One seed: a law that the model has, one with outliers, and one whose mean it does not have."""

    def one(coverage, **others):
        rest = {"coverage_true": [coverage] * 3, "width": 0.2, "temperature": 1.0, "distance": near, "moved": 0.9}
        return {"coverage": [coverage] * 3, "distance_true": beside, **rest, **others}

    def law(exact, true, actual):
        sizes = []
        for size, distance in ((50, 0.1), (800, near)):
            rest = {"size": size, "points": [-1.0, 0.0, 1.0], "exact": [exact] * 3, "true": true}
            sizes.append(rest | {name: value | {"distance": distance} for name, value in actual.items()})
        return sizes

    wrong = {BAYES: one(bayes), TEMPERED: one(tempered)}
    return {
        "as assumed": law(0.95, 0.0, {BAYES: one(right), TEMPERED: one(0.95)}),
        "outliers": law(0.71, 0.0, wrong | {STUDENT: one(student, width=width)}),
        "curved mean": law(0.71, 0.3, wrong),
    }


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng, results = np.random.default_rng(0), copy.deepcopy(results)
    for result in results:
        for sizes in result.values():
            for one in (value for size in sizes for value in size.values() if isinstance(value, dict)):
                one["coverage"] = [value + rng.normal(0, 1e-4) for value in one["coverage"]]
                for key in ("width", "distance", "distance_true"):
                    one[key] += rng.normal(0, 1e-4)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(right=0.9)] * 3, "does not hold", 1),
        ([made_up(bayes=0.93)] * 3, "does not hold", 4),  # too wide, and not what the sandwich tells
        ([made_up(tempered=0.5)] * 3, "does not hold", 2),
        ([made_up(student=0.8)] * 3, "does not hold", 1),
        ([made_up(width=0.3)] * 3, "does not hold", 1),
        ([made_up(near=0.08)] * 3, "does not hold", 2),
        ([made_up(beside=0.1)] * 3, "does not hold", 1),
        ([made_up()], "inconclusive", 12),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_the_tables_hold_the_means():
    coverage, distance = room.summarise([made_up(bayes=0.7), made_up(bayes=0.72)]).tables
    assert "| outliers | 800 | Bayes, T = 1 | 0.710 ± 0.010 | 0.710 |" in coverage.markdown()
    assert "| curved mean | 800 | 0.0200 ± 0.0000 | 0.300 ± 0.000 | 0.3000 |" in distance.markdown()


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert (tmp_path / "figure_3.png").exists()
    assert "Kleijn and van der Vaart 2012" in page
