"""Settings of `subspace_inference`, and what it computes for one seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torchbayes as tb
from torchbayes_experiments.files import load_or_compute, rounded
from torchbayes_experiments.shared.classifiers import METRICS as IMAGE_METRICS
from torchbayes_experiments.shared.classifiers import classifier, decay_prior
from torchbayes_experiments.shared.uci_splits import load_split, over_splits

METHODS = SGD_POINT, SWA_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR = "SGD", "SWA", "ESS", "VI", "SWAG"
METRICS = ("nll_gaussian", "rmse", "coverage")  # of regressions
SPACES = RANDOM, PCA, CURVE = "random", "PCA", "curve"
SECOND = 1_000_000  # between the seeds of the two networks that a curve joins


@dataclass(frozen=True, kw_only=True)
class Training:
    """How networks are trained on one of the regressions."""

    decay: float  # λ, weight decay on the scale of the mean loss, for the prior N(0, 1/(λN))
    epochs: int = 1000
    burn_in: float = 0.5  # share of the epochs before the averages begin
    batch_size: int = 100
    temperature: float  # T of the likelihood in the subspace
    # least variance of the noise, in that of the targets. The authors learn one, under weight decay; this one is fixed.
    floor: float
    lr: float = 1e-3  # constant learning rate

    def swag(self) -> tb.SWAG:
        """Return the method; SGD is its last iterate."""
        training = (1, self.epochs, self.batch_size, tb.SGD(self.lr, momentum=0.9), self.lr, self.burn_in)
        return tb.SWAG(*training, per_epoch=1, rank=20)


@dataclass(frozen=True, kw_only=True)
class Regressions:
    """The table of UCI regressions."""

    boston: Training | None = None  # how networks are trained on this set; None to leave it out. The others likewise.
    concrete: Training | None = None
    energy: Training | None = None
    naval: Training | None = None
    yacht: Training | None = None
    elliptical: tb.EllipticalSlice  # sampling in the subspace
    variational: tb.VI  # inference in the subspace, on all rows at every step
    splits: int = 20  # number of standard splits of each set, from the first on
    hidden: int = 50
    rank: int = 5  # R, directions of the subspace
    scale: float = 1.0  # s, standard deviation of the coordinates
    draws: int = 200  # functions drawn of VI and SWAG

    @property
    def trainings(self) -> dict[str, Training]:
        """The sets, without `uci_`, with how networks are trained on them."""
        named = {name: getattr(self, name) for name in ("boston", "concrete", "energy", "naval", "yacht")}
        return {name: training for name, training in named.items() if training is not None}

    @property
    def sets(self) -> tuple[str, ...]:
        return tuple(self.trainings)


@dataclass(frozen=True)
class Sampling:
    """Elliptical slice sampling in the three subspaces."""

    method: tb.EllipticalSlice
    temperature: float  # T of the likelihood in the random and the PCA subspace
    # s, standard deviation of their coordinates; a random direction is as long as the first two of PCA are on average
    scale: float
    curve_temperature: float  # T in the plane of the curve
    curve_scale: float = 1.0  # s there, where the coordinates have the authors' units (`of_curve`)
    rank: int = 5  # R, directions of the random and the PCA subspace

    def temperature_of(self, space: str) -> float:
        return self.curve_temperature if space == CURVE else self.temperature


@dataclass(frozen=True, kw_only=True)
class Toy:
    """The regression in one dimension."""

    swag: tb.SWAG  # how two networks are trained, one after the other; subspaces go through the average of the first
    curve: tb.Curve
    sampling: Sampling
    noise: float = 0.05**0.5  # standard deviation of the noise of the targets
    hidden: tuple[int, ...] = (200, 50, 50, 50)
    data: str = "toy_drbayes"
    ends: tuple[float, float] = (-10.0, 10.0)  # of the inputs at which predictions are made, at `places` of them
    # ends of the inputs between which there are data
    clusters: tuple[tuple[float, float], ...] = ((-7.2, -4.8), (-1.2, 1.2), (4.8, 7.2))
    places: int = 201


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images."""

    swag: tb.SWAG
    curve: tb.Curve
    sampling: Sampling
    prior_scale: float  # standard deviation of every weight's normal prior
    data: str = "fashion_mnist"
    network: str = "lenet"
    channels: tuple[int, int] = (10, 20)  # filters of the convolutions of a LeNet, with `hidden` units after them
    hidden: int = 100
    train_size: int | None = 5000  # number of training images, drawn by the seed; None for all
    test_rows: int | None = None  # number of test images, the first ones; None for all
    draws: int = 30  # functions drawn of SWAG


