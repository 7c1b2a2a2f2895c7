"""Subspace inference: tiny runs on made-up files against direct computation, and every part of the verdict."""

import gzip
import json
import math
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import torchbayes as tb
from tests.experiments.shared.made_up_uci import small_sets
from tests.experiments.shared.pages import page_of
from torchbayes.data import load
from torchbayes.methods.schedules import Constant
from torchbayes_experiments.basins.subspace_inference import EXPERIMENT, report, run
from torchbayes_experiments.shared.classifiers import decay_prior

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")

assert run.SMALL.regressions is not None
assert run.SMALL.toy is not None
assert run.SMALL.images is not None
SLICE = tb.EllipticalSlice(2, 6, 2, plan="vmap")
TRAINING = run.Training(decay=0.01, epochs=8, burn_in=0.5, batch_size=20, temperature=5.0, floor=0.02, lr=0.01)
UCI = replace(
    run.SMALL.regressions, boston=TRAINING, yacht=None, concrete=None, energy=None, elliptical=SLICE,
    variational=replace(run.SMALL.regressions.variational, epochs=3), splits=2, hidden=6, rank=2, draws=8,
)  # fmt: skip
SAMPLING = run.Sampling(method=SLICE, temperature=3.0, scale=2.0, curve_temperature=7.0, curve_scale=0.5, rank=2)
SHORT: dict[str, Any] = {"epochs": 4, "batch_size": 30, "optimizer": tb.SGD(0.01), "plan": "loop"}
SWAG = tb.SWAG(averaging_lr=0.01, burn_in=0.25, per_epoch=1, rank=3, **SHORT)
TOY = replace(run.SMALL.toy, swag=SWAG, curve=tb.Curve(**SHORT), sampling=SAMPLING, hidden=(8,), places=21)
IMAGES = replace(
    run.SMALL.images, swag=SWAG, curve=tb.Curve(**SHORT), sampling=SAMPLING, data="mnist", channels=(2, 3),
    hidden=5, train_size=60, test_rows=25, draws=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with UCI sets, the curve, and digits in the files of MNIST, all made up."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        yield from _filled(folder, patch)


def _filled(folder, patch):
    (folder / "toy").mkdir()
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(low, high, 25) for low, high in TOY.clusters])
    np.savez(
        folder / "toy" / "drbayes_synthetic_regression.npz",
        data=np.stack([x, np.sin(x) + 0.05 * rng.normal(size=75)], axis=1),
    )
    (folder / "mnist").mkdir()
    pixels, labels = load_digits(return_X_y=True)
    large = np.pad(np.kron(pixels.reshape(-1, 8, 8), np.ones((1, 3, 3))) * 255 / 16, ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(0, 200)), ("t10k", slice(200, 260))):
        for kind, array in (("images-idx3", large[rows]), ("labels-idx1", labels[rows])):
            header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            path = folder / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))
    yield from small_sets(folder, patch, "uci_boston", "uci_yacht")


TINY = run.SubspaceRecipe(regressions=UCI, toy=TOY, images=IMAGES)


@pytest.fixture(scope="module")
def tiny(root, tmp_path_factory):
    """The directory and the numbers of a seed whose splits are not run, as they are the repeats of one seed."""
    directory = tmp_path_factory.mktemp("subspace")
    return directory, EXPERIMENT.run(TINY, 3, directory)


# --- subspaces


def a_curve(points_3D):
    network = torch.nn.Linear(4, 1).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    return tb.CurvePosterior(model, points_3D.unsqueeze(0))


def test_the_plane_of_a_curve_has_the_authors_units():
    ends = torch.zeros(3, 5).double()
    ends[0, 0], ends[2, 0], ends[1, 3] = -1.5, 1.5, 4.0  # the middle of the curve is at half the height of the bend
    ends[:, 4] = 1.0
    curve = a_curve(ends)
    space = run.of_curve(curve, curve.model, scale=2.0)
    middle = torch.tensor([0.0, 0.0, 0.0, 2.0 / 3, 1.0]).double()
    torch.testing.assert_close(space.origin_D, middle)
    axes_RD = space.lift(torch.eye(2).double()) - space.lift(torch.zeros(2).double())
    wanted = torch.diag(torch.tensor([2 * 3.0 / math.sqrt(3), 0, 0, 2 * 2.0 / 1.5, 0]).double() ** 2)
    torch.testing.assert_close(axes_RD.T @ axes_RD, wanted)
    along = curve.weights(torch.linspace(0, 1, 7))[:, 0]
    torch.testing.assert_close(space.lift(space.coordinates(along)), along)


