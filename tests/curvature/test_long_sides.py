"""Kronecker factors of long sides at low rank: against whole ones, against formulas written out densely, and files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.curvature import oracle
from tests.curvature.networks import Columns
from tests.curvature.test_sums import Largest
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature import factors
from torchbayes.curvature.discovery import layer_support, network_layers
from torchbayes.curvature.factors import long_sides
from torchbayes.curvature.kfac import KroneckerSums
from torchbayes.linalg import DenseCurvature
from torchbayes.methods.laplace import curvature_pass
from torchbayes.posteriors.files import read_header

pytestmark = pytest.mark.filterwarnings("ignore:the Kronecker factors of long sides are kept at low rank")

ROWS, LONG, OUTPUTS = 8, 40, 3


class Adapted(nn.Module):
    """Frozen queries, keys and values of one width with adapters of rank r, as PEFT makes them."""

    def __init__(self, r: int = 2, places: bool = False) -> None:
        super().__init__()
        names = ("query", "key", "value")
        self.base = nn.ModuleDict({name: nn.Linear(LONG, LONG).requires_grad_(False) for name in names})
        self.lora_A = nn.ModuleDict({name: nn.Linear(LONG, r, bias=False) for name in names})
        self.lora_B = nn.ModuleDict({name: nn.Linear(r, LONG, bias=False) for name in names})
        self.head = nn.Linear(LONG, OUTPUTS).requires_grad_(False)
        self.places = places

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            torch.tanh(self.base[n](inputs) + self.lora_B[n](self.lora_A[n](inputs))) for n in ("query", "key", "value")
        )
        hidden = query * key + value
        return self.head(hidden.mean(1) if self.places else hidden)


def adapted(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return Adapted(**settings).double()


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(LONG, 3), nn.Tanh(), nn.Linear(3, OUTPUTS)).double()


def data(rows: int = ROWS, places: int | None = None) -> tuple[Tensor, Tensor]:
    shape = (rows, LONG) if places is None else (rows, places, LONG)
    return normal(*shape, seed=3) * torch.logspace(0, -1, LONG).double(), classes(rows, OUTPUTS)


def fitted(module: nn.Module, seen: Any, rank: int | None = None, **options: Any) -> tb.LaplacePosterior:
    """What is found at the module's own weights; whole factors by default, because these networks are small."""
    settings: dict[str, Any] = {"random": "*lora*" if isinstance(module, Adapted) else "*"}
    settings |= {name: options.pop(name) for name in ("random", "likelihood") if name in options}
    likelihood = settings.pop("likelihood", tb.likelihoods.Categorical())
    model = tb.Model(module, likelihood, options.pop("prior_of", tb.priors.Normal(0.7)), **settings)
    method = tb.Laplace(rank=rank, **{"prior": "model", "check_mode": False, **options})
    return oracle.fitted(method, model, model.given_weights().unsqueeze(0), seen)


def kept(actual: tb.LaplacePosterior) -> list[tuple[int, ...]]:
    """Numbers of columns of the bases of each block, rows first."""
    blocks: Any = actual.curvature
    return [tuple(b.shape[-1] for b in (block.rows_MGOO, block.columns_MGII)) for block in blocks.blocks]


def assert_same_posterior(actual: tb.LaplacePosterior, exact: tb.LaplacePosterior, rtol: float = 1e-10) -> None:
    """Precision, evidence, effective parameters and variances of outputs agree."""
    assert_close(actual.curvature.dense(), exact.curvature.dense(), rtol=rtol, atol=rtol)
    assert_close(actual.log_evidence(), exact.log_evidence(), rtol=rtol)
    assert_close(actual.effective_parameters(), exact.effective_parameters(), rtol=rtol)


# --- which sides are long


def of(module: nn.Module, random: str = "*") -> Any:
    model = tb.Model(module, tb.likelihoods.Categorical(), random=random)
    inputs = normal(4, LONG).to(model.network.dtype)
    return network_layers(model, layer_support(model, model.given_weights(), inputs))


def test_sides_are_long_by_the_other_side_and_by_the_rank():
    network = of(adapted(), "*lora*")
    names = [f"{n}.{side}" for n, side in enumerate(3 * ["inputs"] + 3 * ["outputs"])]  # of A, then of B
    assert long_sides(network, 3) == dict.fromkeys(names, 3)
    assert long_sides(network, 10) == {}  # 40 is not more than 4 times 10
    assert long_sides(of(adapted(r=5), "*lora*"), 3) == {}  # 40 is less than 10 times 5
    assert long_sides(network, 0) == long_sides(network, None) == {}