@dataclass(frozen=True, kw_only=True)
class SubspaceRecipe:
    """The three experiments; None to leave one out. So many seeds run the UCI table, whose repeats are the splits."""

    regressions: Regressions | None
    toy: Toy | None
    images: Images | None
    regression_seeds: int = 1


_TOY_SGD, _IMAGE_SGD = tb.SGD(5e-4, momentum=0.95), tb.SGD(0.05, momentum=0.9)
_BOSTON = Training(decay=0.1, epochs=300, burn_in=2 / 3, batch_size=30, temperature=1.0, floor=0.02)
_CONCRETE = Training(decay=0.01, temperature=10.0, floor=0.05)
_ENERGY = Training(decay=0.1, temperature=1.0, floor=0.002)
_YACHT = Training(decay=1e-3, batch_size=30, temperature=1.0, floor=0.0005)
_REGRESSIONS = Regressions(
    boston=_BOSTON,
    concrete=_CONCRETE,
    energy=_ENERGY,
    yacht=_YACHT,
    elliptical=tb.EllipticalSlice(4, 100, 50, plan="native"),
    variational=tb.VI(
        epochs=200,
        batch_size=100_000,
        optimizer=tb.Adam(0.1),
        estimator="weights",
        draws=4,
        kl_weight=1.0,
        plan="native",
    ),
)
_TOY = Toy(
    swag=tb.SWAG(1, 3000, 50, _TOY_SGD, _TOY_SGD.lr, 2 / 3, per_epoch=1, rank=20),
    curve=tb.Curve(epochs=3000, batch_size=50, optimizer=_TOY_SGD),
    sampling=Sampling(tb.EllipticalSlice(4, 400, 100, plan="native"), 1.5, 20.0, 0.75),
)
SMALL = SubspaceRecipe(
    regressions=_REGRESSIONS,
    toy=_TOY,
    images=Images(
        swag=tb.SWAG(1, 24, 100, _IMAGE_SGD, 0.02, 0.5, per_epoch=4, rank=20, plan="native"),
        curve=tb.Curve(epochs=12, batch_size=100, optimizer=_IMAGE_SGD, plan="native"),
        sampling=Sampling(tb.EllipticalSlice(2, 35, 5, plan="native"), 1000.0, 4.0, 1000.0),
        prior_scale=0.4,
        test_rows=5000,
    ),
)
PAPER = SubspaceRecipe(
    regressions=replace(
        _REGRESSIONS,
        boston=replace(_BOSTON, temperature=0.1),
        concrete=replace(_CONCRETE, temperature=1e4),
        energy=replace(_ENERGY, temperature=691 / 20),
        naval=Training(decay=1e-4, temperature=10741 / 20, floor=1e-4, lr=5e-4),
        yacht=replace(_YACHT, temperature=277 / 20),
        elliptical=tb.EllipticalSlice(4, 100, 50, plan="vmap"),
        variational=replace(_REGRESSIONS.variational, epochs=1000, optimizer=tb.Adam(0.03), plan="vmap"),
        rank=20,
    ),
    toy=replace(
        _TOY,
        curve=tb.Curve(epochs=6000, batch_size=50, optimizer=_TOY_SGD),
        sampling=Sampling(tb.EllipticalSlice(4, 1000, 100, plan="vmap"), 1.5, 5.0, 0.75),
    ),
    images=Images(
        swag=tb.SWAG(1, 300, 128, tb.SGD(0.1, momentum=0.9), 0.05, 161 / 300, per_epoch=1, rank=20, plan="loop"),
        curve=tb.Curve(epochs=600, batch_size=128, optimizer=_IMAGE_SGD, plan="loop"),
        sampling=Sampling(tb.EllipticalSlice(1, 40, 10, plan="loop"), 5000.0, 2.0, 1e4),
        prior_scale=(3e-4 * 50_000) ** -0.5,
        data="cifar10",
        network="resnet20_frn",
        train_size=None,
    ),
    regression_seeds=3,
)


