"""Sums over the data against explicit Jacobians, for every network, however the rows are cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torchbayes as tb
from tests.covering import with_studies
from tests.curvature import oracle
from tests.curvature.networks import NETS
from tests.curvature.oracle import MEMBERS, problem, truth
from tests.oracles import assert_close, classes, normal

CUTS: dict[str, tuple[int, list[int] | None]] = {
    "one batch": (2**24, None),
    "uneven batches": (2**24, [3, 2]),
    "row by row": (1, None),
    "batches of one row": (2**24, [4, 1]),
}
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
SOME = (
    *(
        "mlp",
        "linear",
        "tied",
        "linear attention",
        "in place",
        "twice",
        "layer norm",
        "filter response norm",
        "embedding",
    ),
    *("groups", "lstm", "a number", "outputs at places", "batch norm"),
)


def cut_in_turn(first: int, one_in: int = 1) -> Any:
    """Every network, or one in so many, with one cut, the next with the next cut; the others are studies."""
    cuts, run = [*CUTS], [*NETS][::one_in]
    return with_studies([(name, cuts[(first + i) % len(cuts)]) for i, name in enumerate(run)], NETS, CUTS)


def actual(name: str, *, chunk: int = 2**24, sizes: list[int] | None = None, prior: Any = None, **settings: Any) -> Any:
    """Return the posterior that the package finds."""
    inputs, targets, weights_MD, buffers_M = problem(name)
    model = oracle.model_of(NETS[name], targets, prior)
    method = tb.Laplace(chunk=chunk, check_mode=False, **{"prior": "model", **settings})
    return oracle.fitted(method, model, weights_MD, (inputs, targets), sizes=sizes, buffers_M=buffers_M)


@pytest.mark.parametrize(("name", "cut"), cut_in_turn(1))
def test_dense_ggn(name: str, cut: str):
    chunk, sizes = CUTS[cut]
    assert_close(oracle.data_part(actual(name, structure="dense", chunk=chunk, sizes=sizes)), truth(name, "ggn"))


@pytest.mark.parametrize(("name", "cut"), cut_in_turn(2, one_in=2))  # of the Jacobians above
def test_diagonal_ggn(name: str, cut: str):
    chunk, sizes = CUTS[cut]
    expected = torch.diag_embed(truth(name, "ggn").diagonal(dim1=1, dim2=2))
    assert_close(oracle.data_part(actual(name, structure="diagonal", chunk=chunk, sizes=sizes)), expected)


@pytest.mark.parametrize(  # in turn, as the Jacobians are the same
    ("name", "structure"),
    with_studies([(n, ("dense", "diagonal")[i % 2]) for i, n in enumerate(SOME)], SOME, ("dense", "diagonal")),
)
def test_empirical_fisher(name: str, structure: str):
    expected = truth(name, "empirical")
    expected = expected if structure == "dense" else torch.diag_embed(expected.diagonal(dim1=1, dim2=2))
    posterior = actual(name, structure=structure, curvature="empirical", sizes=[3, 2])
    assert_close(oracle.data_part(posterior), expected)


# networks whose Hessian is more than a sum over layers of one call each; the dense Gauss-Newton form has them all
TWISTED = ("mlp", "tied", "twice", "layer norm", "groups", "outputs at places", "batch norm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TWISTED else pytest.mark.study) for name in SOME]
)
def test_exact_hessian(name: str):
    narrow = tb.priors.Normal(scale=0.02)  # a Hessian may have negative eigenvalues, and the sum must not
    posterior = actual(name, structure="dense", curvature="hessian", sizes=[3, 2], prior=narrow)
    assert_close(oracle.data_part(posterior), truth(name, "hessian"), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_units_of_a_prior_that_differs_between_weights(structure: str):
    prior = {"0.weight": tb.priors.Normal(scale=0.3), "*.bias": tb.priors.Normal(scale=2.0), "*": tb.priors.Normal()}
    posterior = actual("mlp", structure=structure, prior=prior)
    stds_D = torch.tensor([0.3] * 20 + [2.0] * 5 + [1.0] * 15 + [2.0] * 3, dtype=torch.float64)
    assert_close(posterior.reference_MD, (stds_D**-2).expand(MEMBERS, -1))
    expected = truth("mlp", "ggn")
    expected = expected if structure == "dense" else torch.diag_embed(expected.diagonal(dim1=1, dim2=2))
    assert_close(oracle.data_part(posterior), expected)
    covariance = torch.linalg.inv(expected + torch.diag(stds_D**-2))
    assert_close(posterior.gaussian.covariance.dense(), covariance, rtol=1e-9)


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_a_tempered_likelihood_has_its_curvature_divided_by_the_temperature(tempering: Any):
    net, (inputs, targets, weights_MD, _) = NETS["mlp"], problem("mlp")
    likelihood = tb.likelihoods.Categorical()
    model = tb.Model(net.module(), likelihood, tb.priors.Normal(scale=2.0), temperature=0.25, tempering=tempering)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    posterior = oracle.fitted(method, model, weights_MD, (inputs, targets))
    prior = torch.eye(weights_MD.shape[1], dtype=torch.float64) / 4 / (0.25 if tempering == "joint" else 1)
    expected = torch.linalg.inv(4 * truth("mlp", "ggn") + prior)
    assert_close(posterior.gaussian.covariance.dense(), expected, rtol=1e-9)


@pytest.mark.parametrize("cut", ["one batch", pytest.param("row by row", marks=pytest.mark.study)])
def test_sampled_fisher_has_the_ggn_as_its_mean_and_draws_anew_for_every_row(cut: str):
    samples, (chunk, sizes) = 600, CUTS[cut]
    net, (inputs, _, weights_MD, _) = NETS["mlp"], problem("mlp")
    posterior = actual("mlp", structure="diagonal", curvature="fisher", samples=samples, chunk=chunk, sizes=sizes)
    for m, own_D in enumerate(oracle.data_part(posterior).diagonal(dim1=1, dim2=2)):
        outputs, jacobian_BKD = oracle.forward(net, weights_MD[m], inputs), oracle.jacobian(net, weights_MD[m], inputs)
        probs_BK = outputs.softmax(-1)
        scores_BYK = torch.eye(3, dtype=torch.float64) - probs_BK.unsqueeze(1)
        squares_BYD = torch.einsum("byk,bkd->byd", scores_BYK, jacobian_BKD).square()
        mean_BD = torch.einsum("by,byd->bd", probs_BK, squares_BYD)
        variance_D = (torch.einsum("by,byd->bd", probs_BK, squares_BYD**2) - mean_BD**2).sum(0) / samples
        assert_close(mean_BD.sum(0), truth("mlp", "ggn")[m].diagonal())
        score_D = (own_D - mean_BD.sum(0)) / variance_D.sqrt()
        assert score_D.abs().max() < 5
        assert score_D.abs().max() > 0.1  # an estimate, not the thing itself


def test_sampled_fisher_draws_anew_for_every_batch():
    inputs, targets, weights_MD, _ = problem("mlp")
    twice = torch.cat([inputs, inputs]), torch.cat([targets, targets])
    method = tb.Laplace("diagonal", "fisher", prior="model", check_mode=False)
    model, rows = oracle.model_of(NETS["mlp"], targets), len(targets)
    once = oracle.fitted(method, model, weights_MD, (inputs, targets)).curvature.diagonal()
    both = oracle.fitted(method, model, weights_MD, twice, sizes=[rows, rows]).curvature.diagonal()
    assert not torch.isclose(both, 2 * once).all(1).any()


def test_sampled_fisher_depends_on_the_seed_alone():
    dense = [actual("mlp", structure="dense", curvature="fisher").curvature.dense() for _ in range(2)]
    assert torch.equal(*dense)
    assert not torch.allclose(dense[0], actual("mlp", structure="dense").curvature.dense())


@pytest.mark.parametrize("structure", ["dense", "diagonal", "kronecker", "low_rank"])
def test_learned_noise_is_a_weight_of_its_own(structure: str):
    rows, scale = 6, 0.3
    model = tb.Model(nn.Linear(3, 2).double(), tb.likelihoods.Gaussian("learned"))
    inputs, weights_MD = (
        normal(rows, 3),
        torch.cat([normal(1, 8), torch.tensor([[math.log(scale)]], dtype=torch.float64)], dim=1),
    )
    method = tb.Laplace(structure=structure, check_mode=False, prior="model")  # type: ignore[arg-type]
    posterior = oracle.fitted(method, model, weights_MD, (inputs, normal(rows, 2, seed=1)))
    dense = oracle.data_part(posterior)[0]
    assert_close(dense[8, 8], 2.0 * rows * 2)  # Fisher information of a log scale: 2 for every value
    assert not dense[8, :8].any()
    design = torch.cat([inputs, torch.ones(rows, 1, dtype=torch.float64)], dim=1)
    block = design.T @ design / scale**2
    own = [0, 1, 2, 6], [3, 4, 5, 7]
    for unit in own:
        found_block = dense[unit][:, unit]
        found_block, expected = (
            (found_block.diagonal(), block.diagonal()) if structure == "diagonal" else (found_block, block)
        )
        assert_close(found_block, expected, rtol=1e-9)


@pytest.mark.parametrize("structure", ["diagonal", "ekfac"])
@pytest.mark.parametrize("name", ["groups", "twice", "linear attention", "biases of convolutions"])
def test_columns_and_rows_of_shared_layers_may_be_taken_apart(
    name: str, structure: str, monkeypatch: pytest.MonkeyPatch
):
    expected = actual(name, structure=structure).curvature.dense()
    monkeypatch.setattr("torchbayes.curvature.parts.COLUMNS_AT_ONCE", 2)
    monkeypatch.setattr("torchbayes.curvature.parts._CACHED", 1)
    assert_close(actual(name, structure=structure).curvature.dense(), expected)


class Largest(TorchDispatchMode):
    """Remember the largest tensor that an operation gives."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // 8)
        return made


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "ekfac", "low_rank"])
def test_no_jacobian_of_all_rows_and_outputs_is_formed(structure: str):
    rows, outputs, chunk = 150, 10, 2**17
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 60), nn.Tanh(), nn.Linear(60, outputs)
    ).double()
    model = tb.Model(module, tb.likelihoods.Categorical())
    weights_MD = model.given_weights().unsqueeze(0)
    data = normal(rows, 1, 8, 8), classes(rows, outputs)
    method = tb.Laplace(structure=structure, chunk=chunk, rank=4, check_mode=False, prior="model")  # type: ignore[arg-type]
    with Largest() as largest:
        oracle.fitted(method, model, weights_MD, data)
    size = weights_MD.shape[1]
    bound = max(2 * chunk, 14 * size)  # a low rank keeps four directions and ten more
    assert rows * outputs * size > 50 * bound
    assert largest.numbers < bound


