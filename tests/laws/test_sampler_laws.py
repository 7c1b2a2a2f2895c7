"""Laws that every sampler keeps: a chain is a function of its seed, however it is run, interrupted and stored."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.laws.cases import (
    assert_same_tensors,
    losses,
    made,
    model_of,
    rows_of,
    unjudged,
    with_variants_as_studies,
)
from tests.laws.test_method_laws import keep_every, untouched
from torchbayes.catalogue.methods import classes, small
from torchbayes.driver.checkpoint import flatten
from torchbayes.methods.sampler import Sampler, retained_steps
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.store import DrawFile
from torchbayes.randomness.seeds import member_seeds

Make = Callable[..., Sampler]


def _sampler(kind: type[Sampler], **own: Any) -> Make:
    def make(**settings: Any) -> Sampler:
        return kind(**{"chains": 2, "steps": 12, "burn_in": 4, "thin": 2, "plan": "loop", **own, **settings})

    return make


SAMPLERS: dict[str, Make] = {
    "random_walk": _sampler(tb.RandomWalk),
    "random_walk_dense": _sampler(tb.RandomWalk, mass="dense", burn_in=20, steps=24),
    "elliptical": _sampler(tb.EllipticalSlice),
    "elliptical_wide": _sampler(tb.EllipticalSlice, scale=0.7),
    "mala": _sampler(tb.MALA),
    "mala_prior": _sampler(tb.MALA, mass="prior"),
    "mala_diagonal": _sampler(tb.MALA, mass="diagonal", burn_in=20, steps=24),
    "mala_layer": _sampler(tb.MALA, mass="layer", burn_in=20, steps=24),
    "mala_dense": _sampler(tb.MALA, mass="dense", burn_in=20, steps=24),
    "hmc": _sampler(tb.HMC, jitter=0.2, trajectory=0.3),
    "hmc_fixed": _sampler(tb.HMC, step_size=0.05, trajectory=0.2, accept_in_burn_in=True),
    "hmc_diagonal": _sampler(tb.HMC, mass="diagonal", trajectory=0.3, burn_in=20, steps=24),
    "hmc_layer": _sampler(tb.HMC, mass="layer", trajectory=0.3, burn_in=20, steps=24),
    "hmc_dense": _sampler(tb.HMC, mass="dense", trajectory=0.3, burn_in=20, steps=24),
    "nuts": _sampler(tb.NUTS, max_doublings=2),
    "nuts_dense": _sampler(tb.NUTS, mass="dense", max_doublings=2, burn_in=20, steps=24),
    "mclmc": _sampler(tb.MCLMC, burn_in=36, steps=42),  # long enough for a mass, and for a path of which L is found
    "mclmc_dense": _sampler(tb.MCLMC, mass="dense", integrator="leapfrog", burn_in=36, steps=42),
    "mams": _sampler(tb.MAMS, burn_in=45, steps=49, max_leapfrogs=6),
    "underdamped": _sampler(tb.UnderdampedLangevin, burn_in=36, steps=42),
    "sgld": _sampler(tb.SGLD, step_size=1e-3, batch_size=6, schedule=tb.Decay(10.0)),
    "sgld_preconditioned": _sampler(tb.SGLD, step_size=1e-3, batch_size=6, preconditioned=True),
    "sghmc": _sampler(tb.SGHMC, step_size=1e-3, batch_size=6),
    "sghmc_friction": _sampler(tb.SGHMC, step_size=1e-3, batch_size=6, form="friction", noise_estimate=0.02),
    "sghmc_cyclical": _sampler(tb.SGHMC, step_size=1e-3, batch_size=6, schedule=tb.Cycles(6, 0.5, 2), burn_in=0),
    "sghmc_preconditioned": _sampler(tb.SGHMC, step_size=1e-3, batch_size=6, preconditioned=True),
    "sgnht": _sampler(tb.SGNHT, step_size=1e-3, batch_size=6),
    "smile": _sampler(tb.SMILE, batch_size=6, burn_in=44, steps=50),  # long enough for a length
    "smile_preconditioned": _sampler(tb.SMILE, step_size=0.05, batch_size=6, preconditioned=True),
}
# a sampler of the catalogue that no line above makes keeps the laws by its defaults and what its entry calls small
SAMPLERS |= {
    name: _sampler(kind, **small(kind))
    for name, kind in classes().items()
    if kind().needs.chain and kind not in {type(make()) for make in SAMPLERS.values()}
}
# what these do in the laws of a whole chain another does by the same motion, mass or schedule
VARIANTS = (
    *("random_walk", "elliptical_wide", "mala_prior", "mala_diagonal", "mala_dense", "hmc_fixed", "hmc_layer"),
    *("mclmc_dense", "underdamped", "mala", "hmc_dense", "nuts_dense", "sgld_preconditioned", "sghmc"),
    "smile_preconditioned",
)
samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
chief = pytest.mark.parametrize("make", with_variants_as_studies(SAMPLERS, VARIANTS))
# Networks in turn, since a sampler sees rows of weights and their density, whose own tests have these networks and the
# others. A sampler has the same network in all laws of a whole chain, which share it.
NETWORKS = ("mlp", "tied", "dropout", "nested", "frozen")
CHIEF = [name for name in SAMPLERS if name not in VARIANTS]
TURN = {name: ("mlp", "tied", "dropout")[place % 3] for place, name in enumerate(CHIEF)}


def turns(turn: dict[str, str]) -> list[Any]:
    """Every sampler on every network; all but those whose turn it is are studies."""
    return [
        pytest.param(SAMPLERS[name], net, id=f"{net}-{name}", marks=() if turn.get(name) == net else pytest.mark.study)
        for name, net in itertools.product(SAMPLERS, NETWORKS)
    ]


unjudged_fits = pytest.mark.usefixtures("unjudged_fits")


def fitted(make: Make, network: str = "mlp", directory: Path | None = None, **settings: Any) -> tb.Draws:
    """One small fit; `resume` and `steps` go to `fit`, other settings to the sampler."""
    own = {name: settings.pop(name) for name in ("resume", "seed") if name in settings}
    longer = {"steps": settings.pop("longer")} if "longer" in settings else {}
    posterior = tb.fit(
        model_of(network),
        rows_of(network),
        make(**settings),
        **{"seed": 7, **own, **longer},
        directory=directory,
        callbacks=(),
    )
    assert isinstance(posterior, tb.Draws)
    return posterior


MORE = 4  # steps by which a chain is made longer


@cache
def uninterrupted(make: Make, network: str) -> tuple[tb.Draws, list[dict[str, Any]]]:
    """A longer fit, with which several laws compare, whose draws are in a file, and its log."""
    with TemporaryDirectory() as directory, unjudged():
        posterior = fitted(make, network, Path(directory), steps=make().steps + MORE)
        weights_MSD = posterior.weights_MSD.clone()  # what was read of the file is gone with it
        return replace(posterior, weights_MSD=weights_MSD), losses(Path(directory))


def break_after(monkeypatch: pytest.MonkeyPatch, make: Make, steps: int) -> None:
    """Let the sampler be interrupted instead of taking step number `steps`."""
    kind = type(make())
    step, taken = kind.step, itertools.count()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(taken) == steps:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(kind, "step", interrupted)


# chains of these go on in tests/driver/test_sample_resume.py, from states of the same tensors and numbers
CONTINUED = {"smile", "mclmc", "random_walk_dense", "hmc", "sghmc_cyclical"}
FILED = {name: network for name, network in TURN.items() if name not in CONTINUED}


@pytest.mark.parametrize(("make", "network"), turns(FILED))
@unjudged_fits
def test_interrupted_and_resumed_equals_uninterrupted_at_any_length(
    make: Make, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, log = uninterrupted(make, network)
    chance = random.Random(f"{make()}{network}")
    keep_every(monkeypatch, chance.choice((2.0, 10.0)))
    step = chance.choice((chance.randrange(1, make().steps), make().steps - 1))  # anywhere, or behind the first draws
    with monkeypatch.context() as inside:
        break_after(inside, make, step)
        with pytest.raises(KeyboardInterrupt):
            fitted(make, network, directory=tmp_path / "cut")
    # what was drawn until then can be read, by chain and index, while the run is on
    if kept := len(retained_steps(make(), step)):
        draws = DrawFile.open(tmp_path / "cut")
        assert len(draws) == kept
        torch.testing.assert_close(draws.read(), expected.weights_MSD[:, :kept], rtol=0, atol=0)
    # a longer chain begins with the shorter one
    resumed = fitted(make, network, directory=tmp_path / "cut", resume=True).weights_MSD
    assert resumed.shape[1] == len(retained_steps(make(), make().steps))
    assert_same_tensors({"w": resumed}, {"w": expected.weights_MSD[:, : resumed.shape[1]]})
    further = fitted(make, network, directory=tmp_path / "cut", resume=True, longer=make().steps + MORE)
    assert_same_tensors(further.tensors(), expected.tensors())
    assert losses(tmp_path / "cut") == log
    again = tb.load(tmp_path / "cut" / "posterior.safetensors", model_of(network))
    assert_same_tensors(again.tensors(), expected.tensors())


# others of their class share their chains in the same way
APART = {n: network for n, network in TURN.items() if n not in {"hmc", "sghmc_cyclical", "random_walk_dense"}}


@pytest.mark.parametrize(("make", "network"), turns(APART))
@unjudged_fits
def test_chains_together_equal_chains_alone(make: Make, network: str) -> None:
    """Under their seeds, and chains of other seeds are other chains."""
    alone = fitted(make, network, chains=1, seed=member_seeds(7, 2)[1]).weights_MSD
    together = uninterrupted(make, network)[0].weights_MSD[:, : alone.shape[1]]
    torch.testing.assert_close(together[1], alone[0], rtol=1e-6, atol=1e-9)
    assert (together[0] - together[1]).abs().max() > 1e-3


@chief
def test_step_is_pure_and_donating_changes_nothing(make: Make) -> None:
    method, model = make(), model_of()
    source, seeds = as_source(model, rows_of(), method.needs.batch_size or 1000), member_seeds(3, 2)
    density = tb.LogDensity(model, source.num_data, None if method.needs.batch_size else source.rows(), plan="loop")
    weights_MD, _ = model.starting_weights(seeds)
    state, donated = (method.init(density, weights_MD, seeds=seeds) for _ in range(2))
    for epoch in range(2):
        for rows in source.epoch(seeds, epoch):
            batch = rows if method.needs.batch_size else None
            before = {name: tensor.clone() for name, tensor in flatten(state)[0].items()}
            first, info = method.step(density, state, batch)
            donated, donated_info = method.step(density, donated, batch, donate=True)
            assert_same_tensors(flatten(state)[0], before)
            assert_same_tensors(flatten(first)[0], flatten(donated)[0])
            assert flatten(first)[1] == flatten(donated)[1]
            assert_same_tensors(info.means(), donated_info.means())
            state = first
    torch.testing.assert_close(weights_MD, model.starting_weights(seeds)[0], rtol=0, atol=0)


@chief
@unjudged_fits
def test_single_precision_stays_single_and_nothing_else_moves(make: Make, tmp_path: Path) -> None:
    module, data = made("dropout", torch.float32).train(), rows_of("dropout", torch.float32)
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    with untouched(module):
        posterior = tb.fit(model, data, make(), callbacks=(), directory=tmp_path)
        prediction = tb.predict(posterior, data[0])
    assert isinstance(posterior, tb.Draws)
    assert posterior.weights_MSD.dtype == torch.float32
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(24))
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert len(record["log_density"]) == len(record["step_size"]) == 2
    assert record["log_density"][0] < 0 < record["step_size"][0]


@chief
@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_is_refused_with_advice(make: Make, statistics: bool) -> None:
    norm = nn.BatchNorm1d(5, track_running_stats=statistics)
    network = nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 3)).double()
    with pytest.raises(ValueError, match=r"`1` is a batch norm.*filter response norm or group norm"):
        tb.fit(tb.Model(network, tb.likelihoods.Categorical()), rows_of(), make(), callbacks=())


@samplers
def test_bad_data_are_refused(make: Make) -> None:
    inputs, targets = rows_of()
    for bad, words in ((inputs * torch.nan, "must be finite"), (inputs[:0], "data are empty")):
        with pytest.raises(ValueError, match=words):
            tb.fit(model_of(), (bad, targets[: len(bad)]), make(), callbacks=())


@samplers
@pytest.mark.parametrize("setting", [{"chains": 0}, {"thin": 0}, {"burn_in": 50}, {"burn_in": -1}, {"thin": 50}])
def test_bad_settings_are_refused(make: Make, setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(setting))}` must"):
        make(**setting)


LOADED = ("elliptical", "hmc", "sgld", "sgnht")  # on all rows and on batches; a sampler is given either by the driver


@pytest.mark.parametrize(
    ("make", "network"),
    [
        pytest.param(make, TURN.get(name, "mlp"), id=name, marks=() if name in LOADED else pytest.mark.study)
        for name, make in SAMPLERS.items()
    ],
)
@unjudged_fits
def test_loaders_and_lists_of_batches_are_as_good_as_tensors(make: Make, network: str) -> None:
    inputs, targets = rows_of(network)
    dataset = torch.utils.data.TensorDataset(inputs, targets)

    class Wrapped(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, index: int) -> Any:
            return dataset[index]

    actual = tb.fit(model_of(network), Wrapped(), make(), seed=7, callbacks=())
    assert isinstance(actual, tb.Draws)
    expected = uninterrupted(make, network)[0].weights_MSD[:, : actual.weights_MSD.shape[1]]
    torch.testing.assert_close(actual.weights_MSD, expected, rtol=1e-9, atol=1e-12)
    if make().needs.batch_size is None:
        batches = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
        listed = tb.fit(model_of(network), batches, make(), seed=7, callbacks=())
        assert isinstance(listed, tb.Draws)
        torch.testing.assert_close(listed.weights_MSD, expected, rtol=1e-9, atol=1e-12)