def test_random_directions_are_as_long_as_the_first_two_components():
    factor = torch.randn(1, 4, 501, generator=torch.Generator().manual_seed(0)).double()
    model = tb.Model(torch.nn.Linear(500, 1).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Flat())
    covariance = tb.linalg.LowRankPlusDiagonal(torch.full((1, 501), 1e-3).double(), factor)
    swag = tb.Gaussian(model, torch.ones(1, 501).double(), covariance)
    trained, wanted = run.Trained(swag, None), torch.linalg.svdvals(factor[0])  # type: ignore[arg-type]
    for name, length in (("PCA", wanted[:2]), ("random", wanted[:2].mean().expand(2))):
        space = trained.space(name, model, SAMPLING, seed=1)
        axes_RD = space.lift(torch.eye(2).double()) - space.lift(torch.zeros(2).double())
        torch.testing.assert_close(axes_RD.norm(dim=1), 2.0 * length, rtol=1e-6 if name == "PCA" else 0.15, atol=0)
        torch.testing.assert_close(space.lift(torch.zeros(2).double()), torch.ones(501).double())


# --- regressions


def test_scores_of_a_split_are_those_of_its_posteriors(root):
    actual = run.split_scores(UCI, "boston", 1, seed=5)
    data = load("uci_boston", split=1)
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)
    network, noise = tb.networks.mlp((3,), 2, hidden=(6,)), tb.likelihoods.HeteroscedasticGaussian(0.02)
    prior = tb.priors.Normal((0.01 * 54) ** -0.5)
    model = tb.Model(network, noise, prior)
    descent = tb.MAP(1, 8, 20, tb.SGD(0.01, momentum=0.9), Constant())
    sgd = tb.fit(model, data.train, descent, seed=5, callbacks=())
    swag: Any = tb.fit(model, data.train, TRAINING.swag(), seed=5, callbacks=())
    tempered = tb.Model(network, noise, prior, temperature=5.0, tempering="likelihood")
    space = tb.Subspace.of(swag, rank=2, prior_scale=1.0, model=tempered)
    ess = tb.fit(tempered, data.train, SLICE, space=space, seed=5, callbacks=())
    vi = tb.fit(tempered, data.train, UCI.variational, space=space, seed=5, callbacks=())
    cases = {"SGD": (sgd, None), "SWA": (tb.Point(model, swag.mean_MD), None), "ESS": (ess, None), "VI": (vi, 8)}
    for name, (posterior, draws) in {**cases, "SWAG": (swag, 8)}.items():
        outputs = tb.predict(posterior, data.test.inputs, draws=draws, seed=5).outputs_SBK.double()
        means, variances = outputs[..., :1], torch.nn.functional.softplus(outputs[..., 1:]) + 0.02
        mean = means.mean(0)
        std = (variances.mean(0) + means.var(0, correction=0)).sqrt()
        nll = -torch.distributions.Normal(mean, std).log_prob(data.test.targets).mean() + math.log(scale)
        rmse = scale * (mean - data.test.targets).square().mean().sqrt()
        assert actual[name]["nll_gaussian"] == pytest.approx(float(nll), rel=1e-4)
        assert actual[name]["rmse"] == pytest.approx(float(rmse), rel=1e-4)
        assert 0 <= actual[name]["coverage"] <= 1
    assert tuple(actual) == run.METHODS


# --- bands and images


def test_bands_are_those_of_the_functions(tiny):
    actual = tiny[1]["toy"]
    assert len(actual["x"]) == len(actual["y"]) == 68
    data = load("toy_drbayes", split=3)
    assert data.target_standardise is not None
    x, y = data.standardise.inverse(data.train.inputs), data.target_standardise.inverse(data.train.targets).float()
    rows, network = (torch.cat([x / 2, (x / 2) ** 2], 1), y), tb.networks.mlp((2,), 1, hidden=(8,))
    models = [
        tb.Model(network, tb.likelihoods.Gaussian(0.05**0.5), tb.priors.Flat(), temperature=t, tempering="likelihood")
        for t in (1.0, 7.0)
    ]
    first, second = (tb.fit(models[0], rows, SWAG, seed=seed, callbacks=()) for seed in (3, 1_000_003))
    means = torch.cat([first.mean_MD, second.mean_MD])  # type: ignore[attr-defined]
    curve: Any = tb.fit(models[0], rows, TOY.curve, start=tb.Point(models[0], means), seed=3, callbacks=())
    space = run.of_curve(curve, models[1], scale=0.5)
    ess = tb.fit(models[1], rows, SLICE, space=space, seed=3, callbacks=())
    grid = torch.linspace(-10, 10, 21).unsqueeze(1)
    drawn = tb.predict(ess, torch.cat([grid / 2, (grid / 2) ** 2], 1)).outputs_SBK[..., 0]
    std, own = drawn.std(0, correction=0), actual["spaces"]["curve"]
    np.testing.assert_allclose(own["std"], std, atol=2e-4)
    np.testing.assert_allclose(own["mean"], drawn.mean(0), atol=2e-4)
    assert own["outside"] == pytest.approx(float(std[[0, 1, 2, 18, 19, 20]].mean()), rel=1e-3)  # 8 and beyond
    assert own["gaps"] == pytest.approx(float(std[[6, 7, 8, 12, 13, 14]].mean()), rel=1e-3)  # 2, 3 and 4
    assert own["data"] == pytest.approx(float(std[[3, 4, 5, 9, 10, 11, 15, 16, 17]].mean()), rel=1e-3)
    assert tuple(actual["spaces"]) == run.SPACES


