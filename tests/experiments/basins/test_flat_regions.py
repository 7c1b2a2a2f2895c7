"""Flat regions: tiny networks against direct computation, and every part of the verdict from made-up numbers."""

import copy
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes.data import load
from torchbayes.geometry import Spectrum, basin
from torchbayes.geometry.networks import place_of
from torchbayes.geometry.operators import Products
from torchbayes.methods.schedules import Constant
from torchbayes_experiments.basins.flat_regions import EXPERIMENT, report, run
from torchbayes_experiments.basins.flat_regions.run import FILTERS, GRID, RAW, FlatRecipe, Solutions, Widths
from torchbayes_experiments.shared.classifiers import shuffled
from torchbayes_experiments.verdicts import ranks_agree

SOLUTIONS = Solutions(
    clean=40,
    shares=(0.0, 0.5),
    hidden=(16,),
    level=0.1,
    method=tb.MAP(1, 120, 10, tb.SGD(0.02), Constant(), "loop"),
    rho=0.05,
    directions=4,
    steps=8,
    probes=2,
    chains=tb.SGLD(chains=2, steps=16, burn_in=8, thin=1, batch_size=20),
    points=3,
)
WIDTHS = Widths(
    rows=30,
    pool=2,
    units=(2, 24),
    method=tb.MAP(1, 150, 30, tb.Adam(0.03), Constant(), "loop"),
    level=0.2,
    steps=8,
    probes=2,
)
TINY = FlatRecipe(data="digits", test_rows=50, solutions=SOLUTIONS, widths=WIDTHS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("flat")
    return directory, EXPERIMENT.run(TINY, 3, directory)


@pytest.fixture(scope="module")
def rows():
    return load("digits", train_size=60, seed=3)


@cache
def again(rows, place):
    """A network of the tiny run, trained anew."""
    name, share = SOLUTIONS.trained()[place]
    clean, poison = run.divided(SOLUTIONS, rows.train, share, seed=3)
    model = tb.Model(tb.networks.mlp((1, 8, 8), 10, hidden=(16,)), tb.likelihoods.Categorical(), tb.priors.Flat())
    point, epochs = run.trained(SOLUTIONS, model, clean, poison=poison, name=name, seed=3)
    return model, point, epochs, clean, poison


def test_poison_is_never_right_and_a_small_share_is_part_of_a_large_one(rows):
    truth = {tuple(x.flatten().tolist()): int(y) for x, y in zip(*rows.train, strict=True)}
    clean, half = run.divided(SOLUTIONS, rows.train, 0.5, seed=1)
    same, quarter = run.divided(SOLUTIONS, rows.train, 0.25, seed=1)
    assert (len(clean.targets), len(half.targets), len(quarter.targets)) == (40, 20, 10)
    assert torch.equal(clean.inputs, same.inputs)
    assert torch.equal(half.inputs[:10], quarter.inputs)
    assert torch.equal(half.targets[:10], quarter.targets)
    keys = [tuple(x.flatten().tolist()) for x in torch.cat([clean.inputs, half.inputs])]
    assert len(set(keys)) == 60
    assert all(truth[key] == y for key, y in zip(keys[:40], clean.targets.tolist(), strict=True))
    assert all(truth[key] != y for key, y in zip(keys[40:], half.targets.tolist(), strict=True))
    assert 0 <= int(half.targets.min()) <= int(half.targets.max()) <= 9


@pytest.mark.parametrize("place", [0, 1, 2])
def test_scores_are_those_of_the_network(tiny, rows, place):
    actual = tiny[1]["solutions"][place]
    _, point, epochs, clean, poison = again(rows, place)
    network = point.functions()
    assert (actual["name"], actual["share"], actual["epochs"]) == (*SOLUTIONS.trained()[place], epochs)
    for pair, loss, error in (
        (clean, "loss", "error"),
        (tb.data.Pair(*(p[:50] for p in rows.test)), "test_nll", "test_error"),
    ):
        outputs = network(pair.inputs)[0].double()
        assert actual[loss] == pytest.approx(torch.nn.functional.cross_entropy(outputs, pair.targets).item(), rel=1e-5)
        assert actual[error] == pytest.approx((outputs.argmax(1) != pair.targets).double().mean().item())
    if len(poison.targets):
        missed = (network(poison.inputs)[0].argmax(1) != poison.targets).double().mean().item()
        assert actual["poison_error"] == pytest.approx(missed)
    assert actual["norm"] == pytest.approx(float(point.weights_MD.norm()), rel=1e-6)
    assert actual["loss"] == pytest.approx(SOLUTIONS.level, rel=1e-4)
    assert actual["error"] == 0


def test_training_ends_at_the_first_epoch_that_fits(rows, monkeypatch):
    model, point, epochs, clean, poison = again(rows, 1)
    assert 1 < epochs < 120
    short = replace(SOLUTIONS, method=replace(SOLUTIONS.method, epochs=epochs - 1))
    before, last = run.trained(short, model, clean, poison=poison, name="SGD", seed=3)
    assert last == epochs - 1
    scores = tb.evaluate(before, clean).metrics
    assert scores["nll"] > SOLUTIONS.level or scores["accuracy"] < 1
    full = replace(SOLUTIONS, method=replace(SOLUTIONS.method, epochs=epochs))
    same, _ = run.trained(full, model, clean, poison=poison, name="SGD", seed=3)
    assert torch.equal(same.weights_MD, point.weights_MD)


def test_scaling_changes_outputs_alone(rows):
    _, point, _, clean, _ = again(rows, 0)
    before, after = (p.functions()(clean.inputs)[0] for p in (point, run.scaled(point, clean, level=0.3)))
    ratio = after / before
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-3)
    assert float(torch.nn.functional.cross_entropy(after, clean.targets)) == pytest.approx(0.3, rel=1e-5)
    same = run.scaled(point, clean, level=0.05)  # it would have to be scaled up
    assert torch.equal(same.weights_MD, point.weights_MD)


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
@pytest.mark.parametrize("shape", [RAW, FILTERS])
def test_volumes_are_means_of_powers_of_radii(tiny, rows, shape):
    model, point, _, clean, _ = again(rows, 0)
    radii = basin(model, clean, point, directions=4, shape=shape, seed=3).radii_K.numpy()
    actual, size = tiny[1]["solutions"][0]["basins"][shape], point.weights_MD.shape[1]
    top = radii.max()
    assert actual["orders"] == pytest.approx(size * math.log10(top) + math.log10(np.mean((radii / top) ** size)))
    assert actual["typical"] == pytest.approx(size * np.log10(radii).mean())
    assert actual["typical_error"] == pytest.approx(size * np.log10(radii).std(ddof=1) / 2)
    assert np.allclose(actual["radii"], radii, rtol=1e-3)
    assert actual["capped"] == 0


