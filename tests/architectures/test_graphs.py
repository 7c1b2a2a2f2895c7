"""Graphs of PyTorch Geometric: rows are numbers, of nodes or of graphs, and what they are numbers in is shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.architectures.helpers import METHODS, check, ggn, precision
from tests.covering import with_studies
from tests.oracles import assert_close, classes, normal

_data, _loader, _layers = (pytest.importorskip(f"torch_geometric.{room}") for room in ("data", "loader", "nn"))
Batch, Data, DataLoader = _data.Batch, _data.Data, _loader.DataLoader
GCNConv, global_mean_pool = _layers.GCNConv, _layers.global_mean_pool

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
NODES, GRAPHS = 10, 8
SIZES = [3 + number * 5 % 4 for number in range(GRAPHS)]


class NodeClassifier(nn.Module):
    """Classes of the nodes with these numbers, in a graph that all share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(3, 4), GCNConv(4, 3)

    def forward(self, nodes: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).tanh(), edge_index)[nodes]


class GraphClassifier(nn.Module):
    """Classes of the graphs with these numbers, in a list that all share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(3, 4), nn.Linear(4, 2)

    def forward(self, rows: Tensor, graphs: list[Any]) -> Tensor:
        joined: Any = Batch.from_data_list([graphs[row] for row in rows.tolist()])
        return self.head(global_mean_pool(self.conv(joined.x, joined.edge_index).tanh(), joined.batch))


class Pooled(nn.Module):
    """Classes of the graphs with these numbers in a batch of PyTorch Geometric."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(3, 4), nn.Linear(4, 2)

    def forward(self, rows: Tensor, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.conv(x, edge_index).tanh(), batch))[rows]


def edges(nodes: int, seed: int) -> Tensor:
    return classes(4 * nodes, nodes, seed=seed).view(2, -1)


def graphs(dtype: torch.dtype = torch.float64) -> list[Any]:
    return [
        Data(x=normal(size, 3, seed=n).to(dtype), edge_index=edges(size, n), y=classes(1, 2, seed=n))
        for n, size in enumerate(SIZES)
    ]


def task(name: str) -> tuple[tb.Model, dict[str, Any]]:
    torch.manual_seed(6)
    likelihood = tb.likelihoods.Categorical()
    if name == "nodes":
        labels = classes(6, 3, seed=2)  # of the first nodes; the others have none
        rows = {"nodes": torch.arange(6), "x": normal(NODES, 3), "edge_index": edges(NODES, 3), "labels": labels}
        return tb.Model(NodeClassifier().double(), likelihood, shared=["x", "edge_index"]), rows
    actual = graphs()
    rows = {"rows": torch.arange(GRAPHS), "graphs": actual, "labels": torch.cat([g.y for g in actual])}
    return tb.Model(GraphClassifier().double(), likelihood, shared="graphs"), rows


EVERY = [("nodes", "ivon"), ("nodes", "diagonal"), ("graphs", "vi_by_layers"), ("graphs", "hmc")]


@pytest.mark.parametrize(("name", "method"), with_studies(EVERY, ["nodes", "graphs"], METHODS))
def test_every_method(name: str, method: str, tmp_path: Path):
    model, rows = task(name)
    check(model, method, rows, tmp_path)


@pytest.mark.parametrize("name", ["nodes", "graphs"])
def test_laplace_is_that_of_the_network_by_autograd(name: str):
    model, rows = task(name)
    start = model.given_weights()
    exact = ggn(model, model.unpack(rows).inputs, 3 if name == "nodes" else 2)
    dense: Any = tb.fit(model, rows, tb.Laplace(structure="dense", check_mode=False, prior="model"), start=start)
    assert_close(precision(dense), exact + torch.eye(len(exact)), rtol=1e-8, atol=1e-8)
    diagonal: Any = tb.fit(model, rows, tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=start)
    assert_close(precision(diagonal).diagonal(), exact.diagonal() + 1, rtol=1e-8)


def test_batches_of_a_loader_through_the_hook():
    def read(batch: Any) -> tuple[Any, Tensor]:
        inputs = {"rows": torch.arange(batch.num_graphs), "x": batch.x}
        return {**inputs, "edge_index": batch.edge_index, "batch": batch.batch}, batch.y

    torch.manual_seed(6)
    module, loader = Pooled().double(), DataLoader(graphs(), batch_size=3)
    model = tb.Model(module, tb.likelihoods.Categorical(), batch=read, shared=["x", "edge_index", "batch"])
    whole, rows = task("graphs")
    for method in (tb.MAP(epochs=3, batch_size=3), tb.Laplace(structure="dense", check_mode=False, prior="model")):
        start = model.given_weights()
        ours, theirs = tb.fit(model, loader, method, start=start), tb.fit(whole, rows, method, start=start)
        actual, expected = tb.evaluate(ours, loader).metrics, tb.evaluate(theirs, rows).metrics
        assert actual.keys() == expected.keys()
    assert_close(precision(ours), precision(theirs), rtol=1e-8, atol=1e-10)
    members = tb.fit(model, list(loader), tb.MAP(members=2, epochs=2))
    assert tb.predict(members, DataLoader(graphs(), batch_size=4)).probs.shape == (GRAPHS, 2)
    with pytest.raises(ValueError, match="give a list of batches"):
        tb.fit(model, DataLoader(graphs(), batch_size=3, shuffle=True), tb.MAP(members=2, epochs=1))


def test_a_batch_of_graphs_without_a_hook_is_refused():
    model = tb.Model(GraphClassifier(), tb.likelihoods.Categorical())
    for data in (DataLoader(graphs(), batch_size=4), Batch.from_data_list(graphs())):
        with pytest.raises(TypeError, match=r"in a batch of type DataBatch\. Give Model `batch=`"):
            tb.fit(model, data, tb.MAP(epochs=1))


def test_a_batch_of_graphs_without_row_numbers_is_refused_with_the_remedy():
    loader, remedy = DataLoader(graphs(), batch_size=4), r"let the inputs be row numbers, torch\.arange\(B\), next to"
    whole = tb.Model(Pooled(), tb.likelihoods.Categorical(), batch=lambda batch: (batch, batch.y))
    with pytest.raises(TypeError, match=rf"got DataBatch\(.*{remedy}"):
        tb.fit(whole, loader, tb.MAP(epochs=1))
    names = ["x", "edge_index", "batch"]
    split = tb.Model(
        Pooled(), tb.likelihoods.Categorical(), batch=lambda b: ({n: b[n] for n in names}, b.y), shared=names
    )
    with pytest.raises(
        ValueError, match=rf"names all inputs, 'x', 'edge_index', 'batch', so none has rows\. .*{remedy}"
    ):
        tb.fit(split, loader, tb.MAP(epochs=1))