def test_scores_of_images_are_those_of_the_posteriors_and_are_read_again(tiny, tmp_path):
    home, actual = shutil.copytree(tiny[0] / "images", tmp_path / "images"), tiny[1]["images"]
    data = load("mnist", train_size=60, seed=3)
    network = tb.networks.build("lenet", (1, 28, 28), 10, channels=(2, 3), hidden=5)
    settings: dict[str, Any] = {"likelihood": tb.likelihoods.Categorical(), "prior": tb.priors.Normal(0.4)}
    model = tb.Model(network, **settings)
    tempered = tb.Model(network, **settings, temperature=3.0, tempering="likelihood")
    swag: Any = tb.fit(model, data.train, SWAG, seed=3, callbacks=())
    space = tb.Subspace.of(swag, rank=2, prior_scale=2.0, model=tempered)
    ess = tb.fit(tempered, data.train, SLICE, space=space, seed=3, callbacks=())
    for name, posterior in (("SWA", tb.Point(model, swag.mean_MD)), ("PCA", ess)):
        outputs = tb.predict(posterior, data.test.inputs[:25]).outputs_SBK.double()
        probs = outputs.softmax(-1).mean(0)
        nll = -probs[torch.arange(25), data.test.targets[:25]].log().mean()
        assert actual[name]["nll"] == pytest.approx(float(nll), rel=1e-4)
    assert tuple(actual) == ("SWA", "SWAG", *run.SPACES)
    (home / "curve.json").write_text(json.dumps({"nll": -7.0}))
    assert run.image_scores(IMAGES, seed=3, home=home) == {**actual, "curve": {"nll": -7.0}}


# --- verdicts


def table(seed=0, noise=0.02, **shifts):
    """Scores of boston and yacht: NLLs around the published ones, and `shifts` off these in SET_METHOD."""
    rng, actual = np.random.default_rng(seed), {}
    for name in ("boston", "yacht"):
        of_splits = rng.normal(0, 0.03, 20)
        own = {**report.LOG_LIKELIHOOD[name], "SWA": (-1.0, 0.0)}
        actual[name] = {
            method: {
                "nll_gaussian": list(
                    -own[method][0] + shifts.get(f"{name}_{method}", 0.0) + of_splits + noise * rng.normal(size=20)
                ),
                "rmse": list(rng.normal(3, 0.1, 20)),
                "coverage": list(rng.uniform(0.9, 1.0, 20)),
            }
            for method in run.METHODS
        }
    return actual


def bands_of(seed=0, **shifts):
    """Bands three times as wide in the gaps as at the data, the random one half of that; `shifts` are factors."""
    rng, names = np.random.default_rng(seed), run.SPACES
    usual = {"data": 0.1, "gaps": 0.3, "outside": 0.5}
    made: dict[str, Any] = {
        name: {
            where: usual[where]
            * shifts.get(f"{name}_{where}", {"random_gaps": 0.5}.get(f"{name}_{where}", 1.0))
            * rng.uniform(0.98, 1.02)
            for where in usual
        }
        | {"rmse": 0.1, "mean": [0.0, 0.0], "std": [0.1, 0.1], "draws": [[0.0, 0.1]]}
        for name in names
    }
    return {"x": [0.0, 1.0], "y": [0.0, 1.0], "grid": [0.0, 1.0], "spaces": made}


def image_set(seed=0, **shifts):
    rng = np.random.default_rng(seed)
    base = {"SWA": 0.5, "SWAG": 0.4, "random": 0.47, "PCA": 0.44, "curve": 0.41}
    hard = rng.normal(0, 0.05)
    return {
        name: {"nll": nll + shifts.get(name, 0.0) + hard + 0.002 * rng.normal(), "accuracy": 0.85, "ece": 0.05}
        for name, nll in base.items()
    }


def of_seeds(part, make, **shifts):
    return [{part: make(seed, **shifts)} for seed in range(3)]


