"""Rows without targets, as they come in deployment: predict and stream take them in every form that a loader gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb

X = normal(10, 3).float()
Y = torch.arange(10) % 2


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.linear(values if mask is None else values * mask)


def posterior(**settings: Any) -> Any:
    model = tb.Model(Named(), tb.likelihoods.Categorical(), **settings)
    weights_MD = model.given_weights().expand(3, -1) + normal(3, model.layout.size).float()
    return tb.Draws(model, weights_MD.unsqueeze(1))


MASK = torch.tensor([1.0, 0.0, 1.0]).expand(10, 3)
ROWS = [{"values": x, "mask": m} for x, m in zip(X, MASK, strict=True)]
LABELLED = [{**row, "labels": y} for row, y in zip(ROWS, Y, strict=True)]
LOADERS: dict[str, tuple[Any, bool]] = {
    "tensors": (DataLoader(X, batch_size=4), False),  # type: ignore[arg-type]
    "a dataset of one tensor": (DataLoader(TensorDataset(X), batch_size=4), False),
    "dicts": (DataLoader(ROWS, batch_size=4), True),  # type: ignore[arg-type]
    "labelled dicts": (DataLoader(LABELLED, batch_size=4), True),  # type: ignore[arg-type]
    "pairs": (DataLoader(TensorDataset(X, Y), batch_size=4), False),
    "a list of tensors": (list(X.split(4)), False),
    "a list of inputs by name": ([{"inputs": part} for part in X.split(4)], False),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_without_labels_are_predicted(name: str) -> None:
    loader, masked = LOADERS[name]
    actual = posterior()
    expected = tb.predict(actual, {"values": X, "mask": MASK} if masked else X).probs
    streamed = [*tb.stream(actual, loader)]
    assert_close(torch.cat([predictive.probs for predictive, _ in streamed]), expected)
    assert all((targets is None) == ("labelled" not in name and name != "pairs") for _, targets in streamed)
    if isinstance(loader, DataLoader):
        assert_close(tb.predict(actual, loader).probs, expected)


def test_targets_beside_named_inputs_are_left_out() -> None:
    named = {"values": X, "mask": MASK}
    assert_close(tb.predict(posterior(), {**named, "labels": Y}).probs, tb.predict(posterior(), named).probs)
    assert_close(tb.predict(posterior(), {"x": X, "target": Y}).probs, tb.predict(posterior(), X).probs)


def test_rows_without_targets_are_not_scored() -> None:
    with pytest.raises(TypeError, match="have no targets to score by"):
        tb.evaluate(posterior(), DataLoader(ROWS, batch_size=4))  # type: ignore[arg-type]


def test_a_hook_reads_every_batch() -> None:
    actual = posterior(batch=lambda rows: (rows[:, :3], rows[:, 3].long()))
    joined = torch.cat([X, Y[:, None].float()], dim=1)
    assert_close(tb.predict(actual, DataLoader(joined, batch_size=4)).probs, tb.predict(actual, X).probs)  # type: ignore[arg-type]


class Graphs:
    """A batch like those of graph libraries: an object with keys that is no mapping, whose rows are numbers."""

    def __init__(self, parts: list[tuple[Tensor, int]]) -> None:
        self.x = torch.cat([x for x, _ in parts])
        self.y = torch.tensor([y for _, y in parts])
        self.batch = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(x) for x, _ in parts]))
        self.num_graphs = len(parts)

    def keys(self) -> list[str]:
        return ["x", "y", "batch"]

    def __getitem__(self, key: str) -> Tensor:
        return getattr(self, key)

    def to(self, *_: Any) -> Graphs:
        return self


class GraphLoader(DataLoader):
    """A subclass with a collation of its own."""

    def __init__(self, graphs: Any, batch_size: int) -> None:
        super().__init__(graphs, batch_size=batch_size, collate_fn=Graphs)


class Pooled(nn.Module):
    """The mean over the nodes of each graph, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, rows: Tensor, x: Tensor, batch: Tensor) -> Tensor:
        made = self.linear(x)
        total = made.new_zeros(int(batch.max()) + 1, 2).index_add(0, batch, made)
        return (total / batch.bincount().unsqueeze(1))[rows]


def test_batches_of_graphs_go_through_the_hook() -> None:
    def read(graphs: Graphs) -> tuple[Any, Tensor]:
        return {"rows": torch.arange(graphs.num_graphs), "x": graphs.x, "batch": graphs.batch}, graphs.y

    graphs = [(normal(2 + n % 3, 3, seed=n).float(), n % 2) for n in range(8)]
    model = tb.Model(Pooled(), tb.likelihoods.Categorical(), batch=read, shared=["x", "batch"])
    loader = GraphLoader(graphs, 3)
    for method in (tb.MAP(epochs=2), tb.Laplace(structure="diagonal", prior="model", check_mode=False)):
        actual = tb.fit(model, loader, method, start=model.given_weights(), callbacks=())
        whole = tb.predict(actual, GraphLoader(graphs, 8)).probs
        assert_close(tb.predict(actual, loader).probs, whole, rtol=1e-5)
        assert tb.evaluate(actual, loader).metrics["nll"] > 0
