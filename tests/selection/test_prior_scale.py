"""The scale of a prior that is left open, chosen by held-out rows for samplers on minibatches."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.model.model import having_scale
from torchbayes.randomness.seeds import member_seeds
from torchbayes.selection import choose

FEATURES = 4
SHORT: dict[str, Any] = {"chains": 2, "steps": 180, "burn_in": 120, "thin": 15, "batch_size": 16}
TINY: dict[str, Any] = {"chains": 2, "steps": 12, "burn_in": 8, "thin": 2, "batch_size": 16}
METHODS = [tb.SGHMC(**SHORT), tb.SGLD(**SHORT), tb.SGNHT(**SHORT)]
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),
    pytest.mark.usefixtures("unjudged_fits"),
]


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 30), nn.Tanh(), nn.Linear(30, 2)).double()


def model(prior: Any = None) -> tb.Model:
    return tb.Model(net(), tb.likelihoods.Categorical(), prior)


def table(rows: int, seed: int = 0, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Labels of which a share says nothing."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=random).double()
    wrong = torch.rand(rows, generator=random) < noise
    return inputs, torch.where(wrong, torch.randint(2, (rows,), generator=random), (inputs[:, 0] > 0).long())


def fit(data: Any, method: Any, **about: Any) -> Any:
    return tb.fit(about.pop("model", None) or model(), data, method, callbacks=(), **about)


def config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


# the search is one for all; `test_other_models_data_and_starts` runs it for the others
@pytest.mark.parametrize(
    "method",
    [METHODS[0], *(pytest.param(method, marks=pytest.mark.study) for method in METHODS[1:])],
    ids=lambda method: type(method).__name__,
)
def test_the_scale_is_that_of_a_search_by_hand(method: Any, tmp_path: Path) -> None:
    data, held_out = table(60, noise=0.8), table(40, seed=1, noise=0.8)
    actual = fit(data, method, seed=3, validation=held_out, directory=tmp_path)
    seen = config(tmp_path)["chosen"]
    nlls = {}
    for one in seen["tried"]:
        by_hand = fit(data, method, seed=3, model=model(tb.priors.Normal(one["prior_scale"])))
        nlls[one["prior_scale"]] = tb.evaluate(by_hand, held_out).metrics["nll"]
    torch.testing.assert_close([one["nll"] for one in seen["tried"]], list(nlls.values()))
    scales = [2.0**-power for power in range(7)]
    better = [nlls[a] > nlls[b] + 0.02 for a, b in itertools.pairwise(scales) if b in nlls]
    assert list(nlls) == scales[: len(nlls)]
    assert len(nlls) == len(scales) or (all(better[:-1]) and not better[-1])
    chosen = scales[sum(better)]
    assert seen["prior_scale"] == chosen
    assert chosen < 1 or not isinstance(method, tb.SGHMC)  # the others have hardly left their start
    same = fit(data, method, seed=3, model=model(tb.priors.Normal(chosen)))
    torch.testing.assert_close(actual.weights_MSD, same.weights_MSD)
    assert torch.equal(actual.model.prior.stds(), torch.full((actual.model.layout.size,), chosen).double())


def test_the_first_two_chains_are_tried(tmp_path: Path) -> None:
    held_out, method = table(40, seed=1), tb.SGHMC(**{**TINY, "chains": 3})
    fit(table(60), method, seed=3, validation=held_out, directory=tmp_path)
    three = fit(table(60), method, seed=3, model=model(tb.priors.Normal()))
    nll = tb.evaluate(tb.Draws(three.model, three.weights_MSD[:2]), held_out).metrics["nll"]
    assert config(tmp_path)["chosen"]["tried"][0]["nll"] == pytest.approx(nll)
    assert len(member_seeds(3, 3)) == 3


@pytest.mark.parametrize(
    ("given", "method", "rows"),
    [
        (tb.priors.Normal(), tb.SGHMC(**TINY), 60),
        (tb.priors.FanInNormal(), tb.SGLD(**TINY), 60),
        ({"*": tb.priors.Laplace()}, tb.SGNHT(**TINY), 60),
        (None, tb.SGHMC(**TINY, step_size=1e-4), 60),
        (None, tb.SGHMC(**{**TINY, "batch_size": None}), 60),
        (None, tb.SGHMC(**TINY), 19),
        (None, tb.HMC(chains=1, steps=4, burn_in=2), 60),
    ],
    ids=["given", "of the network", "by glob", "step size", "all rows", "few rows", "HMC"],
)
def test_what_is_given_is_kept(given: Any, method: Any, rows: int, tmp_path: Path) -> None:
    actual = fit(table(rows), method, model=model(given), directory=tmp_path)
    assert "chosen" not in config(tmp_path)
    assert torch.equal(actual.model.prior.stds(), model(given).prior.stds())


def test_a_given_prior_is_not_to_be_chosen() -> None:
    with pytest.raises(ValueError, match="choose the scale of the prior for SGHMC, and this model was given a prior"):
        fit(table(60), tb.SGHMC(**TINY), model=model(tb.priors.Normal()), validation=0.2)
    with pytest.raises(ValueError, match="was given; its scale is not open"):
        having_scale(model(tb.priors.Normal()), 0.5)


def test_files_and_resumed_runs_have_the_chosen_prior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, method = table(60, noise=0.8), tb.SGHMC(**{**SHORT, "steps": 130, "burn_in": 100, "thin": 10})
    held_out: dict[str, Any] = {"validation": table(40, seed=1, noise=0.8)}
    whole = fit(data, method, directory=tmp_path / "whole", **held_out)
    scale = config(tmp_path / "whole")["chosen"]["prior_scale"]
    assert scale < 1
    loaded: Any = tb.load(tmp_path / "whole" / "posterior.safetensors", model())
    assert torch.equal(loaded.model.prior.stds(), whole.model.prior.stds())
    assert torch.equal(loaded.weights_MSD, whole.weights_MSD)
    assert tb.load(tmp_path / "whole" / "posterior.safetensors", model(tb.priors.Normal(scale))).members == 2
    with pytest.raises(ValueError, match="another model: its prior of weights"):
        tb.load(tmp_path / "whole" / "posterior.safetensors", model(tb.priors.Normal()))
    stop = [lambda event: event.step >= 110]
    tb.fit(model(), data, method, directory=tmp_path / "cut", callbacks=stop, **held_out)
    monkeypatch.setattr(choose, "choose_scale", None)  # a second search would raise
    again = fit(data, method, directory=tmp_path / "cut", resume=True, **held_out)
    assert torch.equal(again.weights_MSD, whole.weights_MSD)
    longer = fit(data, method, directory=tmp_path / "cut", resume=True, steps=140, **held_out)
    assert torch.equal(longer.weights_MSD[:, : whole.weights_MSD.shape[1]], whole.weights_MSD)
    assert torch.equal(longer.model.prior.stds(), whole.model.prior.stds())


def test_other_models_data_and_starts(tmp_path: Path) -> None:
    inputs, labels = table(80)
    sghmc, sgld, sgnht = tb.SGHMC(**TINY), tb.SGLD(**TINY), tb.SGNHT(**TINY)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
    fit(loader, sghmc, directory=tmp_path / "loader")
    assert config(tmp_path / "loader")["chosen"]["held_out"] == [16] * 5
    batches = list(zip(inputs.split(20), labels.split(20), strict=True))
    fit(batches, sghmc, directory=tmp_path / "batches")  # whose rows cannot be held out
    assert "chosen" not in config(tmp_path / "batches")
    weighted = tb.Model(net(), tb.likelihoods.Weighted(tb.likelihoods.Categorical()))
    fit((inputs, (labels, torch.ones(80).double())), sgld, model=weighted, directory=tmp_path / "weighted")
    learned = tb.Model(net(), tb.likelihoods.Gaussian("learned", outputs=2))
    noise = fit((inputs, inputs[:, :2]), sgnht, model=learned, validation=0.2).model
    before = learned.prior.stds()[-2:]
    assert torch.equal(noise.prior.stds()[-2:], before)  # the noise has a prior of its own
    fit((inputs, labels), sghmc, start=fit((inputs, labels), tb.MAP(epochs=2)))
    one = model()
    space = tb.Subspace.random(one, torch.zeros(one.layout.size).double(), 2)
    in_space = fit((inputs, labels), sghmc, model=one, space=space)
    assert in_space.model.open_scale == 1.0


def test_a_chain_that_diverges_under_every_scale_says_so_itself() -> None:
    inputs, labels = table(60)
    one = tb.Model(nn.Linear(FEATURES, 1).double(), tb.likelihoods.Poisson())  # whose mean e^f overflows
    with pytest.raises(tb.DivergedError, match="the chain diverged at step 7 of 180"):
        fit((inputs * 1e5, labels.double().unsqueeze(1)), METHODS[0], model=one)