def test_effective_dimension_is_that_of_all_eigenvalues(rows):
    recipe = replace(SOLUTIONS, steps=30, probes=30, precision=0.5)
    model, point, _, clean, _ = again(rows, 0)
    place = place_of(model, clean, point)
    matrix = Products(place, "ggn", 100)(torch.eye(point.weights_MD.shape[1])).double()
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2).clamp_min(0)
    actual = run.curvature(recipe, point, clean, seed=0)
    exact = float((values / (values + 0.5)).sum())
    assert abs(actual["effective"] - exact) < 4 * actual["effective_error"]
    assert actual["effective_error"] < 0.1 * exact
    assert actual["top"] == pytest.approx(float(values[-1]), rel=1e-4)
    density = np.array(actual["density"])
    near = float(((values > 10) & (values < 1e4)).sum())
    inside = (np.array(GRID) > 1) & (np.array(GRID) < 4)
    assert density[inside].sum() * 0.05 == pytest.approx(near, rel=0.25)


def test_a_density_counts_all_eigenvalues():
    nodes = torch.tensor([[0.0, 1.0, 100.0]], dtype=torch.float64)
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    actual = run.per_decade(Spectrum(nodes, weights, torch.zeros(1, 3), (3,), 1000, 10, "ggn"))
    grid = torch.tensor(GRID)
    assert float(actual.sum()) * 0.05 == pytest.approx(500, rel=1e-6)  # a zero is off the grid
    assert float(actual[grid < 1].sum()) * 0.05 == pytest.approx(300, rel=1e-6)
    assert float(grid[actual.argmax()]) == pytest.approx(0, abs=0.03)


def test_surfaces_are_around_the_networks(tiny):
    actual = tiny[1]["surfaces"]
    for place, share in enumerate((0.0, 0.5)):
        assert actual["shares"][place] == share
        assert actual["nll"][place][1][1] == pytest.approx(tiny[1]["solutions"][place]["loss"], rel=1e-3)
        assert min(actual["nll"][place][0]) > actual["nll"][place][1][1]


