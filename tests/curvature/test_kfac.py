"""Kronecker factors against their formulas, and exactness where they are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from tests.covering import some_of
from tests.curvature import oracle
from tests.curvature.networks import NETS, SelfAttention, flat, places
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.kfac import UsedPlaces
from torchbayes.linalg import BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature
from torchbayes.model.priors.joint import Joint

ROWS = 6
PRIOR = tb.priors.Normal(scale=0.7)


def posterior(
    module: nn.Module,
    data: tuple[Any, Tensor],
    *,
    likelihood: Any = None,
    prior: Any = None,
    sizes: Any = None,
    **options: Any,
) -> tb.LaplacePosterior:
    """Return what is found at the module's own weights."""
    model = tb.Model(module, likelihood or tb.likelihoods.Categorical(), prior or PRIOR)
    settings: dict[str, Any] = {"structure": "kronecker", "prior": "model"} | options
    method = tb.Laplace(**settings, check_mode=False)
    return oracle.fitted(method, model, model.given_weights().unsqueeze(0), data, sizes=sizes)


def block(actual: tb.LaplacePosterior, *indices: int) -> Tensor:
    """Return what the data add to the precision of some weights, as one matrix in that order."""
    where = torch.tensor(indices)
    return oracle.data_part(actual)[0][where][:, where]


def softmax_columns(outputs_BK: Tensor) -> Tensor:
    """Return columns r (K, B, K) with Σ r rᵀ = diag(p) − p pᵀ: √p_y (e_y − p)."""
    probs = outputs_BK.softmax(-1)
    scores = torch.eye(outputs_BK.shape[1], dtype=torch.float64) - probs.unsqueeze(1)
    return (probs.sqrt().unsqueeze(-1) * scores).transpose(0, 1)


class Seen(nn.Module):
    """An affine layer on several places, a tanh, and a sum over places that is weighed, so that places differ."""

    def __init__(self, layer: nn.Module, outputs: int, places_: int) -> None:
        super().__init__()
        self.layer = layer
        self.mix = nn.Parameter(normal(places_ * outputs, 3), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs)).flatten(1) @ self.mix


def factors(
    module: Seen, inputs: Tensor, seen_BTI: Tensor, *, channels: bool, sharing: str, bias: bool
) -> tuple[Tensor, Tensor]:
    """Return (A, G) of the formulas, from what each place sees and gradients by autograd, place by place."""
    leaf = module.layer(inputs).detach().requires_grad_()
    outputs = torch.tanh(leaf).flatten(1) @ module.mix
    seen = torch.cat([seen_BTI, torch.ones(*seen_BTI.shape[:2], 1, dtype=torch.float64)], 2) if bias else seen_BTI
    first, second, places_ = 0.0, 0.0, seen.shape[1]
    for column in softmax_columns(outputs.detach()):
        (gradient,) = torch.autograd.grad(outputs, leaf, column, retain_graph=True)
        gradient = gradient.flatten(2).transpose(1, 2) if channels else gradient.reshape(len(inputs), -1, 2)
        for g in gradient:
            second = second + (g.T @ g if sharing == "expand" else torch.outer(g.sum(0), g.sum(0)))
    for a in seen:
        first = first + (a.T @ a / places_ if sharing == "expand" else torch.outer(a.mean(0), a.mean(0)))
    return torch.as_tensor(first) / len(seen), torch.as_tensor(second)


LAYERS = {
    "linear on tokens": (lambda bias: nn.Linear(4, 2, bias=bias), lambda: normal(ROWS, 3, 4), 2 * 3),
    "convolution": (lambda bias: nn.Conv2d(2, 2, 3, bias=bias), lambda: normal(ROWS, 2, 4, 4), 2 * 4),
    "linear": (lambda bias: nn.Linear(4, 2, bias=bias), lambda: normal(ROWS, 4), 2),
}


