"""Laws of fits that several processes share: the result is that of one process, whichever holds which rows."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import torchbayes as tb
from tests.laws import test_laplace_laws
from tests.laws.cases import COUPLED, METHODS, everything, losses, model_of, rows_of, unjudged
from tests.laws.test_last_layer_laws import vbll
from tests.laws.test_method_laws import SMALL
from tests.laws.test_sampler_laws import SAMPLERS
from tests.oracles import LinearGaussian, assert_close, normal
from tests.ranks import Ended, check, launch
from torchbayes.diagnostics import mcse_mean
from torchbayes.methods.sampler import Sampler
from torchbayes.selection import length

GRIDS = {"data": (2, 1), "chains": (1, 2), "both": (2, 2)}
ALL: dict[str, Callable[..., Any]] = {
    **SAMPLERS,
    **METHODS,
    "vbll": vbll,
    "repulsive_extra": partial(METHODS["repulsive_functions"], extra=5),
    "ep": lambda **_: tb.EP(batch_size=5),
}
SOME = ("hmc", "swag")  # on all rows and on batches: draws and a Gaussian
# one of each way to sum over rows: values with and without gradients, gradients at other weights and inputs, by layers,
# at draws, of particles, also on rows without targets, of the last layer, of sites
OWN = (
    *("elliptical", "hmc", "sghmc", "swag", "map_adversarial", "map_sam", "ivon_pairs", "vi_by_layers", "mnf", "vbll"),
    *("repulsive_extra", "ep"),
)
VARIANTS = tuple(name for name in ALL if name not in OWN)
# float64 to rounding: an all-reduce adds in another order, and a chain of some dozen steps amplifies that a little
TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-9}
# steps without rejections take their size from the energy error, whose leading digits cancel: 1e-14 more of it in each
# step of burn-in moves the draws by 5e-9, and 1e-13 by 7e-7; with a given step size they do not move
BY_ENERGY_ERROR = {name: {"rtol": 1e-5, "atol": 1e-6} for name in ("mclmc", "mclmc_dense", "mams", "underdamped")}
TOLERANCES = {**BY_ENERGY_ERROR, "ep": {"rtol": 0, "atol": 0}}  # every rank has all rows


def method_of(name: str, epochs: int = 2) -> Any:
    """One method of the registries, three members: shares of them are uneven."""
    if name in SAMPLERS:
        return SAMPLERS[name](chains=3)
    return ALL[name](**{**SMALL, "epochs": epochs, "members": 3})


def fitted(name: str, ranks: tb.Ranks | None = None, network: str = "mlp", **options: Any) -> tb.Draws | tb.Point:
    """One small fit; that ranks judge it as one process does is a law of tests/health."""
    method = method_of(name, options.pop("epochs", 2))
    model, rows = (model_of(network), rows_of(network)) if name != "ep" else linear_classifier()
    with unjudged():
        return tb.fit(model, rows, method, **{"seed": 7, "callbacks": (), **options}, ranks=ranks)  # type: ignore[return-value]


def linear_classifier() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """What expectation propagation can fit: two classes by a layer, and their rows."""
    inputs = normal(12, 1, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layer = torch.nn.Linear(1, 1).double()
    model = tb.Model(layer, tb.likelihoods.Bernoulli(), tb.priors.Normal(2.0))
    return model, (inputs, (inputs + 0.7 * normal(12, 1, seed=2) > 0).double())


def tensors(posterior: Any) -> dict[str, Tensor]:
    """All tensors of a posterior, in a form that can be saved."""
    return {name: tensor.contiguous().clone() for name, tensor in everything(posterior).items()}


def fit_each(ranks: tb.Ranks, folder: Path, names: Iterable[str]) -> None:
    """Fit these methods, in memory and, for some, in a directory; every rank saves what it got."""
    for name in names:
        own = folder / f"{name}_run" if name in SOME else None
        save_file(tensors(fitted(name, ranks, directory=own)), folder / f"{name}_{rank_number(ranks)}.safetensors")


def fit_all(grid: tuple[int, int], folder: Path, names: tuple[str, ...]) -> None:
    """Fit these methods on a grid of processes."""
    with tb.Ranks.grid(*grid) as ranks:
        fit_each(ranks, folder, names)


def fit_on_rows(folder: Path) -> None:
    """Fit all that share the rows, in one group of processes, as each takes a second to come together."""
    with tb.Ranks.grid(*GRIDS["data"]) as ranks:
        fit_each(ranks, folder, shared(GRIDS["data"]))
        test_laplace_laws.fit_shared(ranks, folder, test_laplace_laws.FEW)
        fit_around_modes(ranks, folder)


def shared(grid: tuple[int, int]) -> list[str]:
    """The methods that share a grid of rows, and those that share every grid.

    A method does not see that others have other members.
    """
    return [name for name in OWN if grid[1] == 1 or name in SOME]


def rank_number(ranks: tb.Ranks) -> int:
    """Return 0 for the first process, and another number for each other."""
    return ranks.data_rank * ranks.chains + ranks.chain_rank


LONGEST = 30  # steps of the first runs at most


def fit_around_modes(ranks: tb.Ranks, folder: Path) -> None:
    """Fit `Laplace` without a start, whose length, prior and modes have to be found first."""
    length._LONGEST = LONGEST
    save_file(tensors(around_modes(folder / "run", ranks)), folder / f"modes_{rank_number(ranks)}.safetensors")


def around_modes(directory: Path, ranks: tb.Ranks | None = None, **options: Any) -> tb.LaplacePosterior:
    """The posterior of two members, with 30 rows held out."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(normal(*parameter.shape, seed=3))
    inputs = normal(90, 2)
    targets = inputs[:, :1].sin() + 0.3 * normal(90, 1, seed=1)
    model = tb.Model(network, tb.likelihoods.Gaussian("learned"))
    about = {"seed": 7, "callbacks": (), "validation": (inputs[60:], targets[60:]), "directory": directory, **options}
    data = inputs[:60], targets[:60]
    return tb.fit(model, data, tb.Laplace(members=2), ranks=ranks, **about)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def on_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes that share the rows left what they got."""
    folder = tmp_path_factory.mktemp("ranks")
    check(launch(fit_on_rows, 2, folder, folder))
    return folder


@pytest.mark.slow
def test_curvature_on_ranks_is_that_of_one_process(on_rows: Path) -> None:
    test_laplace_laws.assert_ranks_found_the_same(on_rows, test_laplace_laws.FEW, 2)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
@pytest.mark.slow
def test_modes_that_ranks_find_are_those_of_one_process(
    on_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "_LONGEST", LONGEST)
    alone = around_modes(tmp_path)
    expected = tensors(alone)
    for number in range(2):
        actual = load_file(on_rows / f"modes_{number}.safetensors")
        assert actual.keys() == expected.keys()
        for name, tensor in actual.items():
            torch.testing.assert_close(tensor, expected[name], **TIGHT)
    again = around_modes(on_rows / "run", resume=True)  # the training that two ranks left, read by one
    torch.testing.assert_close(again.sample(4), alone.sample(4), **TIGHT)


@cache
def fitted_alone(name: str) -> dict[str, Tensor]:
    """All tensors of the fit of one process."""
    return tensors(fitted(name))


@pytest.fixture(  # members alone are shared in `test_a_run_goes_on_with_another_number_of_ranks` too
    scope="module",
    params=[
        pytest.param(grid, id=name, marks=pytest.mark.study if name == "chains" else ()) for name, grid in GRIDS.items()
    ],
)
def spread(
    request: pytest.FixtureRequest, on_rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[int, int], Path]:
    """The fits of methods on a grid of processes: the grid, and where they left what they got."""
    grid: tuple[int, int] = request.param
    if grid == GRIDS["data"]:
        return grid, on_rows
    folder = tmp_path_factory.mktemp("ranks")
    check(launch(fit_all, grid[0] * grid[1], folder, grid, folder, (*shared(grid),)))
    return grid, folder


@pytest.mark.slow
def test_ranks_together_equal_one_process(spread: tuple[tuple[int, int], Path]) -> None:
    assert_ranks_found_the_same(*spread, tuple(shared(spread[0])))


@pytest.mark.slow
@pytest.mark.study  # others of their families, above, take the same path
def test_variants_on_ranks_equal_one_process(tmp_path: Path) -> None:
    for grid, names in (
        ((2, 1), tuple(name for name in VARIANTS if name in COUPLED)),  # which cannot be split
        ((2, 2), tuple(name for name in ALL if name not in COUPLED)),
    ):
        folder = tmp_path / str(grid)
        check(launch(fit_all, grid[0] * grid[1], folder, grid, folder, names))
        assert_ranks_found_the_same(grid, folder, names)


def assert_ranks_found_the_same(grid: tuple[int, int], folder: Path, names: tuple[str, ...]) -> None:
    """What every rank has left in a folder is what one process finds."""
    for name in names:
        alone = fitted_alone(name)
        for rank in range(grid[0] * grid[1]):
            actual = load_file(folder / f"{name}_{rank}.safetensors")
            assert actual.keys() == alone.keys()
            for key, tensor in alone.items():
                assert_close(actual[key], tensor, **TOLERANCES.get(name, TIGHT))


@pytest.mark.parametrize("name", COUPLED)
def test_members_that_see_each_other_are_not_split(name: str) -> None:
    with pytest.raises(ValueError, match="see each other, so 2 ranks cannot split them"):
        fitted(name, tb.Ranks(chains=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_ranks_leave_the_files_of_one_process(name: str, spread: tuple[tuple[int, int], Path], tmp_path: Path) -> None:
    _, folder = spread
    alone = fitted(name, directory=tmp_path)
    own = folder / f"{name}_run"
    assert {path.name for path in own.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for record, expected in zip(losses(own), losses(tmp_path), strict=True):
        assert record.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(record[key], value, **TIGHT)
    stored = tb.load(own / "posterior.safetensors", alone.model)
    for key, tensor in tensors(alone).items():
        assert_close(tensors(stored)[key], tensor, **TIGHT)


RESUMED = ("hmc", "sghmc_cyclical", "map_adam")
TOGETHER = COUPLED[:1]  # whose states are alike


def resumed(grid: tuple[int, int] | None) -> list[str]:
    """Some methods that a grid can share."""
    return [*RESUMED, *(TOGETHER if grid is None or grid[1] == 1 else ())]


STOPS = {"hmc": (6, 8), "sghmc_cyclical": (4, 8)}  # behind burn-in


def fit_parts(grids: dict[int, tuple[int, int] | None], folder: Path) -> None:
    """Start or resume some methods on grids, or in one process; a callback of the first process ends two stages."""
    for stage, grid in grids.items():
        with tb.Ranks.grid(*grid) if grid else tb.Ranks() as ranks:
            for name in resumed(grid):
                last = (*STOPS.get(name, (3, 6)), 1000)[stage]
                fitted(
                    name,
                    ranks,
                    epochs=3,
                    directory=folder / name,
                    resume=(folder / name).exists(),
                    callbacks=(lambda event, last=last: event.step >= last,),
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    "grids",
    # rows are shared, then members, whose state is gathered for one process; the other way round the files are the same
    [((2, 1), (1, 2), None), pytest.param((None, (2, 1), None), marks=pytest.mark.study)],
    ids=["2-2-1", "1-2-1"],
)
def test_a_run_goes_on_with_another_number_of_ranks(grids: tuple[tuple[int, int] | None, ...], tmp_path: Path) -> None:
    """Processes may form one grid after another."""
    for in_one, parts in itertools.groupby(enumerate(grids), key=lambda part: part[1] is None):
        if in_one:
            fit_parts(dict(parts), tmp_path)
        else:
            check(launch(fit_parts, 2, tmp_path, dict(parts), tmp_path))
    for name in resumed(None):
        whole = fitted(name, epochs=3, directory=tmp_path / "whole" / name)
        stored = tb.load(tmp_path / name / "posterior.safetensors", whole.model)
        for key, tensor in tensors(whole).items():
            assert_close(tensors(stored)[key], tensor, **TIGHT)
        logged, expected = (losses(folder / name) for folder in (tmp_path, tmp_path / "whole"))
        assert [record["step"] for record in logged] == [record["step"] for record in expected]


def die(grid: tuple[int, int], folder: Path, step: int) -> None:
    """Fit by HMC with a checkpoint after every iteration; the second process is killed in one."""
    from torchbayes.driver import run as run_module

    run_module._EVERY = run_module._SPARE = 0.0
    move, taken = tb.HMC.step, itertools.count()
    with tb.Ranks.grid(*grid) as ranks:

        def stepping(*args: Any, **kwargs: Any) -> Any:
            if next(taken) == step and not ranks.first:
                os.kill(os.getpid(), signal.SIGKILL)
            return move(*args, **kwargs)

        tb.HMC.step = stepping  # type: ignore[method-assign]
        fitted("hmc", ranks, directory=folder)


# `test_a_rank_that_stops_with_an_error_stops_the_others` has members that are shared
@pytest.mark.slow
@pytest.mark.parametrize("grid", [(2, 1), pytest.param((1, 2), marks=pytest.mark.study)], ids=["data", "chains"])
def test_a_dead_rank_ends_the_run_with_a_message_and_the_run_goes_on(grid: tuple[int, int], tmp_path: Path) -> None:
    first, second = launch(die, 2, tmp_path, grid, tmp_path / "run", 7)
    assert second.code == -signal.SIGKILL
    assert first.code == 1, "the process that is left must end by itself"
    assert first.error.startswith("LostRankError: a rank of this fit no longer answers")
    fitted("hmc", directory=tmp_path / "run", resume=True)
    whole = fitted("hmc")
    stored = tb.load(tmp_path / "run" / "posterior.safetensors", whole.model)
    assert_close(tensors(stored)["weights_MSD"], tensors(whole)["weights_MSD"], **TIGHT)
    assert losses(tmp_path / "run")[-1]["step"] == 12


def fail(folder: Path) -> None:
    """Every process meets a bad input on its own, or a disagreement."""
    with tb.Ranks.grid(1, 2) as ranks:
        if not ranks.first:
            raise ValueError("this rank has an error of its own")
        fitted("hmc", ranks, directory=folder)


@pytest.mark.slow
def test_a_rank_that_stops_with_an_error_stops_the_others(tmp_path: Path) -> None:
    first, second = launch(fail, 2, tmp_path, tmp_path / "run")
    assert second == Ended(1, "ValueError: this rank has an error of its own")
    assert first.code == 1
    assert "no longer answers" in first.error


def disagree(folder: Path) -> None:
    """Ask for a grid of another size; then one process changes its weights independently."""
    del folder
    move = tb.HMC.step
    with tb.Ranks.grid(2, 1) as ranks:
        with pytest.raises(ValueError, match="must be the number of processes, 2; got 2 times 2"):
            tb.Ranks.grid(2, 2)

        def stepping(method: tb.HMC, density: Any, state: Any, batch: Any = None, *, donate: bool = False) -> Any:
            state, info = move(method, density, state, batch, donate=donate)
            return (state, info) if ranks.first else (replace(state, weights_MD=state.weights_MD + 1e-6), info)

        tb.HMC.step = stepping  # type: ignore[method-assign]
        fitted("hmc", ranks)


@pytest.mark.slow
def test_ranks_that_fall_apart_are_noticed(tmp_path: Path) -> None:
    for ended in launch(disagree, 2, tmp_path, tmp_path):
        assert ended.code == 1
        assert ended.error.startswith("ValueError: the ranks that share the data no longer hold the same")


PROBLEM = LinearGaussian(normal(40, 3, seed=1), normal(40, seed=2), noise_scale=0.5, prior_scale=1.0)


def sample_linear(grid: tuple[int, int], folder: Path, make: Callable[[], Sampler]) -> None:
    """Sample a Bayesian linear regression on a grid."""
    net = torch.nn.Linear(3, 1).double()
    model = tb.Model(net, tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0))
    rows = (PROBLEM.inputs_NF, PROBLEM.targets_N.unsqueeze(-1))
    with tb.Ranks.grid(*grid) as ranks:
        draws = tb.fit(model, rows, make(), ranks=ranks, callbacks=())
        if ranks.first:
            save_file({"weights_MSD": draws.tensors()["weights_MSD"].contiguous()}, folder / "draws.safetensors")


def long_hmc() -> Sampler:
    """Return HMC with enough iterations for moments."""
    return tb.HMC(chains=8, steps=180, burn_in=60, step_size=0.05, trajectory=0.15, jitter=0.3)


# `test_ranks_together_equal_one_process` pins the chains themselves, those of `hmc` on every grid
@pytest.mark.slow
@pytest.mark.study
@pytest.mark.parametrize("grid", [(2, 1), (1, 2)], ids=["data", "chains"])
def test_moments_on_two_ranks_are_those_of_the_posterior(grid: tuple[int, int], tmp_path: Path) -> None:
    check(launch(sample_linear, 2, tmp_path, grid, tmp_path, long_hmc))
    draws_MSD = load_file(tmp_path / "draws.safetensors")["weights_MSD"]
    mean_D, covariance_DD = PROBLEM.posterior()
    for seen_MSD, exact_D in ((draws_MSD, mean_D), ((draws_MSD - mean_D).square(), covariance_DD.diagonal())):
        # eight numbers: 4.5 standard errors are exceeded once in 18,000 runs, and the seed is set
        assert ((seen_MSD.mean((0, 1)) - exact_D) / mcse_mean(seen_MSD)).abs().max() < 4.5


def test_one_process_is_a_grid_of_one() -> None:
    with tb.Ranks.grid() as ranks:
        assert asdict(ranks) == asdict(tb.Ranks())
        assert ranks.first
        assert ranks.members(3) == slice(0, 3)
        assert ranks.rows(5) == slice(0, 5)
    torch.testing.assert_close(tensors(fitted("hmc", ranks)), tensors(fitted("hmc")), rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_cover_everything_once_and_evenly(count: int) -> None:
    for shares in range(1, count + 1):
        rows = [tb.Ranks(data=shares, data_rank=rank).rows(count) for rank in range(shares)]
        members = [tb.Ranks(chains=shares, chain_rank=rank).members(count) for rank in range(shares)]
        assert rows == members
        assert [i for share in rows for i in range(count)[share]] == list(range(count))
        sizes = [share.stop - share.start for share in rows]
        assert max(sizes) - min(sizes) <= 1


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows cannot be split over 3 ranks"):
        tb.Ranks(data=3).rows(2)
    with pytest.raises(ValueError, match="2 members cannot be spread over 3 ranks"):
        tb.Ranks(chains=3).members(2)
    with pytest.raises(ValueError, match=r"is a batch norm, .* ranks cannot split the data"):
        fitted("map_sgd", tb.Ranks(data=2), network="conv_batch_norm")


def test_a_grid_of_one_process_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"there is one process, and 2 times 3 .* torchrun --nproc-per-node 6"):
        tb.Ranks.grid(data=2, chains=3)
    for data, chains in ((0, None), (None, 0), (-1, 1)):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            tb.Ranks.grid(data, chains)