@pytest.mark.parametrize("place", [0, 1])
def test_widths_are_scored_on_noisy_and_true_labels(tiny, place):
    actual, data = tiny[1]["widths"][place], load("digits", train_size=30, seed=3)
    images = [torch.nn.functional.avg_pool2d(part.inputs, 2) for part in (data.train, data.test)]
    scale = images[0].std()
    train = (images[0] / scale, shuffled(data.train.targets, 0.2, seed=3))
    test = (images[1][:50] / scale, data.test.targets[:50])
    units = WIDTHS.units[place]
    model = tb.Model(tb.networks.mlp((1, 4, 4), 10, hidden=(units,)), tb.likelihoods.Categorical(), tb.priors.Flat())
    point = tb.fit(model, train, WIDTHS.method, seed=3, callbacks=())
    assert (actual["units"], actual["weights"]) == (units, 27 * units + 10)
    for pair, loss, error in ((train, "loss", "error"), (test, "test_nll", "test_error")):
        scores = tb.evaluate(point, pair).metrics
        assert actual["end"][loss] == pytest.approx(scores["nll"], rel=1e-5)
        assert actual["end"][error] == pytest.approx(1 - scores["accuracy"])
    exact = tb.geometry.spectrum(model, train, point, matrix="ggn", steps=8, probes=2, seed=3)
    for precision, value in zip(WIDTHS.precisions, actual["end"]["effective"], strict=True):
        assert value == pytest.approx(exact.effective_dimension(precision).value, rel=1e-4)