@pytest.mark.parametrize(
    "structure",
    ["diagonal", "kronecker", *(pytest.param(each, marks=pytest.mark.study) for each in ("ekfac", "low_rank"))],
)
def test_the_exact_curvature_beside_a_structure_is_the_dense_one(structure: Any) -> None:
    """Of a regression with fixed noise, under any prior, in batches, for all members; of nothing else."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data, modes = (normal(20, 3), normal(20, 2, seed=1)), 0.4 * normal(2, 26, seed=2)
    actual = {}
    for name, likelihood in (
        ("fixed", tb.likelihoods.Gaussian((0.3, 0.5))),
        ("learned", tb.likelihoods.Gaussian("learned")),
    ):
        model = tb.Model(module, likelihood, tb.priors.Normal(0.6))
        start = modes if name == "fixed" else torch.cat([modes, torch.zeros(2, 1).double()], dim=1)
        for kind in (structure, "dense"):
            method = tb.Laplace(kind, batch_size=6, check_mode=False, prior="model")
            actual[name, kind] = tb.fit(model, data, method, start=start, callbacks=())
    assert_close(actual["fixed", structure].exact.dense(), actual["fixed", "dense"].curvature.dense())
    assert [actual[key].exact for key in actual if key != ("fixed", structure)] == [None] * 3
