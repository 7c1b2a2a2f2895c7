"""The seams of the protocol, by methods that the driver has not met: it runs, resumes and shares them as any other."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.covering import some_of
from tests.driver.newcomers import SAG, SVGD, Stretch
from tests.laws.cases import assert_same_tensors, everything, losses, model_of, rows_of
from tests.laws.test_method_laws import keep_every
from tests.oracles import LinearGaussian, assert_close, normal
from tests.ranks import check, launch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.catalogue.methods import classes
from torchbayes.diagnostics import mcse_mean
from torchbayes.driver.loop import Reader
from torchbayes.methods.protocol import Method, Visit
from torchbayes.model.sources.sources import as_source

pytestmark = pytest.mark.usefixtures("unjudged_fits")

NEWCOMERS: dict[str, Callable[..., Any]] = {"coupled particles": SVGD, "sites": SAG, "coupled chains": Stretch}

ROWS, SCALE, NOISE = 24, 1.5, 1.5
INPUTS = normal(ROWS, 2, seed=4)
EXACT = LinearGaussian(INPUTS, normal(ROWS, seed=5), SCALE, NOISE)
DATA = (INPUTS, EXACT.targets_N.unsqueeze(1))


def linear() -> tb.Model:
    """Bayesian linear regression, whose posterior is EXACT's."""
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(SCALE))


def fitted(make: Callable[..., Any], **options: Any) -> Any:
    """One small fit of a newcomer."""
    return tb.fit(model_of(), rows_of(), make(), seed=7, **{"callbacks": (), **options})


# --- truth ---


def test_particles_that_see_each_other_meet_the_exact_moments() -> None:
    """With a linear kernel a fixed point of SVGD has the mean and covariance of a normal target (Liu and Wang 2018)."""
    method = SVGD(members=6, steps=200, batch_size=ROWS, step_size=0.05)
    weights_MD = tb.fit(linear(), DATA, method, start=normal(6, 3, seed=6), callbacks=()).tensors()["weights_MD"]
    mean_D, covariance_DD = EXACT.posterior()
    assert_close(weights_MD.mean(0), mean_D, rtol=1e-6)
    assert_close(torch.cov(weights_MD.T, correction=0), covariance_DD, rtol=1e-5)


def test_a_method_that_visits_sites_in_its_own_order_meets_the_mode() -> None:
    actual = tb.fit(linear(), DATA, SAG(sweeps=60, batch_size=6, step_size=2e-2), callbacks=())
    assert_close(actual.tensors()["weights_MD"], EXACT.posterior()[0].expand(2, -1), rtol=1e-8)


# `test_particles_that_see_each_other_meet_the_exact_moments` has such moments, and the runs below these chains
@pytest.mark.study
def test_chains_that_see_each_other_meet_exact_moments_without_a_model() -> None:
    scales_D = torch.tensor([1.0, 10.0], dtype=torch.float64)
    density = tb.FunctionDensity(lambda w: -0.5 * (w / scales_D).square().sum(-1))
    chains = tb.sample(density, Stretch(40, 1500, 500), scales_D * normal(40, 2, seed=8))
    squares = (chains.weights_MSD / scales_D).square().mean(0, keepdim=True)  # walkers are one chain of means
    for value, expected in ((chains.weights_MSD.mean(0, keepdim=True) / scales_D, 0.0), (squares, 1.0)):
        assert ((value.mean((0, 1)) - expected).abs() < 4.5 * mcse_mean(value)).all()


# --- files ---


