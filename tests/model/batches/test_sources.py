"""Training data of every form, as minibatches with a member axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import torchbayes as tb
from tests.laws.cases import assert_same_tensors
from torchbayes.model.sources.sources import Source, as_source, even_bounds, orders
from torchbayes.randomness.seeds import member_seeds

ROWS, MEMBERS = 23, 3
# each row carries its own number, so that a batch shows which rows it holds
INPUTS = torch.arange(ROWS, dtype=torch.float64).unsqueeze(1).expand(-1, 2).contiguous()
TARGETS = torch.arange(ROWS, dtype=torch.float64)
SEEDS = member_seeds(4, MEMBERS)


class Rows(Dataset):
    """A map-style dataset."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index], TARGETS[index]


class Mappings(Rows):
    """A dataset whose rows are mappings, as those of Hugging Face are."""

    def __getitem__(self, index: int) -> Any:
        return {"inputs": INPUTS[index], "labels": TARGETS[index]}


class Flow(IterableDataset):
    """Rows without numbers, in one order."""

    def __iter__(self) -> Any:
        return iter(zip(INPUTS, TARGETS, strict=True))


BATCHES = [(INPUTS[a : a + 5], TARGETS[a : a + 5]) for a in range(0, ROWS, 5)]
SHUFFLED: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (INPUTS, TARGETS),
    "mapping": lambda: {"inputs": INPUTS, "targets": TARGETS},
    "numpy": lambda: (INPUTS.numpy(), TARGETS.numpy()),
    "tensor_dataset": lambda: TensorDataset(INPUTS, TARGETS),
    "dataset": Rows,
    "mappings": Mappings,
    "subset": lambda: Subset(Rows(), range(ROWS)),
    "loader": lambda: DataLoader(Rows(), batch_size=5, shuffle=True),
}
ORDERED: dict[str, Callable[[], Any]] = {
    "loader_in_order": lambda: DataLoader(Rows(), batch_size=5),
    "list": lambda: BATCHES,
    "mappings": lambda: [{"x": x, "target": y} for x, y in BATCHES],
    "iterable": lambda: DataLoader(Flow(), batch_size=5),
}


def regression() -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.0))


def source_of(data: Any, batch_size: int = 5) -> Source:
    return as_source(regression(), data, batch_size)


def seen(source: Source, epoch: int, skip: int = 0, seeds: list[int] = SEEDS) -> list[Tensor]:
    """The numbers of the rows in each batch, (M, B)."""
    actual = []
    for inputs, targets in source.epoch(seeds, epoch, skip):
        assert inputs.shape == (len(seeds), targets.shape[1], 2)
        assert torch.equal(inputs[..., 0], targets)
        actual.append(targets)
    return actual


@pytest.mark.parametrize("data", [*SHUFFLED.values(), *ORDERED.values()], ids=[*SHUFFLED, *ORDERED])
def test_every_row_once_per_epoch_and_member(data: Callable[[], Any]) -> None:
    source = source_of(data())
    source.check()
    assert (source.num_data, source.steps_per_epoch) == (ROWS, 5)
    for epoch in range(3):
        batches = seen(source, epoch)
        assert len(batches) == 5
        rows_MN = torch.cat(batches, dim=1).sort(dim=1).values
        torch.testing.assert_close(rows_MN, TARGETS.expand(MEMBERS, -1), rtol=0, atol=0)
    torch.testing.assert_close(torch.cat(list(source.inputs())), INPUTS, rtol=0, atol=0)
    passes = [list(source.batches()) for _ in range(2)]
    for read in passes:
        torch.testing.assert_close(torch.cat([batch.inputs for batch in read]), INPUTS, rtol=0, atol=0)
        torch.testing.assert_close(torch.cat([batch.targets for batch in read]), TARGETS, rtol=0, atol=0)


@pytest.mark.parametrize("data", SHUFFLED.values(), ids=SHUFFLED.keys())
def test_order_is_a_function_of_seed_member_and_epoch(data: Callable[[], Any]) -> None:
    source = source_of(data())
    for epoch in (0, 3):
        expected = orders(SEEDS, epoch, ROWS).double()
        torch.testing.assert_close(torch.cat(seen(source, epoch), dim=1), expected, rtol=0, atol=0)
        assert [batch.shape[1] for batch in seen(source, epoch)] == [4, 5, 4, 5, 5]
        # a member reads the same rows wherever it runs
        alone = seen(source, epoch, seeds=SEEDS[1:2])
        assert all(torch.equal(a[0], b[1]) for a, b in zip(alone, seen(source, epoch), strict=True))


@pytest.mark.parametrize("data", ORDERED.values(), ids=ORDERED.keys())
def test_given_order_is_kept_by_all_members(data: Callable[[], Any]) -> None:
    source = source_of(data())
    for epoch in (0, 2):
        torch.testing.assert_close(torch.cat(seen(source, epoch), dim=1), TARGETS.expand(MEMBERS, -1))