@pytest.mark.parametrize(
    ("results", "outcome", "held"),
    [
        ([{"regressions": table()}], "holds", 10),
        ([{"regressions": table(boston_ESS=0.11)}], "does not hold", 9),
        ([{"regressions": table(yacht_VI=0.2)}], "does not hold", 8),
        ([{"regressions": table(boston_SGD=-0.04, yacht_SGD=-0.04)}], "does not hold", 9),
        ([{"regressions": table(boston_SGD=1.0, boston_ESS=0.9, boston_VI=0.9)}], "does not hold", 8),
        ([{"regressions": table(noise=2.0)}], "inconclusive", 0),
        (of_seeds("toy", bands_of), "holds", 6),
        (of_seeds("toy", bands_of, PCA_gaps=0.34), "does not hold", 4),  # also less than the random one's
        (of_seeds("toy", bands_of, curve_outside=0.2), "does not hold", 5),
        (of_seeds("toy", bands_of, random_gaps=3.0), "does not hold", 4),
        (of_seeds("toy", bands_of)[:1], "inconclusive", 0),
        (of_seeds("images", image_set), "holds", 6),
        (of_seeds("images", image_set, random=-0.05), "does not hold", 5),
        (of_seeds("images", image_set, PCA=-0.05), "does not hold", 5),
        (of_seeds("images", image_set, random=0.1), "does not hold", 5),
        (of_seeds("images", image_set, SWA=-0.2), "does not hold", 3),
    ],
)
def test_every_verdict_is_reached(results, outcome, held):
    actual = report.summarise(results).verdict
    assert actual.outcome == outcome
    assert sum(part.outcome == "holds" for part in actual.parts) == held


def test_a_bad_network_makes_images_inconclusive():
    results = of_seeds("images", image_set, random=-0.05)
    for result in results:
        result["images"]["SWA"]["accuracy"] = 0.7
    assert report.summarise(results).verdict.outcome == "inconclusive"


def test_tables_hold_what_was_found_and_what_was_published():
    made = {"regressions": table(), "toy": bands_of(), "images": image_set()}
    tables = {of.columns[0]: of for of in report.summarise([made]).tables}
    here, published = tables["test log likelihood"].rows[:2]
    own = -np.array(made["regressions"]["boston"]["ESS"]["nll_gaussian"])
    assert here[4] == pytest.approx((own.mean(), own.std(ddof=1) / math.sqrt(20)))
    assert published == [
        "boston",
        "published",
        (-2.752, 0.132),
        None,
        (-2.719, 0.132),
        (-2.716, 0.133),
        (-2.761, 0.132),
    ]
    less = np.mean(
        [
            np.array(made["regressions"][name]["SGD"]["nll_gaussian"]) - made["regressions"][name]["VI"]["nll_gaussian"]
            for name in ("boston", "yacht")
        ],
        axis=0,
    )
    (row,) = (r for r in tables["set"].rows if r[:2] == ["mean of the sets", "VI − SGD"])
    assert row[2] == pytest.approx(less.mean())
    low, middle, high = (float(str(cell)) for cell in (row[3], row[2], row[4]))
    assert low < middle < high
    assert tables["images"].rows[-1][:2] == ["ESS, curve", made["images"]["curve"]["nll"]]


def test_end_to_end(tiny, tmp_path, monkeypatch):
    directory, second = tiny
    with monkeypatch.context() as patch:  # bands and images of the first seed are made as those of others
        patch.setattr(run, "image_scores", lambda *_, **__: second["images"])
        patch.setattr(run, "bands", lambda *_, **__: second["toy"])
        first = EXPERIMENT.run(TINY, 0, tmp_path / "first")
    assert EXPERIMENT.run(TINY, 3, directory) == second
    page = page_of(EXPERIMENT, TINY, tmp_path, first, second)
    assert "boston: log likelihood of ESS at most 0.05 below that of SGD" in page
    assert "bands: spread at the data over that in the gaps, curve" in page
    assert "images: NLL of curve below that of PCA" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3
    assert tuple(first) == ("images", "toy", "regressions")
    assert tuple(second) == ("images", "toy")  # the splits are the repeats of one seed


def test_the_paper_recipe_has_the_papers_settings():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert small.regressions.sets == ("boston", "concrete", "energy", "yacht")
    assert set(paper.regressions.sets) == set(report.LOG_LIKELIHOOD)
    for name, training in small.regressions.trainings.items():
        assert replace(paper.regressions.trainings[name], temperature=training.temperature) == training
    boston = decay_prior(paper.regressions.trainings["boston"].decay, 455)
    assert boston.scale == pytest.approx((0.1 * 455) ** -0.5)