@pytest.mark.parametrize(("make", "tick"), some_of(NEWCOMERS.values(), (2.0, 10.0), one_in=2))
def test_interrupted_and_resumed_equals_uninterrupted(
    make: Callable[..., Any], tick: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fitted(make, directory=tmp_path / "whole")
    assert_same_tensors(everything(expected), everything(fitted(make)))
    keep_every(monkeypatch, tick)
    step, taken = type(make()).step, itertools.count()

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(taken) == 13:
            raise KeyboardInterrupt
        return step(*args, **options)

    with monkeypatch.context() as inside:
        inside.setattr(type(make()), "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(make, directory=tmp_path / "cut")
    resumed = fitted(make, directory=tmp_path / "cut", resume=True)
    assert_same_tensors(everything(resumed), everything(expected))
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    stored = tb.load(tmp_path / "cut" / "posterior.safetensors", model_of())
    assert_same_tensors(everything(stored), everything(expected))


def test_a_chain_of_a_newcomer_can_be_made_longer(tmp_path: Path) -> None:
    fitted(Stretch, directory=tmp_path)
    longer = fitted(Stretch, directory=tmp_path, resume=True, steps=30)
    whole = tb.fit(model_of(), rows_of(), Stretch(steps=30), seed=7, callbacks=())
    assert_same_tensors(everything(longer), everything(whole))


# --- processes ---


def fit_shared(folder: Path) -> None:
    """Fit the newcomers with the data split over two processes."""
    with tb.Ranks.grid(data=2, chains=1) as ranks:
        for name, make in NEWCOMERS.items():
            actual = everything(fitted(make, ranks=ranks))
            save_file(
                {key: tensor.contiguous() for key, tensor in actual.items()},
                folder / f"{name}_{ranks.data_rank}.safetensors",
            )


def fit_split(folder: Path) -> None:
    """Try to split the members of a method that couples them."""
    del folder
    with tb.Ranks.grid(data=1, chains=2) as ranks:
        fitted(SVGD, ranks=ranks)


# ranks of tests/laws/test_rank_laws.py share any method, those whose members see each other too
@pytest.mark.slow
@pytest.mark.study
def test_ranks_that_share_the_rows_equal_one_process(tmp_path: Path) -> None:
    check(launch(fit_shared, 2, tmp_path, tmp_path))
    for name, make in NEWCOMERS.items():
        alone = everything(fitted(make))
        for rank in range(2):
            actual = load_file(tmp_path / f"{name}_{rank}.safetensors")
            for key, tensor in alone.items():
                assert_close(actual[key], tensor, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.study  # `test_members_that_see_each_other_are_not_split` asks without processes
def test_processes_cannot_split_members_that_see_each_other(tmp_path: Path) -> None:
    ended = launch(fit_split, 2, tmp_path, tmp_path)
    assert all("the members of SVGD see each other, so 2 ranks cannot split them" in one.error for one in ended)


# --- what a visit reads ---


@pytest.mark.parametrize("kind", ["table", "loader", "batches"])
def test_sites_are_parts_of_the_rows_that_stay_what_they_are(kind: str) -> None:
    inputs, targets = rows_of()
    data: dict[str, Any] = {
        "table": (inputs, targets),
        "loader": DataLoader(TensorDataset(inputs, targets), batch_size=6, shuffle=True, collate_fn=_collate),
        "batches": [(inputs[at : at + 6], targets[at : at + 6]) for at in range(0, 24, 6)],
    }
    source = as_source(model_of(), data[kind], 6)
    source.check()
    reader = Reader(source, [0, 1])
    for number in (2, 0, 3, 2):
        batch = reader.read(Visit("site", number))
        assert batch is not None
        where = slice(6 * number, 6 * number + 6)
        for m in range(2):
            assert torch.equal(batch.inputs[m], inputs[where])
            assert torch.equal(batch.targets[m], targets[where])


def _collate(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def test_a_minibatch_depends_on_its_number_alone() -> None:
    source = as_source(model_of(), rows_of(), 5)
    seen = [Reader(source, [3, 4]).read(Visit("minibatch", number)) for number in range(12)]
    reader = Reader(source, [3, 4])
    for number in (0, 1, 2, 7, 8, 3, 11, 4, 5, 4):
        batch, expected = reader.read(Visit("minibatch", number)), seen[number]
        assert batch is not None
        assert expected is not None
        assert torch.equal(batch.inputs, expected.inputs)
        assert torch.equal(batch.targets, expected.targets)


def test_data_that_shrink_between_epochs_are_said() -> None:
    class Shrinking:
        def __init__(self) -> None:
            self.passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            inputs, targets = rows_of()
            return iter([(inputs[:12], targets[:12]), (inputs[12:], targets[12:])][: 2 if self.passes < 5 else 1])

    with pytest.raises(ValueError, match="must give as many rows as the first, 24; got 12"):
        tb.fit(model_of(), Shrinking(), tb.MAP(epochs=20), callbacks=())


# --- the driver ---


def test_the_rooms_around_methods_ask_none_what_it_is() -> None:
    """No isinstance, hasattr or getattr on a method, and no name of one, but in the check of what users pass."""
    package = Path(tb.__file__).parent
    for path in (path for room in ("driver", "selection", "health") for path in (package / room).glob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not imported & set(classes())
        asking = [node for node in tree.body if getattr(node, "name", "") != "check_method"]
        for node in itertools.chain.from_iterable(ast.walk(node) for node in asking):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"isinstance", "getattr", "hasattr"}:
                assert not (isinstance(node.args[0], ast.Name) and node.args[0].id == "method"), path


def test_newcomers_are_methods() -> None:
    methods: list[Method] = [SVGD(), SAG(), Stretch()]
    assert [method.length(4) for method in methods] == [20, 20, 24]


def test_a_method_of_the_former_protocol_is_told_what_it_lacks() -> None:
    members = {name: getattr(SAG, name) for name in ("needs", "init", "visit", "step", "posterior", "length")}
    former = type("Former", (), {"members": 1, "plan": "loop", "batch_size": 6, "sweeps": 1, **members})
    with pytest.raises(TypeError, match=r"Former has no `check`, `choices`, `draw`, `ending`.*inherit .*Defaults"):
        fitted(former)