@pytest.mark.parametrize("data", [*SHUFFLED.values(), *ORDERED.values()], ids=[*SHUFFLED, *ORDERED])
def test_skipping_begins_in_the_middle_of_an_epoch(data: Callable[[], Any]) -> None:
    source = source_of(data())
    whole = seen(source, 1)
    for skip in range(6):
        rest = seen(source, 1, skip)
        assert len(rest) == 5 - skip
        assert all(torch.equal(a, b) for a, b in zip(rest, whole[skip:], strict=True))


def test_orders_differ_between_members_epochs_and_seeds() -> None:
    actual = [orders([seed], epoch, 50)[0] for seed in (*member_seeds(0, 3), *member_seeds(1, 3)) for epoch in range(3)]
    assert len({tuple(order.tolist()) for order in actual}) == 18
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in actual)
    assert torch.equal(orders([5, 6], 2, 50)[1], orders([6], 2, 50)[0])


def test_orders_are_uniform() -> None:
    """Each row comes first in one of N epochs on average: chi-squared with 9 degrees of freedom, 99.9 % point 27.9."""
    first = torch.stack([orders([3], epoch, 10)[0, 0] for epoch in range(2000)])
    counts = torch.bincount(first, minlength=10).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 27.9


@pytest.mark.parametrize(("rows", "size"), [(10, 3), (10, 10), (10, 11), (1, 1), (1000, 128), (129, 128), (7, 1)])
def test_batches_are_even(rows: int, size: int) -> None:
    bounds = torch.tensor(even_bounds(rows, size))
    sizes = bounds.diff()
    assert len(sizes) == -(-rows // size)
    assert int(sizes.sum()) == rows
    assert int(sizes.max()) <= size
    assert int(sizes.max() - sizes.min()) <= 1


def test_custom_collation_and_hook() -> None:
    def collate(rows: list[tuple[Tensor, Tensor]]) -> Any:
        return {"a": torch.stack([x for x, _ in rows]), "b": torch.stack([y for _, y in rows])}

    hook = lambda batch: (batch["a"], batch["b"])  # noqa: E731
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.0), batch=hook)
    source = as_source(model, DataLoader(Rows(), batch_size=5, collate_fn=collate), 5)
    source.check()
    torch.testing.assert_close(torch.cat(seen(source, 0), dim=1), TARGETS.expand(MEMBERS, -1), rtol=0, atol=0)


@pytest.mark.parametrize("data", SHUFFLED.values(), ids=SHUFFLED.keys())
def test_reading_leaves_global_random_state_alone(data: Callable[[], Any]) -> None:
    model, before = regression(), torch.get_rng_state()
    source = as_source(model, data(), 5)
    source.check()
    seen(source, 0)
    list(source.inputs())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # three epochs do not train
def test_forms_of_the_same_data_give_the_same_posterior() -> None:
    """Tables and datasets read the same rows in the same order."""
    method = tb.MAP(members=2, epochs=3, batch_size=5, plan="loop")
    model = regression()
    expected = tb.fit(model, (INPUTS / ROWS, TARGETS), method, callbacks=()).tensors()
    rows = [(x / ROWS, y) for x, y in zip(INPUTS, TARGETS, strict=True)]
    for data in (TensorDataset(INPUTS / ROWS, TARGETS), DataLoader(rows, batch_size=5, shuffle=True)):  # type: ignore[arg-type]
        assert_same_tensors(tb.fit(model, data, method, callbacks=()).tensors(), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # nor do these
def test_workers_change_nothing() -> None:
    method, model = tb.MAP(epochs=2, plan="loop"), regression()
    actual = [
        tb.fit(model, DataLoader(Rows(), batch_size=5, shuffle=True, num_workers=n), method, callbacks=()).tensors()
        for n in (0, 1)
    ]
    assert_same_tensors(*actual)


class Augmented(Rows):
    """Rows with noise drawn from PyTorch's global generator, as image augmentations do."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index] + torch.randn(2, dtype=torch.float64), TARGETS[index]


@pytest.mark.slow
def test_augmentation_in_workers_is_seeded() -> None:
    source = source_of(DataLoader(Augmented(), batch_size=5, num_workers=1))
    first, second = (torch.cat([b.inputs for b in source.epoch([3], 0)], dim=1) for _ in range(2))
    other = torch.cat([b.inputs for b in source.epoch([3], 1)], dim=1)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["dataset", "batches"])
@pytest.mark.parametrize(("column", "value", "said"), [(0, float("nan"), "must be finite"), (1, 7, r"lie in 0..2.*7")])
def test_a_bad_row_in_a_later_batch_is_named(kind: str, column: int, value: float, said: str) -> None:
    rows = [torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3]
    rows[column][-1] = value
    pairs = [(rows[0][i : i + 4], rows[1][i : i + 4]) for i in range(0, 12, 4)]
    data = pairs if kind == "batches" else [(x, y) for xs, ys in pairs for x, y in zip(xs, ys, strict=True)]
    model = tb.Model(torch.nn.Linear(4, 3), tb.likelihoods.Categorical())
    source = DataLoader(data, batch_size=4) if kind == "dataset" else data  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        tb.fit(model, source, tb.MAP(epochs=1), callbacks=())