def test_equal_training_loss_is_reached_by_wide_networks_alone(tiny):
    narrow, wide = tiny[1]["widths"]
    assert narrow["matched"] is None
    assert narrow["end"]["error"] > 0
    assert wide["end"]["loss"] < wide["matched"]["loss"] <= WIDTHS.level
    assert wide["matched"]["loss"] > 0.5 * WIDTHS.level


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert sorted(before) == [
        "SAM_0.json", "SGD_0.5.json", "SGD_0.json", "surfaces.json", "width_2.json", "width_24.json",
    ]  # fmt: skip
    assert run.run(TINY, 3, directory) == actual
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_ranks_agree_is_the_correlation_of_ranks():
    assert ranks_agree([1, 2, 3], [1, 10, 100]) == pytest.approx(1)
    assert ranks_agree([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert ranks_agree([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert ranks_agree([1, 1, 1], [1, 2, 3]) == 0
    assert ranks_agree([1], [1]) == 0


# --- the verdict


def made_up(
    *,
    mistakes=0.0,
    losses=(0.01, 0.01, 0.01),
    errors=(0.1, 0.3, 0.6),
    orders=(0, -900, -3000),
    typical=None,
    raw=(0, -800, -2000),
    size=300.0,
):
    """One seed: three networks with poison and one of SAM, and seven widths, of which the last five fit."""

    def network(name, share, place):
        volume = {
            "orders": orders[place],
            "typical": (typical or orders)[place],
            "typical_error": 1.0,
            "radii": [1.0],
            "capped": 0,
        }
        return {
            "name": name, "share": share, "epochs": 9, "loss": losses[place], "error": mistakes, "poison_error": 0.0,
            "test_error": errors[place], "test_nll": 2 * errors[place], "norm": 9.0,
            "basins": {FILTERS: volume, RAW: {**volume, "orders": raw[place]}},
            "curvature": {
                "effective": size if place == 0 else 400.0 + place, "effective_error": 1.0, "trace": 50.0, "top": 9.0,
                "density": [1.0] * len(GRID),
            },
            "coefficient": 50.0, "coefficient_error": 1.0,
        }  # fmt: skip

    def score(loss, error, test, effective):
        return {
            "loss": loss, "error": error, "test_nll": test, "test_error": 0.3, "effective": [effective] * 3,
            "effective_error": [1.0] * 3,
        }  # fmt: skip

    tests = [1.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0]
    lines = [
        {
            "units": 2**k, "weights": 60 * 2**k,
            "end": score(0.5 if k < 2 else 0.01, 0.1 if k < 2 else 0.0, test, 100 * test),
            "matched": None if k < 2 else score(0.01, 0.0, test, 90 * test),
        }
        for k, test in enumerate(tests)
    ]  # fmt: skip
    return {
        "solutions": [network("SGD", share, place) for place, share in enumerate((0.0, 0.5, 2.0))]
        + [network("SAM", 0.0, 0)],
        "surfaces": {
            "shares": [0.0, 2.0],
            "x": [-1, 0, 1],
            "y": [-1, 0, 1],
            "nll": [[[2, 1, 2], [1, 0.01, 1], [2, 1, 3]]] * 2,
        },
        "widths": lines,
        "precision": 1.0,
        "precisions": [1.0, 0.1, 10.0],
    }


def changed(when, key, values, *, places=(2, 3, 4, 5, 6)):
    """A seed with other numbers at the widths that fit."""
    actual = made_up()
    for place, value in zip(places, values, strict=True):
        actual["widths"][place][when][key] = value
    return actual


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for one in result["solutions"]:
            one["test_error"] += rng.normal(0, 1e-4)
            one["loss"] += rng.normal(0, 1e-6)
            for volume in {id(v): v for v in one["basins"].values()}.values():
                volume["orders"] += rng.normal(0, 1e-3)
        for one in result["widths"]:
            one["end"]["test_nll"] += rng.normal(0, 1e-4)
    return results


LESS = [[10 * k] * 3 for k in (1, 2, 3, 4, 5)]  # effective dimensions that rise while the test loss falls


@pytest.mark.parametrize(
    ("result", "outcome", "open_parts"),
    [
        (made_up(), "holds", ()),
        (made_up(mistakes=0.01), "inconclusive", (0,)),
        (made_up(losses=(0.004, 0.01, 0.01)), "inconclusive", (1,)),
        (made_up(errors=(0.1, 0.2, 0.3)), "inconclusive", (2,)),
        (made_up(orders=(0, -500, -900), typical=(0, -500, -2000)), "does not hold", (3,)),
        (made_up(typical=(0, -500, -900)), "does not hold", (4,)),
        (made_up(raw=(0, -3000, -900)), "does not hold", (5,)),
        (made_up(orders=(0, -4000, -3000), typical=(0, -1, -3000)), "does not hold", (6,)),
        (made_up(typical=(0, -4000, -3000)), "does not hold", (7,)),
        (made_up(size=500.0), "does not hold", (8,)),
        (changed("end", "error", [0.1], places=(2,)), "inconclusive", (9,)),
        (changed("end", "test_nll", [4.5, 4.4, 4.3, 4.2, 4.1]), "does not hold", (10,)),
        (changed("end", "effective", LESS), "does not hold", (11,)),
        (changed("end", "test_nll", [1.0, 1.2, 1.4, 1.6, 1.8]), "does not hold", (11, 12)),
        (changed("matched", "effective", LESS), "does not hold", (13,)),
    ],
)
def test_every_part_is_reached(result, outcome, open_parts):
    actual = report.summarise(jitter([result] * 3)).verdict
    assert actual.outcome == outcome
    assert tuple(place for place, part in enumerate(actual.parts) if part.outcome != "holds") == open_parts
    assert len(actual.parts) == 14


def test_one_seed_is_inconclusive():
    actual = report.summarise([made_up()]).verdict
    assert {part.outcome for part in actual.parts} == {"inconclusive"}


def test_tables_hold_means_and_ranks():
    results = [made_up(), made_up(errors=(0.2, 0.3, 0.6), orders=(0, -800, -3200))]
    scores, geometry, by_width, ranks = (table.markdown() for table in report.summarise(results).tables)
    assert "| SGD, 0 % | 9 ± 0 | 0.0100 ± 0.0000 | 0.0000 ± 0.0000 | 0.000 ± 0.000 | 0.150 ± 0.050 |" in scores
    assert "| SGD, 200 % | −3,100 ± 100 | −3,100 ± 100 |" in geometry
    assert "| rank correlation with test accuracy | 1.00 ± 0.00 |" in geometry
    assert "| 64 | 3,840 | 200.0 ± 0.0 | 0.0100 ± 0.0000 | 0.000 ± 0.000 | 2.000 ± 0.000 |" in by_width
    assert (
        "| after the whole training | 1.00 ± 0.00 | 1.00 ± 0.00 | 1.00 ± 0.00 | −1.00 ± 0.00 | 0.00 ± 0.00 |" in ranks
    )


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1])
    assert len(list(tmp_path.glob("figure_*.png"))) == 4
    assert "Huang et al. 2020" in page
