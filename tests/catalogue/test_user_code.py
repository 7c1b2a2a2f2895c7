"""What the code of users does when it is called: settings of any name, failures in one sentence."""

import numpy as np
import pytest
import torch
from torch import distributions

import torchbayes as tb
from torchbayes.catalogue import imports
from torchbayes.catalogue.models import build_likelihood
from torchbayes.catalogue.problem import Problem

CODE = """
import sys
import numpy as np
import torch
from torch import distributions, nn

def table(path=None, made=None, rows=60):
    inputs = np.random.default_rng(rows).normal(size=(rows, 2))
    return inputs, inputs[:, 0] + (path or 0) + (made or 0)

def classes():
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no")

def leaves():
    sys.exit(3)

def fails_below():
    return torch.zeros(2) @ torch.zeros(3)

def four(input_shape, num_outputs):
    return nn.Linear(input_shape[0], 4)

net = nn.Linear(2, 2)

def heavy(outputs):
    return distributions.Laplace(outputs[..., 0], 0.3)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module with this code."""
    name = f"own_code_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_settings_may_have_any_name(own):
    data = Problem(f"{own}:table", data_settings={"path": 3, "made": 4}, likelihood="gaussian", network="mlp").load()
    assert data.target_standardise is not None
    plain = np.random.default_rng(60).normal(size=(60, 2))[:, 0].mean()
    assert float(data.target_standardise.mean) == pytest.approx(plain + 7, abs=0.2)


def test_code_that_ends_the_program_is_said(own):
    with pytest.raises(ValueError, match=r"leaves, called with \(\), fails: SystemExit, 3, at line 16 of"):
        imports.call(imports.load_path(f"{own}:leaves"), f"{own}:leaves")


def test_a_failure_in_a_library_is_placed_in_the_users_code(own):
    with pytest.raises(ValueError, match=rf"RuntimeError, .*, at line 19 of .*{own}\.py\. Correct it"):
        imports.call(imports.load_path(f"{own}:fails_below"), f"{own}:fails_below")


def test_a_network_that_is_made_already_is_refused(own):
    with pytest.raises(TypeError, match="net must be a function or a class; got"):
        Problem(f"{own}:classes", f"{own}:net").setup()


def test_a_network_with_more_outputs_than_classes_is_refused(own):
    with pytest.raises(ValueError, match=r"four gives 4 outputs, and .* has 2 classes"):
        Problem(f"{own}:classes", f"{own}:four").setup()


def test_a_function_that_returns_a_distribution_is_a_likelihood(own):
    likelihood = build_likelihood(f"{own}:heavy", {})
    outputs, targets = torch.tensor([[0.2], [1.0]]), torch.tensor([0.5, 0.4])
    expected = distributions.Laplace(outputs[:, 0], 0.3).log_prob(targets)
    assert isinstance(likelihood, tb.likelihoods.Custom)
    torch.testing.assert_close(likelihood.log_prob(outputs, targets), expected)
