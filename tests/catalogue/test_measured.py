"""Settings of a network that are measured on the training rows."""

from pathlib import Path
from typing import Any

import pytest

from torchbayes.catalogue.problem import Problem
from torchbayes.model.model import Batch
from torchbayes.networks import ColumnEncoding


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 60 rows with a number, a category and missing numbers."""
    lines = [f"{i * 37 % 101 / 7},{'ab'[i % 2]},{'' if i % 9 == 0 else i * 13 % 53 / 3},{i * 0.37}" for i in range(60)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["size,kind,weight,y", *lines]))
    return path


def test_the_network_for_tables_has_the_encoding_of_the_training_rows(table: Path):
    setup = Problem(str(table), "tabular", {"hidden": [8]}, "gaussian", target="y").setup()
    inputs = setup.data.train.inputs
    network: Any = setup.model.network.module
    encoding = network[1]
    expected = ColumnEncoding.fit(inputs)
    assert len(encoding.column) == len(expected.column) > 0
    assert encoding(inputs).equal(expected(inputs))
    # size and weight have knots; the two values of the category and the mark of missing weights have none
    assert sorted(set(encoding.column.tolist())) == [i for i in range(5) if len(inputs[:, i].unique()) > 2]


def test_other_networks_are_measured_nothing_for(table: Path):
    setup = Problem(str(table), "mlp", {"hidden": [8]}, "gaussian", target="y").setup()
    assert not list(setup.model.network.module.buffers())


def test_rows_of_other_shapes_are_flattened():
    setup = Problem("digits", "tabular", {"hidden": [8]}, train_size=100).setup()
    outputs = setup.model.check(Batch(*(rows[:3] for rows in setup.data.train)))
    assert outputs.shape == (3, 10)
    assert outputs.isfinite().all()
