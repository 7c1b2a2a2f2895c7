"""What is known to be wrong with chains: found where it is there, and nowhere else."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import normal
from tests.ranks import check, launch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.driver.log import History
from torchbayes.health.chains import momentum_ebfmi, problems, problems_of, stuck
from torchbayes.posteriors.locks import FileWarning

CHAINS, ITERATIONS = 4, 200


def columns(iterations: int = ITERATIONS, /, **other: Tensor) -> dict[str, Tensor]:
    """What chains see that are fine: energies of ten weights, independent from one iteration to the next."""
    squares = normal(CHAINS, iterations, 20).square()
    return {
        "acceptance": torch.full((CHAINS, iterations), 0.8).double(),
        "divergent": torch.zeros(CHAINS, iterations).double(),
        "outside": torch.zeros(CHAINS, iterations).double(),
        "failed": torch.zeros(CHAINS, iterations).double(),
        "energy": 0.5 * squares.sum(-1),
        "log_density": -0.5 * squares[..., :10].sum(-1),
        "log_likelihood": -0.3 * squares[..., :5].sum(-1),
        **other,
    }


def draws(count: int = ITERATIONS) -> Tensor:
    return normal(CHAINS, count, 3, seed=1)


def marked(chain: int, value: float, name: str) -> dict[str, Tensor]:
    """A column of `columns` with other values in one chain."""
    column = columns()[name].clone()
    column[chain] = value
    return {name: column}


# --- by numbers ---


def test_nothing_is_wrong_with_chains_that_are_fine():
    assert problems(draws(), columns()) == ()
    assert problems(draws(), {}) == ()


def drifting(name: str) -> dict[str, Tensor]:
    """A column in which each chain rises through its range."""
    return {name: columns()[name] + torch.linspace(0, 60, ITERATIONS).double()}


def apart(name: str) -> dict[str, Tensor]:
    """A column in which chain 1 is elsewhere."""
    column = columns()[name].clone()
    column[1] += 30
    return {name: column}


def slow_energies() -> dict[str, Tensor]:
    """Energies of chain 3 that are a random walk."""
    energy = columns()["energy"].clone()
    energy[3] = normal(ITERATIONS, seed=5).cumsum(0)
    return {"energy": energy}


WRONG: dict[str, tuple[dict[str, Tensor], str]] = {
    "acceptance": (marked(2, 0.0, "acceptance"), "chain 2 accepted fewer than 1 % of the proposals"),
    "exceptions": (
        marked(2, 1e-5, "acceptance") | marked(2, 1.0, "failed"),
        "chain 2 accepted fewer than 1 % of the proposals; the density raised an exception at 100% of them, first E: x",
    ),
    "divergences": (marked(0, 0.25, "divergent"), "up to 25% of the iterations of chain 0 diverged"),
    "energies": (slow_energies(), "E-BFMI of chain 3 is"),
    "disagree": (apart("log_density"), "chains disagree on the log density (R-hat"),
    "likelihoods": (apart("log_likelihood"), "chains disagree on the log likelihood (R-hat"),
    "drift": (drifting("log_density"), "chains disagree on the log density (R-hat"),
}


@pytest.mark.parametrize(("other", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_once(other: dict[str, Tensor], words: str):
    actual = problems(draws(), columns(**other), fault="E: x")
    assert len(actual) == 1
    assert actual[0].startswith(words)


def test_short_chains_are_not_blamed_for_being_short():
    for name, (other, _) in WRONG.items():
        bound = 19 if name in {"acceptance", "exceptions", "divergences"} else 99
        short = {key: column[:, -bound:] for key, column in columns(**other).items()}
        assert problems(draws(19), short) == ()


@pytest.mark.parametrize(("size", "where"), [(1, [0]), (20, [7]), (2000, range(1000, 2000))])
def test_one_weight_among_many_that_means_the_same_in_all_chains_is_enough(size: int, where: Any):
    weights_MSD = normal(4, 100, size, seed=1)
    assert problems(weights_MSD, columns(), identified=True) == ()
    weights_MSD[1:3, :, list(where)] += 20
    assert problems(weights_MSD, columns()) == ()
    (actual,) = problems(weights_MSD, columns(), identified=True)
    assert re.match(rf"chains disagree on weight ({'|'.join(map(str, where))}) \(R-hat", actual)


def test_who_disagrees_is_named_where_one_chain_is_looked_at():
    bad = {name: column.clone() for name, column in columns().items()}
    bad["divergent"][[0, 1, 3]] = 0.5
    bad["log_density"][2, ITERATIONS // 2 :] += 30
    assert "the halves of chain 2 disagree on the log density (R-hat" in problems(draws(), bad)[1]


def test_thresholds():
    """Just on either side of each, of which that of divergences is one in 200 iterations of all four chains."""
    for name, good, bad in (("acceptance", 0.011, 0.009), ("divergent", 0.019, 0.021)):
        assert problems(draws(), columns(**marked(1, good, name))) == ()
        assert len(problems(draws(), columns(**marked(1, bad, name)))) == 1
    for shift, wrong in ((1.0, False), (12.0, True)):
        column = columns()["log_density"].clone()
        column[1] += shift
        assert bool(problems(draws(), columns(log_density=column))) == wrong


def test_weights_that_stand_still_or_are_not_finite():
    still, broken = draws(), draws()
    still[1] = still[1, 0]
    still[3] = still[3, 0]
    broken[2, 150, 1] = math.nan
    assert problems(still, columns()) == ("chains 1 and 3 never moved",)
    assert problems(still, {}) == ("chains 1 and 3 never moved",)
    assert problems(still[:, :19], columns()) == ()
    assert problems(broken, {}) == ("chain 2 left weights that are not finite",)
    assert problems(torch.zeros(5, 30, 2), {}) == ("5 of 5 chains never moved",)
    # a chain that accepted nothing is not also reported as never having moved, nor compared with the others
    actual = problems(still, columns(**marked(1, 0.0, "acceptance"), **apart("log_density")))
    assert actual == ("chain 1 accepted fewer than 1 % of the proposals", "chain 3 never moved")


def test_draws_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbayes.health.chains._BLOCK", 30)
    last = draws(50)
    last[0] = last[0, 0]
    last[0, 49, 2] += 1e-9
    last[1, 49, 0] = math.inf
    assert problems(last, {}) == ("chain 1 left weights that are not finite",)


def test_energies_without_momentum_say_nothing():
    seen = {name: column for name, column in columns().items() if name != "energy"}
    assert momentum_ebfmi(seen) is None
    assert problems(draws(), {**seen, **marked(1, 0.9, "divergent")}) == ()  # a walk steps over cliffs and is right
    assert momentum_ebfmi(columns()) is not None


def test_walls_are_no_divergences():
    walled = marked(0, 0.9, "divergent") | marked(0, 0.9, "outside")
    assert problems(draws(), columns(**walled)) == ()
    assert len(problems(draws(), columns(**walled | marked(0, 0.6, "outside")))) == 1


def test_records_of_burn_in_and_of_minibatches_do_not_count():
    seen = History()
    for step in range(1, 151):
        bad = step <= 50
        seen.add({"step": step, **{n: c[:, step].tolist() if not bad else [0.0] * 4 for n, c in columns().items()}})
    assert problems_of(draws(), seen, burn_in=50) == ()
    minibatches = History({"step": step, "log_density": [float(step), -1.0]} for step in range(200))
    assert problems_of(draws()[:2], minibatches, burn_in=0) == ()


def test_a_line_of_the_log_that_is_lost_changes_nothing(tmp_path: Path):
    """Of a walk, whose energies would be taken for those of momenta: E-BFMI of densities one step apart is small."""
    model, data = problem_of_fit()
    walk = tb.RandomWalk(2, 160, 40, plan="loop")
    assert tb.fit(model, data, walk, directory=tmp_path, callbacks=()).problems == ()
    log = tmp_path / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert not any("energy" in json.loads(line) for line in lines)
    log.write_text("".join(lines[:100] + lines[101:]))
    with pytest.warns(FileWarning, match="left no line"):
        actual: Any = tb.fit(model, data, walk, directory=tmp_path, resume=True, callbacks=())
    assert actual.problems == ()
    with pytest.warns(FileWarning, match="left no line"):
        record: Any = tb.diagnose(actual, data[0], log=tmp_path).record
    assert record.ebfmi_M is None


@pytest.mark.parametrize("names", [("acceptance",), ("acceptance", "log_density"), ("acceptance", "failed", "energy")])
def test_a_sampler_is_judged_by_what_it_reports(names: tuple[str, ...]):
    columns_of = columns()
    some = {name: columns_of[name] for name in names}
    seen = History({"step": s + 1, **{n: c[:, s].tolist() for n, c in some.items()}} for s in range(ITERATIONS))
    assert problems_of(draws(), seen, burn_in=0) == problems(draws(), some) == ()
    bad = some | marked(2, 0.0, "acceptance")
    seen = History({"step": s + 1, **{n: c[:, s].tolist() for n, c in bad.items()}} for s in range(ITERATIONS))
    assert (
        problems_of(draws(), seen, burn_in=0)
        == problems(draws(), bad)
        == ("chain 2 accepted fewer than 1 % of the proposals",)
    )


# --- sample and fit ---


def gaussian(weights_MD: Tensor) -> Tensor:
    return -0.5 * weights_MD.double().square().sum(1)


def modes(weights_MD: Tensor) -> Tensor:
    """Two narrow modes of different density, far apart."""
    distance = (weights_MD.double()[:, :1] - torch.tensor([-20.0, 20.0])).abs()
    return (torch.tensor([0.0, 8.0]) - 0.5 * distance.square()).logsumexp(1) - weights_MD[:, 1].square()


def funnel(weights_MD: Tensor) -> Tensor:
    v, x = weights_MD.double()[:, 0], weights_MD.double()[:, 1:]
    return -0.5 * (v / 3) ** 2 - 0.5 * 9 * v - 0.5 * (-v).exp() * x.square().sum(1)


def raising(weights_MD: Tensor) -> Tensor:
    """A density that can be computed where the chains start, and nowhere else."""
    if not torch.equal(weights_MD, torch.zeros_like(weights_MD)):
        raise ArithmeticError("no number")
    return gaussian(weights_MD)


SAMPLED: dict[str, tuple[Any, Any, Tensor, str]] = {
    "too large a step": (gaussian, tb.HMC(2, 60, 20, step_size=50.0, trajectory=100.0), normal(2, 5), "accepted fewer"),
    "a walk too wide": (gaussian, tb.RandomWalk(2, 60, 20, step_size=1e5), normal(2, 5), "accepted fewer than 1 %"),
    "nothing but exceptions": (
        raising,
        tb.NUTS(2, 60, 20, mass="unit"),
        torch.zeros(2, 5).double(),
        "at 100% of them, first ArithmeticError: no number",
    ),
    "no exploration": (
        modes,
        tb.HMC(2, 300, 100, step_size=0.5, trajectory=1.0, jitter=0.3),
        torch.tensor([[-20.0, 0.0], [20.0, 0.0]]).double(),
        "chains disagree on the log density",
    ),
    "a funnel": (
        funnel,
        tb.HMC(2, 300, 100, step_size=0.3, trajectory=0.9, jitter=0.3),
        0.1 * normal(2, 10),
        "E-BFMI of chain",
    ),
    "modes alike": (
        lambda w: torch.logsumexp(-0.5 * (w.double()[:, :1] - torch.tensor([-9.0, 9.0])).square(), 1),
        tb.MALA(3, 600, 200),
        torch.tensor([[-9.0], [9.0], [9.0]]).double(),
        "chains disagree on weight 0 (R-hat",
    ),
    "minibatches that do not agree": (
        gaussian,
        tb.SGLD(2, 300, 100, step_size=1e-8, batch_size=None, thin=1),
        torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(),
        "chains disagree on weight 0 (R-hat",
    ),
    "a step of nothing": (
        gaussian,
        tb.SGLD(2, 60, 0, step_size=1e-40, batch_size=None, thin=1),
        normal(2, 5),
        "never moved",
    ),
}


# what is said of which numbers is that of `WRONG`, above; the short ones of `sample` tell that it is said
LONG = {"no exploration", "a funnel", "modes alike"}


@pytest.mark.parametrize(
    ("log_density", "method", "start_MD", "words"),
    [pytest.param(*case, id=name, marks=[pytest.mark.study] * (name in LONG)) for name, case in SAMPLED.items()],
)
def test_sample_warns_once(log_density: Any, method: Any, start_MD: Tensor, words: str):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chains = tb.sample(tb.FunctionDensity(log_density), method, start_MD)
    assert [warning.category for warning in caught] == [tb.ProblemWarning]
    text = str(caught[0].message)
    assert text.startswith("these chains should not be trusted: ")
    assert words in text
    assert "\n" not in text
    assert any(words in problem for problem in chains.problems)
    assert caught[0].filename == __file__


def test_sample_says_nothing_of_chains_that_are_fine():
    method = tb.HMC(4, 400, 150, trajectory=1.5, jitter=0.2)
    assert tb.sample(tb.FunctionDensity(gaussian), method, normal(4, 5)).problems == ()


def problem_of_fit() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.0)), (normal(8, 2), normal(8, 1, seed=1))


STUCK = tb.HMC(2, 40, 10, step_size=100.0, trajectory=300.0, plan="loop")
SAID = ("chains 0 and 1 accepted fewer than 1 % of the proposals",)


def test_a_fit_in_memory_and_in_a_directory_say_the_same(tmp_path: Path):
    model, data = problem_of_fit()
    with pytest.warns(tb.ProblemWarning, match="accepted fewer than 1 %"):
        in_memory = tb.fit(model, data, STUCK, callbacks=())
    with pytest.warns(tb.ProblemWarning, match="accepted fewer than 1 %"):
        on_disk = tb.fit(model, data, STUCK, directory=tmp_path, callbacks=())
    loaded = tb.load(tmp_path / "posterior.safetensors", model)
    assert in_memory.problems == on_disk.problems == loaded.problems == SAID
    with pytest.warns(tb.ProblemWarning, match="accepted fewer than 1 %"):
        tb.predict(loaded, data[0])


def test_a_run_that_is_resumed_is_judged_as_a_whole(tmp_path: Path):
    model, data = problem_of_fit()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with pytest.warns(tb.ProblemWarning):
        expected = tb.fit(model, data, STUCK, directory=whole, callbacks=())
    with pytest.warns(tb.ProblemWarning):
        stopped = tb.fit(model, data, STUCK, directory=cut, callbacks=[lambda event: event.step == 35])
    assert stopped.problems == SAID
    with pytest.warns(tb.ProblemWarning):
        actual = tb.fit(model, data, STUCK, directory=cut, resume=True, callbacks=())
    again = pytest.warns(tb.ProblemWarning)
    with again:  # nothing is left to do, and it is judged by its log alone
        done = tb.fit(model, data, STUCK, directory=cut, resume=True, callbacks=())
    assert expected.problems == actual.problems == done.problems == SAID
    records = [json.loads(line) for line in (cut / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, 41))


def test_a_short_fit_and_one_that_is_fine_say_nothing(tmp_path: Path):
    model, data = problem_of_fit()
    for method in (tb.HMC(2, 12, 4, plan="loop"), tb.HMC(2, 140, 35, max_leapfrogs=4, plan="loop")):
        assert tb.fit(model, data, method, callbacks=()).problems == ()
    tb.fit(model, data, tb.SGLD(2, 40, 10, step_size=1e-3, batch_size=4, thin=1), directory=tmp_path, callbacks=())
    assert tb.load(tmp_path / "posterior.safetensors", model).problems == ()


def test_a_chain_on_minibatches_that_is_stuck_is_left_out(tmp_path: Path):
    """One that begins at a network of dead units, whose gradients are 0; the others are as they are without it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    model = tb.Model(net, tb.likelihoods.Gaussian(0.05), tb.priors.Normal(20.0))
    inputs = normal(60, 2).float()
    data = (inputs, inputs[:, :1])
    trained: Any = tb.fit(model, data, tb.MAP(epochs=300, batch_size=20), callbacks=())
    start_MD = trained.weights_MD.expand(3, -1).clone()
    start_MD[1] = 0.0
    start_MD[1, 16:24] = -20.0  # the biases of the units
    sampler = tb.SGLD(3, 60, 20, step_size=1e-6, batch_size=20, thin=5)
    with pytest.warns(tb.ProblemWarning, match="^chain 1 was dropped: the log density is far below"):
        actual: Any = tb.fit(model, data, sampler, start=start_MD, directory=tmp_path, callbacks=())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again: Any = tb.fit(model, data, sampler, start=start_MD[[0, 2, 2]], callbacks=())
    assert torch.equal(actual.weights_MSD[0], again.weights_MSD[0])
    assert len(actual.weights_MSD) == 2
    assert torch.equal(tb.load(tmp_path / "posterior.safetensors", model).sample(16), actual.sample(16))
    with pytest.warns(FileWarning, match="the log is of 3 chains, of which the posterior has 2"):
        assert tb.diagnose(actual, inputs, log=tmp_path).record is None