def test_without_a_rank_only_large_factors_are_not_kept_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(factors, "RANK", 4)
    network = of(adapted(), "*lora*")
    monkeypatch.setattr(factors, "WHOLE", 6 * LONG**2)
    assert long_sides(network, None) == {}
    monkeypatch.setattr(factors, "WHOLE", 6 * LONG**2 - 1)
    assert set(long_sides(network, None).values()) == {4}
    assert len(long_sides(network, None)) == 6


# --- exact where the rank allows it


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("places", [None, 2])
def test_factors_of_full_rank_are_the_whole_ones(places: int | None, sharing: Any):
    # softmax gradients of two classes are independent, at each place of a row
    module, seen = adapted(places=places is not None), data(2 if places else 4, places)
    exact, actual = (fitted(module, seen, rank, sharing=sharing) for rank in (None, 9))
    assert kept(exact) == 3 * [(2, LONG)] + 3 * [(LONG, 2)]
    assert kept(actual) == 3 * [(2, 9)] + 3 * [(9, 2)]
    assert_same_posterior(actual, exact)
    inputs = data(5, places)[0] if places is None else data(5, 3)[0]
    for link in ("probit", "samples"):
        variances = [tb.predict(tb.Linearised(p, link), inputs, seed=2).probs for p in (actual, exact)]
        assert_close(*variances, rtol=1e-9)


def test_evidence_chooses_the_same_prior():
    module, seen = adapted(), data(4)
    for prior in ("scalar", "layer"):
        exact, actual = (fitted(module, seen, rank, prior=prior) for rank in (None, 9))
        assert_close(actual.strength_D, exact.strength_D, rtol=1e-7)
        assert_close(actual.log_evidence(), exact.log_evidence(), rtol=1e-9)


def test_one_row_and_a_rank_of_one():
    module, seen = adapted(), data(1)
    exact, actual = (fitted(module, seen, rank) for rank in (None, 2))
    assert_same_posterior(actual, exact)
    single = fitted(module, data(), 1)
    assert kept(single) == 3 * [(2, 1)] + 3 * [(1, 2)]
    assert torch.isfinite(single.log_evidence()).all()
    assert torch.isfinite(single.sample(3)).all()


def test_columns_of_outputs_are_rows():
    """GPT-2 holds the transposed matrix."""
    torch.manual_seed(2)
    module = nn.Sequential(Columns(LONG, 3, bias=False), nn.Tanh(), nn.Linear(3, OUTPUTS)).double()
    exact, actual = (fitted(module, data(5), rank) for rank in (None, 6))
    assert kept(actual)[0] == (3, 6)
    assert_same_posterior(actual, exact)


@pytest.mark.parametrize("joint", [True, False])
def test_biases_with_a_prior_of_their_own(joint: bool):
    prior = {"*.weight": tb.priors.Normal(0.7), "*.bias": tb.priors.Normal(2.0)}
    options: dict[str, Any] = {"joint_bias": joint, "prior_of": prior}
    exact, actual = (fitted(linear(), data(5), rank, **options) for rank in (None, 6))
    assert kept(actual)[0] == (3, 6)
    assert_same_posterior(actual, exact)
    probs = [tb.predict(tb.Linearised(p, "probit"), data(6)[0]).probs for p in (actual, exact)]
    assert_close(*probs, rtol=1e-9)


def test_rows_with_weights_and_biases_alone():
    module, (inputs, targets) = adapted(), data(5)
    targets[2] = -100
    likelihood = tb.likelihoods.Categorical(ignore_index=-100)
    exact, actual = (fitted(module, (inputs, targets), rank, likelihood=likelihood) for rank in (None, 9))
    assert_same_posterior(actual, exact)
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(4, LONG), nn.Tanh(), nn.Linear(LONG, OUTPUTS)).double()
    seen = normal(3, 4), classes(3, OUTPUTS)
    exact, actual = (fitted(wide, seen, rank, random="*.bias") for rank in (None, 9))
    assert kept(actual)[0] == (9, 1)
    assert_same_posterior(actual, exact)


# --- formulas where it does not