def run(recipe: SubspaceRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return "images": `image_scores`; "toy": `bands`; and of the first seeds "regressions": set -> `split_scores`."""
    results: dict[str, Any] = {}
    if recipe.images is not None:
        results["images"] = image_scores(recipe.images, seed=seed, home=directory / "images")
    if recipe.toy is not None:
        results["toy"] = load_or_compute(directory / "toy.json", bands, recipe.toy, seed=seed)
    if recipe.regressions is not None and seed < recipe.regression_seeds:
        scored = over_splits(split_scores, recipe.regressions, seed=seed, directory=directory / "regressions")
        results["regressions"] = scored
    return results


def split_scores(recipe: Regressions, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score every method on one split: method -> metric -> value, in the target's units."""
    (data, scale), training = load_split(name, split), recipe.trainings[name]
    network = tb.networks.mlp(data.input_shape, 2, hidden=(recipe.hidden,))
    prior = decay_prior(training.decay, len(data.train.inputs))
    noise = tb.likelihoods.HeteroscedasticGaussian(training.floor)
    model, tempered = (
        tb.Model(network, noise, prior, temperature=temperature, tempering="likelihood")
        for temperature in (1.0, training.temperature)
    )
    last: list[torch.Tensor] = []

    def keep(event: tb.Event) -> None:
        last[:] = [event.state.trajectory.weights_MD.clone()]

    swag = tb.fit(model, data.train, training.swag(), seed=seed, callbacks=[keep])
    space = tb.Subspace.of(swag, rank=recipe.rank, prior_scale=recipe.scale, model=tempered)
    within = partial(tb.fit, tempered, data.train, space=space, seed=seed, callbacks=())
    posteriors = {
        SGD_POINT: (tb.Point(model, last[0]), None),
        SWA_POINT: (tb.Point(model, swag.mean_MD), None),
        ESS: (within(recipe.elliptical), None),
        VARIATIONAL: (within(recipe.variational), recipe.draws),
        SWAG_POSTERIOR: (swag, recipe.draws),
    }
    evaluate = partial(tb.evaluate, data=data.test, seed=seed, target_scale=scale)
    scores = {method: evaluate(posterior, draws=draws).metrics for method, (posterior, draws) in posteriors.items()}
    return {method: {metric: metrics[metric] for metric in METRICS} for method, metrics in scores.items()}


@dataclass(frozen=True)
class Trained:
    """What subspaces are laid through: moments of a trajectory, and a curve from its average to that of another."""

    swag: tb.Gaussian
    curve: tb.CurvePosterior

    @classmethod
    def of(cls, recipe: Toy | Images, model: tb.Model, rows: Any, *, seed: int, home: Path | None = None) -> Trained:
        def fit(method: Any, name: str, *, shift: int = 0, start: tb.Point | None = None) -> Any:
            fit_from = partial(tb.fit, model, rows, method, start=start, seed=seed + shift, callbacks=())
            return fit_from() if home is None else fit_from(directory=home / name, resume=True)

        first, second = fit(recipe.swag, "first"), fit(recipe.swag, "second", shift=SECOND)
        ends = tb.Point(model, torch.cat([first.mean_MD, second.mean_MD]))
        return cls(first, fit(recipe.curve, "connected", start=ends))

    def space(self, name: str, model: tb.Model, sampling: Sampling, *, seed: int) -> tb.Subspace:
        """Return a subspace; s means the same in random directions, as long as the first two components on average."""
        if name == CURVE:
            return of_curve(self.curve, model, scale=sampling.curve_scale)
        components = tb.Subspace.of(self.swag, rank=sampling.rank, prior_scale=sampling.scale, model=model)
        if name == PCA:
            return components
        scale = float(components.basis_RD[:2].norm(dim=1).mean()) * sampling.scale
        return tb.Subspace.random(model, components.origin_D, sampling.rank, seed=seed, prior_scale=scale)


def of_curve(curve: tb.CurvePosterior, model: tb.Model, *, scale: float) -> tb.Subspace:
    r"""Return the plane through the ends of a curve and its middle, of which their mean is the origin.

    With v the distance of the middle from the line through the ends, the authors' directions are (w₂ − w₁)/√3 and one
    of length v/1.5 orthogonal to it. Where the middle lies over that of the line, these are 2/√3 standard deviations
    of the three points, which are |w₂ − w₁|/2 and v/√3, divisor 2: the lengths that `Subspace.spanned` gives.
    """
    points_3D = curve.weights(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))[:, 0]
    return tb.Subspace.spanned(model, points_3D, 2, prior_scale=scale * 2 / math.sqrt(3))


