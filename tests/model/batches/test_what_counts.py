"""What a loader yields and what counts: every row of its data set once, for every function that takes data."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import torchbayes as tb
from tests.oracles import LinearGaussian, normal
from torchbayes import geometry
from torchbayes.driver.checks import ChangingDataWarning
from torchbayes.model.sources.sources import as_source

ROWS = 11  # no multiple of the batches' size
X, Y = normal(ROWS, 2), normal(ROWS, 1, seed=5)
TABLE = TensorDataset(X, Y)
CHAIN = tb.HMC(chains=1, steps=3, burn_in=1, step_size=0.1, trajectory=0.2)


class Flow(IterableDataset[Any]):
    """The rows, in order."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y, strict=True)


class Shaken(Dataset[Any]):
    """Rows with noise from the global generators, as augmentation draws it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return X[row] + 0.1 * torch.randn(2).double() + 0.1 * np.random.normal() + random.random(), Y[row]  # noqa: NPY002


def loader(**options: Any) -> DataLoader:
    return DataLoader(TABLE, **{"batch_size": 4, **options})


def model() -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(0.8))


ALL: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (X, Y),
    "dataset": lambda: TABLE,
    "loader": loader,
    "shuffled": lambda: loader(shuffle=True),
    "rest dropped": lambda: loader(drop_last=True),
    "rest dropped, shuffled": lambda: loader(shuffle=True, drop_last=True),
    "fewer rows than a batch": lambda: loader(batch_size=50, drop_last=True),
    "a sampler of all rows": lambda: loader(sampler=SubsetRandomSampler(range(ROWS))),
    "a sampler of batches": lambda: DataLoader(
        TABLE, batch_sampler=BatchSampler(RandomSampler(TABLE), 4, drop_last=False)
    ),
    "list": lambda: [(X[:4], Y[:4]), (X[4:], Y[4:])],
    "iterable": lambda: DataLoader(Flow(), batch_size=4),
}
OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "with replacement": (lambda: loader(sampler=RandomSampler(TABLE, replacement=True)), "repeats rows"),
    "weighted": (lambda: loader(sampler=WeightedRandomSampler([1.0] * ROWS, 30)), r"likelihoods\.Weighted"),
    "some of them": (lambda: loader(sampler=RandomSampler(TABLE, num_samples=5)), "other rows at every pass"),
    "of one process": (
        lambda: loader(sampler=DistributedSampler(TABLE, num_replicas=2, rank=0)),
        "each process a part",
    ),
}


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_all_kinds_of_data_are_the_same_rows_to_every_function(kind: str) -> None:
    exact, data, made = LinearGaussian(X, Y[:, 0], 0.8, 0.5), ALL[kind], model()
    mean, covariance = exact.posterior()
    fitted: Any = tb.fit(made, data(), tb.Laplace("dense", batch_size=4, prior="model"), start=mean, callbacks=())
    assert float(fitted.log_evidence()[0]) == pytest.approx(exact.log_evidence(), rel=1e-9)
    same(fitted.gaussian.covariance.dense()[0], covariance)
    whole = tb.fit(made, (X, Y), CHAIN, callbacks=()).weights_MSD
    same(tb.fit(made, data(), CHAIN, callbacks=()).weights_MSD.mean(), whole.mean())
    drawn = tb.Functions(made, normal(2, 3))
    outputs = LinearGaussian.features(X) @ drawn.weights_SD.T
    density = torch.distributions.Normal(outputs, 0.5).log_prob(Y).logsumexp(1) - np.log(2)
    assert tb.evaluate(drawn, data()).metrics["nll"] == pytest.approx(-float(density.mean()), rel=1e-9)
    trace = float((exact.features(X) ** 2).sum() / 0.25)
    assert geometry.trace(made, data(), mean).value == pytest.approx(trace, rel=1e-6)


@pytest.mark.parametrize("kind", ["loader", "shuffled", "rest dropped, shuffled", "a sampler of all rows", "iterable"])
def test_predictions_are_in_the_order_of_the_data_set(kind: str) -> None:
    drawn = tb.Functions(model(), normal(2, 3))
    expected = tb.predict(drawn, X).outputs_SBK
    same(tb.predict(drawn, ALL[kind]()).outputs_SBK, expected)
    parts = [*tb.stream(drawn, ALL[kind]())]
    same(torch.cat([predictive.outputs_SBK for predictive, _ in parts], dim=1), expected)
    same(torch.cat([targets for _, targets in parts]), Y)
    same(tb.evaluate(drawn, ALL[kind]()).targets, Y)


def test_a_sampler_of_some_rows_chooses_them() -> None:
    chosen = torch.tensor([9, 2, 4, 7, 1])
    some = loader(sampler=SubsetRandomSampler(chosen.tolist()), batch_size=2)
    exact = LinearGaussian(X[chosen], Y[chosen, 0], 0.8, 0.5)
    fitted: Any = tb.fit(model(), some, tb.Laplace("dense", prior="model"), start=exact.posterior()[0], callbacks=())
    assert float(fitted.log_evidence()[0]) == pytest.approx(exact.log_evidence(), rel=1e-9)
    drawn = tb.Functions(model(), normal(2, 3))
    same(tb.predict(drawn, some).outputs_SBK, tb.predict(drawn, X[chosen.sort().values]).outputs_SBK)
    assert as_source(model(), some, 4).num_data == 5


@pytest.mark.parametrize("kind", OTHERS)
def test_samplers_that_say_how_much_rows_count_are_refused_everywhere(kind: str) -> None:
    make, told = OTHERS[kind]
    made, drawn = model(), tb.Functions(model(), normal(2, 3))
    mode = LinearGaussian(X, Y[:, 0], 0.8, 0.5).posterior()[0]
    fitted = tb.fit(made, (X, Y), tb.Laplace("dense", prior="model"), start=mode, callbacks=())
    calls: list[Callable[[], Any]] = [
        lambda: tb.fit(made, make(), tb.MAP(epochs=1), callbacks=()),
        lambda: tb.fit(made, make(), CHAIN, callbacks=()),
        lambda: tb.evaluate(drawn, make()),
        lambda: tb.predict(drawn, make()),
        lambda: [*tb.stream(drawn, make())],
        lambda: tb.tune(fitted, on=make()),
        lambda: geometry.spectrum(made, make(), normal(3)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=told):
            call()


class Shrinking(IterableDataset[Any]):
    """A stream that has other rows at every pass."""

    def __init__(self, change: int) -> None:
        self.passes, self.change = 0, change

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from [(X[:4], Y[:4])] * (3 + self.change * (self.passes > 2))


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("method", [tb.MAP(epochs=3), CHAIN, tb.Laplace("dense", check_mode=False, prior="model")])
def test_a_pass_with_another_number_of_rows_is_refused(method: Any, change: int) -> None:
    start = normal(3) if method.needs.start is not None else None
    with pytest.raises(ValueError, match=r"as many rows as the first, 12|fewer batches than the 3"):
        tb.fit(model(), Shrinking(change), method, start=start, callbacks=())


def test_data_that_can_be_read_once_are_scored_and_not_fitted() -> None:
    drawn = tb.Functions(model(), normal(2, 3))
    once = lambda: ((x[None], y[None]) for x, y in zip(X, Y, strict=True))  # noqa: E731
    assert tb.evaluate(drawn, once()).metrics == pytest.approx(tb.evaluate(drawn, (X, Y)).metrics, rel=1e-9)
    with pytest.raises(TypeError, match="only once"):
        tb.fit(model(), once(), tb.MAP(epochs=1), callbacks=())


def batches_at_random() -> DataLoader:
    return DataLoader(Shaken(), batch_sampler=BatchSampler(RandomSampler(Shaken()), 4, drop_last=False))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning", "ignore::torchbayes.driver.checks.ChangingDataWarning")
@pytest.mark.parametrize("make", [lambda: DataLoader(Shaken(), batch_size=4, shuffle=True), batches_at_random])
@pytest.mark.parametrize("method", [tb.MAP(epochs=2), tb.SGLD(1, 9, 1, 1, step_size=1e-3, batch_size=4), CHAIN])
def test_two_runs_with_one_seed_are_equal_however_rows_are_drawn(method: Any, make: Callable[[], Any]) -> None:
    made, data = model(), make()
    states = torch.get_rng_state(), random.getstate()
    first, again = (tb.fit(made, data, method, seed=3, callbacks=()).sample(1) for _ in range(2))
    assert torch.equal(first, again)
    drawn = tb.Functions(made, first)
    assert tb.evaluate(drawn, data).metrics == tb.evaluate(drawn, data).metrics
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_resumed_run_reads_the_augmented_rows_that_it_would_have_read(tmp_path: Any) -> None:
    method = {"chains": 1, "burn_in": 0, "thin": 1, "step_size": 1e-3, "batch_size": 4}
    data = lambda: DataLoader(Shaken(), batch_size=4, shuffle=True)  # noqa: E731
    tb.fit(model(), data(), tb.SGLD(steps=4, **method), directory=tmp_path, callbacks=())
    resumed = tb.fit(
        model(), data(), tb.SGLD(steps=4, **method), directory=tmp_path, resume=True, steps=8, callbacks=()
    )
    whole = tb.fit(model(), data(), tb.SGLD(steps=8, **method), callbacks=())
    assert torch.equal(resumed.sample(8), whole.sample(8))


@pytest.mark.parametrize(
    "method",
    [
        CHAIN,
        tb.NUTS(1, 3, 1),
        tb.EllipticalSlice(1, 3, 1),
        tb.Laplace("dense", check_mode=False, prior="model"),
        tb.EP(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_rows_that_change_are_told_by_whatever_counts_each_once(method: Any) -> None:
    start = normal(3) if method.needs.start is not None else None
    for make in (lambda: DataLoader(Shaken(), batch_size=4), batches_at_random):
        with pytest.warns(ChangingDataWarning, match="differ from pass to pass"):
            tb.fit(model(), make(), method, start=start, callbacks=())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChangingDataWarning)
        tb.fit(model(), ALL["a sampler of batches"](), method, start=start, callbacks=())


@pytest.mark.slow
def test_workers_that_repeat_an_iterable_are_refused() -> None:
    data = DataLoader(Flow(), batch_size=4, num_workers=2)
    with pytest.raises(TypeError, match="2 workers of the loader yield the same rows"):
        tb.fit(model(), data, tb.MAP(epochs=1), callbacks=())
    with pytest.raises(TypeError, match="get_worker_info"):
        tb.evaluate(tb.Functions(model(), normal(2, 3)), data)