def truncated(matrix: Tensor, rank: int) -> Tensor:
    """Return Q diag(a) Qᵀ + τ (I − Q Qᵀ) with the k largest eigenvalues and the trace of a matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    top = vectors[:, -rank:]
    rest = torch.eye(len(matrix)).double() - top @ top.T
    return (top * values[-rank:]) @ top.T + values[:-rank].sum() / (len(matrix) - rank) * rest


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_low_rank_is_the_largest_eigenvalues_and_an_even_rest(rank: int):
    """The 2 k + 10 directions of the sketch see all of 8 rows, so that the eigenvalues are exact."""
    module, (inputs, targets) = linear(), data()
    exact, actual = (fitted(module, (inputs, targets), k, random="0.weight") for k in (None, rank))
    second = (inputs.T @ inputs) / ROWS
    outputs = oracle.data_part(exact)[0].view(3, LONG, 3, LONG).diagonal(dim1=1, dim2=3).sum(-1) / second.trace()
    assert_close(oracle.data_part(exact)[0], torch.kron(outputs, second), rtol=1e-9, atol=1e-12)
    assert_close(oracle.data_part(actual)[0], torch.kron(outputs, truncated(second, rank)), rtol=1e-9, atol=1e-12)
    assert_close(actual.curvature.trace(), exact.curvature.trace(), rtol=1e-12)


def test_draws_variances_and_determinants_are_those_of_the_formulas():
    """log det Λ, J Λ⁻¹ Jᵀ and a draw from a_j, s_l, u_j, v_l, for a long side L Lᵀ."""
    module, seen, delta = linear(), data(5), 0.7**-2
    actual = fitted(module, seen, 6, random="0.weight")
    whole: Any = actual.curvature
    (block,) = whole.blocks
    values, rows, columns = block.eigenvalues_MGOI[0, 0] * delta, block.rows_MGOO[0, 0], block.columns_MGII[0, 0]
    assert not values[:, -1].any()  # nothing is lost
    lam_lj, size = values[:, :-1], 3 * LONG
    covariance = actual.gaussian.covariance
    logdet = size * math.log(delta) + (lam_lj / delta).log1p().sum()
    assert_close(covariance.logdet()[0], -logdet, rtol=1e-10)
    jacobian = normal(4, 3, LONG, seed=5)
    c_lj = torch.einsum("noi,ol,ij->nlj", jacobian, rows, columns)
    variance = torch.einsum("noi,moi->nm", jacobian, jacobian)
    variance = (variance - torch.einsum("lj,nlj,mlj->nm", lam_lj / (delta + lam_lj), c_lj, c_lj)) / delta
    flat = jacobian.flatten(1).unsqueeze(1)
    assert_close(torch.einsum("nmd,kmd->nk", flat, covariance.matvec(flat)), variance, rtol=1e-10)
    noise = normal(1, size, seed=6)
    z_oi = rows @ noise.view(3, LONG)  # noise of rows comes in their basis
    z_lj = torch.einsum("oi,ol,ij->lj", z_oi, rows, columns)
    shrink = 1 - (1 + lam_lj / delta).rsqrt()
    draw = (z_oi - torch.einsum("lj,ol,ij->oi", shrink * z_lj, rows, columns)) / delta**0.5
    assert_close(covariance.sqrt_matvec(noise)[0], draw.flatten(), rtol=1e-10)


@pytest.mark.parametrize("rank", [1, 4])
def test_everything_agrees_with_the_dense_matrix_of_the_same_curvature(rank: int):
    actual = fitted(adapted(), data(), rank)
    dense = replace(actual, curvature=DenseCurvature(actual.curvature.dense()))
    assert_close(actual.log_evidence(), dense.log_evidence(), rtol=1e-10)
    assert_close(actual.effective_parameters(), dense.effective_parameters(), rtol=1e-9)
    assert_close(tb.tune(actual).strength_D, tb.tune(dense).strength_D, rtol=1e-6)
    inputs = data(5)[0]
    both = [tb.Linearised(p, "probit") for p in (actual, dense)]
    assert_close(*(tb.predict(each, inputs).probs for each in both), rtol=1e-8)
    assert_close(*(each.joint(inputs).covariance_MBKK for each in both), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("sides", [(LONG, 3), (3, LONG)], ids=["long inputs", "long outputs"])
def test_a_last_layer_predicts_as_with_the_dense_matrix_of_the_same_curvature(sides: tuple[int, int]):
    inputs, outputs = sides
    torch.manual_seed(5)
    module = nn.Sequential(nn.Tanh(), nn.Linear(inputs, outputs)).double()
    actual = fitted(module, (normal(6, inputs), classes(6, outputs)), 2)
    assert min(min(k) for k in kept(actual)) == 2
    dense = replace(actual, curvature=DenseCurvature(actual.curvature.dense()))
    rows = normal(4, inputs, seed=8)
    links: tuple[Any, ...] = ("probit", "bridge", "pairwise")
    for link in links:
        pair = [tb.predict(tb.Linearised(p, link), rows).probs for p in (actual, dense)]
        assert_close(*pair, rtol=1e-8)
        modules = [tb.Linearised(p, link).module() for p in (actual, dense)]
        assert_close(*(m(rows)["probs"] for m in modules), rtol=1e-8)


def test_evidence_has_the_derivative_that_tuning_follows():
    """d log p(D) / d log d = ½ (γ − d U), by differences."""
    actual, step = fitted(adapted(), data(), 2), 1e-4
    up, down = (actual.with_strength(actual.strength_D * math.exp(e)).log_evidence() for e in (step, -step))
    size = actual.reference_MD * actual.strength_D * actual.mean_MD**2
    expected = 0.5 * (actual.effective_parameters() - size.sum(-1))
    assert_close((up - down) / (2 * step), expected, rtol=1e-6)


def test_an_adapter_before_training_has_curvature_in_one_factor_alone():
    """B = 0, so that outputs do not depend on A: its posterior is its prior."""
    module = adapted()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    actual = fitted(module, data(), 3, prior="scalar")
    names = actual.model.layout.split(actual.gaussian.covariance.diagonal()[0])
    prior = actual.model.layout.split(1 / (actual.reference_MD[0] * actual.strength_D))
    for name, variance in names.items():
        if "lora_A" in name:
            assert_close(variance, prior[name], rtol=1e-12)
        else:
            assert bool((variance < prior[name]).any())
    assert torch.isfinite(actual.log_evidence()).all()
    assert torch.isfinite(tb.predict(tb.Linearised(actual), data(3)[0]).probs).all()


@pytest.mark.parametrize("rank", [1, 4])
def test_a_posterior_is_the_next_task_s_prior(rank: int):
    """The sum has whole bases; it is exact in its trace over each side, as that of whole factors is."""
    first, module = fitted(adapted(), data(), rank), adapted()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    second = fitted(module, data(5), rank, prior_of=tb.as_prior(first))
    alone = fitted(module, data(5), rank)
    total = second.curvature.dense()
    expected = oracle.data_part(alone) + torch.linalg.inv(first.gaussian.covariance.dense())
    assert_close(total.diagonal(dim1=1, dim2=2).sum(-1), expected.diagonal(dim1=1, dim2=2).sum(-1), rtol=1e-9)
    assert torch.isfinite(second.effective_parameters()).all()


# --- inputs that layers share, files, memory


def test_layers_with_the_same_inputs_share_a_factor(tmp_path: Path):
    actual = fitted(adapted(), data(), 3)
    whole: Any = actual.curvature
    shared = {block.columns_MGII.data_ptr() for block in whole.blocks[:3]}
    assert len(shared) == 1
    assert len({block.rows_MGOO.data_ptr() for block in whole.blocks[3:]}) == 3
    path = actual.save(tmp_path / "posterior.safetensors")
    assert len(read_header(path)["same"]) == 2
    loaded: Any = tb.load(path, actual.model)
    assert len({block.columns_MGII.data_ptr() for block in loaded.curvature.blocks[:3]}) == 1
    for name, tensor in actual.tensors().items():
        assert torch.equal(loaded.tensors()[name], tensor)
    # the kernel that a processor takes depends on strides, which files do not keep
    torch.testing.assert_close(loaded.sample(2, seed=3), actual.sample(2, seed=3), rtol=1e-12, atol=1e-12)
    again = loaded.save(tmp_path / "again.safetensors")
    assert again.stat().st_size == path.stat().st_size


def test_layers_with_other_inputs_do_not(monkeypatch: pytest.MonkeyPatch):
    module = adapted()
    module.lora_A["key"].register_forward_pre_hook(lambda _, args: (2 * args[0],))  # type: ignore[index, union-attr]
    whole: Any = fitted(module, data(), 3).curvature
    query, key, value = (block.columns_MGII for block in whole.blocks[:3])
    assert query.data_ptr() == value.data_ptr() != key.data_ptr()


def test_no_room_is_made_for_the_whole_of_a_long_side():
    network = of(nn.Sequential(nn.Linear(LONG, 2), nn.Linear(2, 500)))
    with Largest() as largest:
        total = KroneckerSums(rank=3).empty(network, torch.zeros(1, dtype=torch.float64))
    assert total["1.outputs"].shape == (1, 500, 17)  # 2 k + 10 directions, and the diagonal
    assert largest.numbers < 500 * 20


def test_memory_of_factors_is_checked_before_the_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(curvature_pass, "free_memory", lambda _device="cpu": 1e5)
    with pytest.raises(
        ValueError, match=r"factors of 6 layers, and their eigenvectors, which would take 0\.1 MiB"
    ) as e:
        fitted(adapted(), data())
    assert "structure='kronecker' with rank=4" in str(e.value)
    assert "layers: " in str(e.value)
    monkeypatch.setattr(curvature_pass, "free_memory", lambda _device="cpu": 1e2)
    with pytest.raises(ValueError, match="No rank of the factors of long sides fits"):
        fitted(adapted(), data(), structure="ekfac")


def test_a_rank_that_leaves_out_most_of_the_curvature_is_told():
    with pytest.warns(UserWarning, match="% of the trace of the curvature is spread evenly"):
        fitted(linear(), (normal(200, LONG), classes(200, OUTPUTS)), 1, random="0.weight")