def bands(recipe: Toy, *, seed: int) -> dict[str, Any]:
    """Return the rows `x`, `y`, nine tenths of the set; the inputs `grid`; and `spaces`: the bands of each subspace.

    These are `mean` and `std` of the functions along the grid, a few `draws`, the mean of `std` at the "data", in the
    "gaps" and "outside", and `rmse` at the rows.
    """
    data, sampling = tb.data.load(recipe.data, split=seed % 20), recipe.sampling
    assert data.target_standardise is not None
    x, y = data.standardise.inverse(data.train.inputs), data.target_standardise.inverse(data.train.targets).float()
    rows, grid = (_features(x), y), torch.linspace(*recipe.ends, recipe.places).unsqueeze(1)

    def model(temperature: float = 1.0) -> tb.Model:
        network, noise = tb.networks.mlp((2,), 1, hidden=recipe.hidden), tb.likelihoods.Gaussian(recipe.noise)
        return tb.Model(network, noise, tb.priors.Flat(), temperature=temperature, tempering="likelihood")

    trained, spaces = Trained.of(recipe, model(), rows, seed=seed), {}
    for name in SPACES:
        tempered = model(sampling.temperature_of(name))
        space = trained.space(name, tempered, sampling, seed=seed)
        posterior = tb.fit(tempered, rows, sampling.method, space=space, seed=seed, callbacks=())
        along, at = tb.predict(posterior, _features(grid)), tb.predict(posterior, rows[0])
        std_G, draws_SG = along.epistemic.flatten().sqrt(), along.outputs_SBK[..., 0]
        spaces[name] = {
            "mean": rounded(along.mean),
            "std": rounded(std_G),
            "draws": [rounded(draw) for draw in draws_SG[:: max(1, len(draws_SG) // 12)][:12]],
            "rmse": float((at.mean - y).square().mean().sqrt()),
            **{region: float(std_G[inside].mean()) for region, inside in _regions(grid.flatten(), recipe).items()},
        }
    return {"x": rounded(x), "y": rounded(y), "grid": rounded(grid), "spaces": spaces}


def _features(x: torch.Tensor) -> torch.Tensor:
    """Return what the network sees of inputs (N, 1): x/2 and (x/2)², (N, 2)."""
    return torch.cat([x / 2, (x / 2).square()], dim=1)


def _regions(grid_G: torch.Tensor, recipe: Toy) -> dict[str, torch.Tensor]:
    """Return which inputs lie in a cluster of the data, between two clusters, and beyond all, bool (G,) each."""
    in_cluster_G = torch.stack([(grid_G >= low) & (grid_G <= high) for low, high in recipe.clusters]).any(0)
    beyond_G = (grid_G < recipe.clusters[0][0]) | (grid_G > recipe.clusters[-1][1])
    return {"data": in_cluster_G, "gaps": ~in_cluster_G & ~beyond_G, "outside": beyond_G}


def image_scores(recipe: Images, *, seed: int, home: Path) -> dict[str, dict[str, float]]:
    """Return "SWA", "SWAG" or subspace -> metric of the test images -> value."""
    data, sampling = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed), recipe.sampling
    test = tb.data.Pair(*(rows[: recipe.test_rows] for rows in data.test))
    settings = {"channels": recipe.channels, "hidden": recipe.hidden} if recipe.network == "lenet" else {}

    prior = tb.priors.Normal(recipe.prior_scale)
    model = partial(
        classifier,
        recipe.network,
        data.input_shape,
        data.num_classes,
        prior=prior,
        settings=settings,
        tempering="likelihood",
    )
    trained = Trained.of(recipe, model(), data.train, seed=seed, home=home)

    def scored(posterior: tb.Posterior, draws: int | None = None) -> dict[str, float]:
        metrics = tb.evaluate(posterior, test, draws=draws, seed=seed).metrics
        return {metric: metrics[metric] for metric in IMAGE_METRICS}

    def sampled(name: str) -> dict[str, float]:
        tempered = model(temperature=sampling.temperature_of(name))
        fit = partial(tb.fit, tempered, data.train, sampling.method, seed=seed, callbacks=())
        space = trained.space(name, tempered, sampling, seed=seed)
        return scored(fit(space=space, directory=home / name, resume=True))

    scores = {
        SWA_POINT: partial(scored, tb.Point(trained.swag.model, trained.swag.mean_MD)),
        SWAG_POSTERIOR: partial(scored, trained.swag, recipe.draws),
        **{name: partial(sampled, name) for name in SPACES},
    }
    files = {SWA_POINT: "swa", SWAG_POSTERIOR: "swag"}
    return {name: load_or_compute(home / f"{files.get(name, name)}.json", score) for name, score in scores.items()}