@pytest.mark.parametrize(
    ("behind", "also", "spread", "left_out"),
    [(9.9, 20.0, 0.0, False), (10.1, 20.0, 0.0, True), (10.1, 20.0, 2.0, False), (20.0, 9.9, 0.0, False)],
)
def test_a_chain_is_stuck_beyond_the_noise_of_its_density(behind: float, also: float, spread: float, left_out: bool):
    """In standard deviations of the log density of 8 normal weights, and with the error of a mean of four steps."""
    density_MR = spread * torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(4, 4).clone()
    likelihood_MR = density_MR.clone()
    density_MR[2:] -= 2 * behind  # half of the chains
    likelihood_MR[2:] -= 2 * also
    for names in (("log_density", "log_likelihood"), ("log_likelihood", "log_density")):
        reports = dict(zip(names, (density_MR, likelihood_MR), strict=True))
        assert stuck(reports, 8, 3).tolist() == [False, False, left_out, left_out]
    assert not stuck({"log_density": density_MR}, 8, 3).any()  # another sampler may report less
    assert not stuck(reports, 8, 41).any()  # rows are less likely by less than a nat each


def fit_stuck(grid: tuple[int, int], folder: Path) -> None:
    """One of two processes: a run on disk, and one in memory."""
    model, data = problem_of_fit()
    with tb.Ranks.grid(*grid) as ranks, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = (folder / "run", None)  # nobody reads the log of the second before it ends
        actual = [tb.fit(model, data, STUCK, directory=where, ranks=ranks, callbacks=()).problems for where in places]
        (folder / f"{ranks.data_rank}{ranks.chain_rank}.json").write_text(json.dumps(actual))


@pytest.mark.slow
@pytest.mark.parametrize("grid", [pytest.param((2, 1), marks=pytest.mark.study), (1, 2)], ids=str)
def test_ranks_say_the_same(grid: tuple[int, int], tmp_path: Path):
    check(launch(fit_stuck, 2, tmp_path, grid, tmp_path))
    for name in ("00", "01" if grid == (1, 2) else "10"):
        assert json.loads((tmp_path / f"{name}.json").read_text()) == [list(SAID)] * 2
    assert tb.load(tmp_path / "run" / "posterior.safetensors", problem_of_fit()[0]).problems == SAID