@pytest.mark.parametrize("sizes", [None, [4, 2]], ids=["one batch", "two batches"])
@pytest.mark.parametrize("bias", ["joint", "apart", "none"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", LAYERS)
def test_factors_are_those_of_the_formulas(name: str, sharing: Any, bias: str, sizes: Any):
    make, inputs_of, width = LAYERS[name]
    torch.manual_seed(0)
    module, inputs = Seen(make(bias != "none"), 2, width // 2).double(), inputs_of()
    options = {"sharing": sharing, "joint_bias": bias == "joint"}
    actual = posterior(module, (inputs, classes(ROWS, 3)), sizes=sizes, **options)
    channels = name == "convolution"
    if channels:
        seen = nn.functional.unfold(inputs, 3).transpose(1, 2)
    else:
        seen = inputs if inputs.ndim == 3 else inputs.unsqueeze(1)
    first, second = factors(module, inputs, seen, channels=channels, sharing=sharing, bias=bias == "joint")
    size, inputs_size = 2 * seen.shape[-1], seen.shape[-1]
    if bias == "joint":  # weights row by row, then biases: the rows of a matrix with the bias as its last column
        order = [i for o in range(2) for i in (*range(o * inputs_size, (o + 1) * inputs_size), size + o)]
        assert_close(block(actual, *order), torch.kron(second, first), rtol=1e-9)
        return
    assert_close(block(actual, *range(size)), torch.kron(second, first), rtol=1e-9)
    if bias == "apart":
        assert_close(block(actual, size, size + 1), second, rtol=1e-9)
        assert not oracle.data_part(actual)[0][:size, size:].any()


def factored(actual: tb.LaplacePosterior) -> list[str]:
    assert isinstance(actual.curvature, BlockCurvature)
    return [part.kind for part in actual.curvature.blocks]


@pytest.mark.parametrize("structure", ["kronecker", "ekfac"])
@pytest.mark.parametrize("joint", [True, False])
def test_linear_gaussian_model_is_exact(structure: str, joint: bool):
    inputs, targets = normal(ROWS, 3), normal(ROWS, 2, seed=1)
    module = nn.Linear(3, 2, bias=joint).double()
    actual = posterior(
        module, (inputs, targets), likelihood=tb.likelihoods.Gaussian(0.3), structure=structure, joint_bias=joint
    )
    design = torch.cat([inputs, torch.ones(ROWS, 1, dtype=torch.float64)], 1) if joint else inputs
    width = design.shape[1]
    order = [0, 1, 2, 6, 3, 4, 5, 7] if joint else list(range(6))
    expected = torch.block_diag(*[design.T @ design / 0.3**2 + torch.eye(width, dtype=torch.float64) / 0.7**2] * 2)
    where = torch.tensor(order)
    dense = actual.gaussian.covariance.dense()[0][where][:, where]
    assert_close(dense, torch.linalg.inv(expected), rtol=1e-9)


@pytest.mark.parametrize("structure", ["kronecker", "ekfac"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", ["mlp", "weights alone", "biases alone", "one pixel", "no bias, one input"])
def test_one_row_is_exact_within_layers_without_sharing(name: str, sharing: Any, structure: Any):
    net = NETS[name]
    weights_MD, inputs = oracle.weights_of(net), net.inputs(1)
    outputs = oracle.forward(net, weights_MD[0], inputs)
    targets = oracle.targets_of(outputs)
    model = oracle.model_of(net, targets)
    actual = oracle.fitted(
        tb.Laplace(structure=structure, sharing=sharing, check_mode=False, prior="model"),
        model,
        weights_MD,
        (inputs, targets),
    )
    for m in range(len(weights_MD)):
        truth = oracle.curvature("ggn", net, weights_MD[m], inputs, targets)
        own = oracle.data_part(actual)[m]
        assert_close(own, torch.where(same_module(net), truth, 0.0), rtol=1e-9)


def same_module(net: Any) -> Tensor:
    """Return which pairs of weights are of the same module, (D, D)."""
    names = [
        name.rpartition(".")[0]
        for name, mask in oracle.masks(oracle.name_of(net)).items()
        for _ in range(int(mask.sum()))
    ]
    return torch.tensor([[a == b for a in names] for b in names])


BASES = ("mlp", "twice", "groups", "conv1d", "linear attention", "outputs at places", "same padding", "biases alone")


@pytest.mark.parametrize(("name", "cut"), some_of(BASES, [None, [3, 2]], one_in=2))
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_ekfac_takes_the_exact_diagonal_in_the_basis_of_kfac(name: str, cut: Any):
    net, (inputs, targets, weights_MD, _) = NETS[name], oracle.problem(name)
    prior = {"*.bias": tb.priors.Normal(scale=0.4), "*": tb.priors.Normal(scale=1.3)}
    known = {"*.bias"} if name == "biases alone" else set(prior)
    model = oracle.model_of(net, targets, {glob: prior[glob] for glob in prior if glob in known})
    each = {
        structure: oracle.fitted(
            tb.Laplace(structure=structure, check_mode=False, prior="model"),
            model,
            weights_MD,
            (inputs, targets),
            sizes=cut,  # type: ignore[arg-type]
        )
        for structure in ("kronecker", "ekfac")
    }
    curvatures: dict[str, Any] = {name: actual.curvature for name, actual in each.items()}
    for m in range(len(weights_MD)):
        scale_D = each["ekfac"].reference_MD[m].rsqrt()
        truth = oracle.truth(name, "ggn")[m] * scale_D * scale_D.unsqueeze(-1)
        wheres = curvatures["ekfac"].order_D.split(curvatures["ekfac"].sizes)
        for where, ekfac, kfac in zip(wheres, curvatures["ekfac"].blocks, curvatures["kronecker"].blocks, strict=True):
            own = truth[where][:, where]
            if not isinstance(ekfac, KroneckerCurvature):
                assert_close(ekfac.dense()[m], own, rtol=1e-9)
                continue
            basis = torch.block_diag(*[
                torch.kron(r, c) for r, c in zip(ekfac.rows_MGOO[m], ekfac.columns_MGII[m], strict=True)  # type: ignore[index, arg-type]
            ])  # fmt: skip
            assert_close(basis.T @ basis, torch.eye(len(basis)))
            assert_close(ekfac.eigenvalues_MGOI[m].flatten(), (basis.T @ own @ basis).diagonal(), rtol=1e-8, atol=1e-10)
            # the diagonal is the best there is in a basis that is given
            error, before = ((part.dense()[m] - own).norm() for part in (ekfac, kfac))
            assert error <= before * (1 + 1e-9) + 1e-12


def test_grouped_convolution_has_factors_of_its_own_for_every_group():
    torch.manual_seed(0)
    apart = nn.Sequential(nn.Conv2d(4, 4, 2, groups=2), nn.Tanh(), nn.Flatten()).double()
    inputs = normal(ROWS, 4, 2, 2)
    actual = posterior(apart, (inputs, normal(ROWS, 4)), likelihood=tb.likelihoods.Gaussian(1.0))
    for group in range(2):
        one = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Tanh(), nn.Flatten()).double()
        half = slice(2 * group, 2 * group + 2)
        one[0].weight.data, one[0].bias.data = apart[0].weight[half].detach(), apart[0].bias[half].detach()  # type: ignore[union-attr]
        single = posterior(one, (inputs[:, half], normal(ROWS, 4)[:, half]), likelihood=tb.likelihoods.Gaussian(1.0))
        where = [*range(16 * group, 16 * group + 16), 32 + 2 * group, 33 + 2 * group]
        assert_close(block(actual, *where), oracle.data_part(single)[0])


def test_embedding_has_the_formula_of_a_layer_with_one_hot_inputs():
    torch.manual_seed(0)
    words, labels = classes(ROWS * 3, 5).view(ROWS, 3), classes(ROWS, 3)
    table = nn.Embedding(5, 2)

    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 2, bias=False)
            self.linear.weight.data = table.weight.detach().T.clone()
            self.mix = nn.Parameter(normal(6, 3), requires_grad=False)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.tanh(self.linear(inputs)).flatten(1) @ self.mix

    module = Seen(table, 2, 3).double()
    actual = posterior(module, (words, labels))
    one_hot = nn.functional.one_hot(words, 5).double()
    expected = oracle.data_part(posterior(OneHot().double(), (one_hot, labels)))[0]
    where = torch.arange(10).view(2, 5).T.flatten()  # the table is the matrix transposed
    assert_close(oracle.data_part(actual)[0], expected[where][:, where], rtol=1e-9)


def test_padding_has_no_curvature():
    net = NETS["embedding"]
    weights_MD, inputs = oracle.weights_of(net), net.inputs(oracle.ROWS)
    assert (inputs == 0).any()
    data = inputs, classes(oracle.ROWS, 3)
    for structure in ("kronecker", "ekfac", "diagonal", "dense"):
        method = tb.Laplace(structure=structure, check_mode=False, prior="model")  # type: ignore[arg-type]
        actual = oracle.fitted(method, oracle.model_of(net, data[1]), weights_MD, data)
        assert not actual.curvature.diagonal()[:, :4].any(), structure
        assert (actual.curvature.diagonal()[:, 4:] > 0).any()


def test_weights_of_other_layers_are_dense_blocks_or_diagonal_ones():
    net = NETS["layer norm"]
    weights_MD, inputs = oracle.weights_of(net), net.inputs(oracle.ROWS)
    data = inputs, classes(oracle.ROWS, 3)
    model = oracle.model_of(net, data[1])
    actual = oracle.fitted(tb.Laplace(check_mode=False, prior="model"), model, weights_MD, data)
    assert factored(actual) == ["kronecker", "dense", "kronecker"]
    norm = torch.arange(25, 35)
    for m in range(len(weights_MD)):
        truth = oracle.curvature("ggn", net, weights_MD[m], *data)
        assert_close(oracle.data_part(actual)[m][norm][:, norm], truth[norm][:, norm])


def test_large_blocks_of_other_layers_are_diagonal():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 600), nn.LayerNorm(600), nn.Linear(600, 2)).double()
    inputs, labels = normal(3, 4), classes(3, 2)
    actual = posterior(module, (inputs, labels))
    blocks = actual.curvature.blocks  # type: ignore[union-attr]
    assert [type(part) for part in blocks] == [KroneckerCurvature, DiagonalCurvature, KroneckerCurvature]
    diagonal = posterior(module, (inputs, labels), structure="diagonal").curvature.diagonal()[0, 3000:4200]
    assert_close(blocks[1].diagonal()[0], diagonal)


def test_weights_that_no_layer_holds_are_a_dense_block():
    torch.manual_seed(0)
    actual = posterior(SelfAttention().double(), (places(ROWS), classes(ROWS, 3)))
    assert factored(actual) == ["kronecker", "dense"]
    assert isinstance(actual.curvature.blocks[1], DenseCurvature)  # type: ignore[union-attr]


def test_prior_that_differs_within_a_layer_is_refused():
    size = 15
    prior = Joint.independent(torch.zeros(size, dtype=torch.float64), torch.linspace(0.5, 2, size, dtype=torch.float64))
    with pytest.raises(ValueError, match="same prior precision for all weights of a layer"):
        posterior(nn.Linear(4, 3).double(), (flat(ROWS), classes(ROWS, 3)), prior=prior)


class Reader(nn.Module):
    """An embedding and affine layers on every token, with ReLU; with tanh where `later` tokens see those before."""

    def __init__(self, later: bool = False, last: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.later, self.last, self.turned = later, last, turned
        self.embed, self.hidden, self.head = nn.Embedding(6, 3), nn.Linear(3, 2), nn.Linear(2, 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = self.hidden(self.embed(inputs.flip(1))).flip(1) if self.turned else self.hidden(self.embed(inputs))
        # two units, so that at some places neither is on
        made = self.head(torch.tanh(seen).cumsum(1) if self.later else torch.relu(seen))
        return made[:, -1:] if self.last else made


def at_given_weights(module: nn.Module, data: tuple[Tensor, Tensor], likelihood: Any, **options: Any) -> Tensor:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return posterior(module.double(), data, likelihood=likelihood, **options).gaussian.covariance.dense()


@pytest.mark.parametrize("joint_bias", [True, False])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("structure", ["dense", "kronecker", "ekfac"])
def test_padding_changes_nothing(structure: Any, sharing: Any, joint_bias: bool):
    """As for the dense matrix: A and the count are means over the places that G is a sum over."""
    ignoring = tb.likelihoods.Categorical(weights=(1.0, 2.0, 1.0, 0.5), ignore_index=-100)
    settings: dict[str, Any] = {"structure": structure, "sharing": sharing, "joint_bias": joint_bias}
    tokens, labels = classes(24, 6).view(ROWS, 4), classes(24, 4, seed=2).view(ROWS, 4)
    labels[1, 2] = -100
    short = at_given_weights(Reader(), (tokens, labels), ignoring, **settings)
    padded = torch.cat([tokens, classes(30, 6, seed=3).view(ROWS, 5)], 1), F.pad(labels, (0, 5), value=-100)
    assert_close(at_given_weights(Reader(), padded, ignoring, **settings), short)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_places_are_used_that_counted_targets_depend_on(sharing: Any):
    """Labels at the last token alone: the layers before the sum are used at every token, the head at the last."""
    tokens, labels = classes(24, 6).view(ROWS, 4), classes(24, 4, seed=2).view(ROWS, 4)
    holed = labels.clone()
    holed[:, :-1] = -100
    actual = at_given_weights(
        Reader(later=True), (tokens, holed), tb.likelihoods.Categorical(ignore_index=-100), sharing=sharing
    )
    index = torch.arange(actual.shape[-1])
    hidden = index < actual.shape[-1] - 8
    expected = at_given_weights(
        Reader(later=True, last=True), (tokens, labels[:, -1:]), tb.likelihoods.Categorical(), sharing=sharing
    )
    assert_close(actual[0][hidden][:, hidden], expected[0][hidden][:, hidden])
    # the head sees the last token alone, as if it came after the sum
    sums = Reader(later=True)
    at_given_weights(sums, (tokens, holed), tb.likelihoods.Categorical(ignore_index=-100))
    seen = torch.tanh(sums.hidden(sums.embed(tokens))).cumsum(1)[:, -1].detach()
    head = nn.Linear(2, 4, bias=False).double()
    head.weight.data = sums.head.weight.data
    alone = posterior(head, (seen, labels[:, -1])).gaussian.covariance.dense()
    assert_close(actual[0][~hidden][:, ~hidden], alone[0])


@pytest.mark.parametrize("structure", ["kronecker", "ekfac"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_layers_may_see_as_many_places_in_another_order(structure: Any, sharing: Any):
    tokens, labels = classes(24, 6).view(ROWS, 4), classes(24, 4, seed=2).view(ROWS, 4)
    labels[1:4, 3] = labels[2, 2] = labels[4, 0] = -100
    ignoring, settings = tb.likelihoods.Categorical(ignore_index=-100), {"structure": structure, "sharing": sharing}
    actual, expected = (
        at_given_weights(Reader(later=True, turned=turned), (tokens, labels), ignoring, **settings)
        for turned in (True, False)
    )
    assert_close(actual, expected)


def test_places_that_no_target_depends_on():
    """They are left out in rows with an ignored target, or at its place where each target has a place of its own."""
    ignored, weights = torch.tensor([[True, False], [False, False]]), torch.tensor([2.0, 3.0])
    counted = torch.tensor([[True, False, False], [True, False, False]])
    other = torch.tensor([[False, True, False], [False, False, False]])
    idle = torch.zeros(2, 2, dtype=torch.bool)
    used = UsedPlaces(ignored, {("layer", 0): (counted, other), ("layer", 1): (idle, idle)})
    assert used.times(weights, "layer", 0, places=3).tolist() == [[2, 0, 0], [3, 3, 3]]
    assert used.times(weights, "layer", 1, places=2).tolist() == [[0, 2], [3, 3]]


def test_ignoring_nothing_changes_nothing():
    """Also at places without a gradient: those of a layer whose units are off."""
    data = classes(24, 6).view(ROWS, 4), classes(24, 4, seed=2).view(ROWS, 4)
    actual, expected = (
        at_given_weights(Reader(), data, tb.likelihoods.Categorical(ignore_index=i)) for i in (-100, None)
    )
    assert_close(actual, expected)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "ekfac", "dense", "low_rank"])
@pytest.mark.parametrize("weighted", [True, False])
def test_no_row_counts(structure: Any, weighted: bool):
    categorical = tb.likelihoods.Categorical(ignore_index=-100)
    likelihood = tb.likelihoods.Weighted(categorical) if weighted else categorical
    ignored = torch.full((ROWS,), -100)
    targets: Any = (classes(ROWS, 3), torch.zeros(ROWS, dtype=torch.float64)) if weighted else ignored
    model = tb.Model(nn.Linear(2, 3).double(), likelihood)
    with pytest.raises(ValueError, match="no row counts: all are ignored, or have weight 0"):
        tb.fit(
            model,
            (normal(ROWS, 2), targets),
            tb.Laplace(structure, check_mode=False, prior="model"),
            start=normal(9),
            callbacks=(),
        )
