"""Dropout as a posterior: closed forms, all masks of small networks, and PyTorch's own dropout as oracles."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from tests.laws.cases import assert_same_tensors
from tests.oracles import assert_close, normal
from tests.posteriors.layers.layer_networks import (
    BESIDE,
    CLASSES,
    IN_WEIGHTS,
    WITH_DROPOUT,
    EachPosition,
    Flat,
    Noisy,
    Wrapped,
    made,
    stack,
)
from torchbayes.model.dropout import DropoutError
from torchbayes.posteriors.layers.dropout import folds

# these are nearly the network of another: with weights, with positions first, with one layer twice
ALIKE = {"attention_weights", "encoder", "shared"}
networks = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.study if name in ALIKE else ()) for name in WITH_DROPOUT]
)


def posterior_of(net: nn.Module, **settings: object) -> tb.DropoutPosterior:
    """The posterior of a network as it is."""
    return tb.DropoutPosterior.of(tb.Model(net, tb.likelihoods.Categorical(), **settings), net)  # type: ignore[arg-type]


def case(name: str, rows: int = 9) -> tuple[nn.Module, Tensor]:
    make, shape = WITH_DROPOUT[name]
    return made(make), normal(rows, *shape, seed=2)


def all_masks(rates: list[float]) -> tuple[Tensor, Tensor]:
    """All masks of units with these rates, (2^U, U), and their probabilities."""
    masks = torch.tensor([*itertools.product((0.0, 1.0), repeat=len(rates))], dtype=torch.float64)
    p = torch.tensor(rates, dtype=torch.float64)
    return masks, torch.where(masks > 0, 1 - p, p).prod(1)


class TimeFirst(nn.Module):
    """Its first dropout has the rows on the second axis, its second on the first; neither is a mask of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(2, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:  # (B, 3, 2)
        hidden = self.first(inputs.transpose(0, 1).tanh()).tanh().transpose(0, 1)
        return self.head(self.second(hidden.sin()).tanh().mean(1))


# --- exact answers


# `test_draws_are_all_masks_of_a_small_network_in_their_proportions` has other rates
@pytest.mark.parametrize("rate", [0.5, *(pytest.param(rate, marks=pytest.mark.study) for rate in (0.05, 0.9))])
def test_linear_model_has_the_mean_and_covariance_of_the_closed_form(rate: float) -> None:
    """f = W (z ∘ x)/k + b has mean W x + b and covariance (p/k) Σ_j x_j² W_j W_jᵀ."""
    draws = 4000
    net = made(lambda: nn.Sequential(nn.Dropout(rate), nn.Linear(5, 2)))
    x_B5 = normal(3, 5, seed=4)
    weight, bias = (p.detach() for p in net.get_submodule("1").parameters())
    mean_BK = x_B5 @ weight.T + bias
    covariance_BKK = rate / (1 - rate) * torch.einsum("bj,kj,lj->bkl", x_B5**2, weight, weight)
    masks, chance = all_masks([rate] * 5)
    every_SBK = torch.einsum("kj,sj,bj->sbk", weight, masks / (1 - rate), x_B5) + bias
    assert_close(torch.einsum("s,sbk->bk", chance, every_SBK), mean_BK)
    centred = every_SBK - mean_BK
    assert_close(torch.einsum("s,sbk,sbl->bkl", chance, centred, centred), covariance_BKK)
    drawn_SBK = posterior_of(net).functions(draws)(x_B5)
    error = (covariance_BKK.diagonal(dim1=1, dim2=2) / draws).sqrt()
    assert ((drawn_SBK.mean(0) - mean_BK).abs() < 5 * error).all()
    actual = torch.einsum("sbk,sbl->bkl", drawn_SBK - mean_BK, drawn_SBK - mean_BK) / draws
    fourth = torch.einsum("s,sbk,sbl->bkl", chance, centred**2, centred**2) - covariance_BKK**2
    assert ((actual - covariance_BKK).abs() < 5 * (fourth / draws).sqrt() + 1e-12).all()


@pytest.mark.parametrize("wrapped", [False, True])
def test_draws_are_all_masks_of_a_small_network_in_their_proportions(wrapped: bool) -> None:
    rates, draws = [0.3, 0.3, 0.3, 0.6, 0.6], 500 if wrapped else 1500  # of wrapped layers each takes a pass
    inner = made(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.3), nn.Tanh(), nn.Linear(3, 2), nn.ReLU(), nn.Dropout(0.6),
                              nn.Linear(2, 1))
    )  # fmt: skip
    x_BF = normal(4, 2, seed=3)
    w1, b1, w2, b2, w3, b3 = (p.detach() for p in inner.parameters())
    masks, chance = all_masks(rates)
    every = []
    for mask in masks:
        hidden = torch.tanh((x_BF @ w1.T + b1) * mask[:3] / 0.7)
        every.append((torch.relu(hidden @ w2.T + b2) * mask[3:] / 0.4) @ w3.T + b3)
    every_SBK = torch.stack(every)
    drawn_SBK = posterior_of(Wrapped(inner) if wrapped else inner).functions(draws)(x_BF)
    gap = (drawn_SBK[:, None] - every_SBK).abs().amax((2, 3))
    assert gap.amin(1).max() < 1e-12  # each draw is one of the 32 networks
    mean_BK, second_BK = (torch.einsum("s,sbk->bk", chance, every_SBK**power) for power in (1, 2))
    error = ((second_BK - mean_BK**2) / draws).sqrt()
    assert ((drawn_SBK.mean(0) - mean_BK).abs() < 5 * error).all()
    # how often each function comes, where two masks may give one function
    same = (every_SBK[:, None] - every_SBK).abs().amax((2, 3)) < 1e-12
    expected = same.double() @ chance
    seen = (gap < 1e-12).double().mean(0)
    assert ((seen - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt() + 1e-3).all()


def test_predictive_is_that_of_gal_and_ghahramani() -> None:
    """log p = LSE_s(−½ τ ‖y − f_s‖²) − log S − (D/2) log 2π + (D/2) log τ; covariance I/τ + E f fᵀ − m mᵀ."""
    scale, draws = 0.3, 25
    net = made(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2)))
    posterior = tb.DropoutPosterior.of(tb.Model(net, tb.likelihoods.Gaussian(scale=scale)), net)
    x, y = normal(6, 3, seed=1), normal(6, 2, seed=5)
    functions = posterior.functions(draws)
    f_SBK, prediction, tau = functions(x), tb.predict(functions, x), scale**-2
    squares = (y - f_SBK).square().sum(-1)
    expected = (-0.5 * tau * squares).logsumexp(0) - math.log(draws) - math.log(2 * math.pi) + math.log(tau)
    assert_close(prediction.log_prob(y), expected)
    assert_close(prediction.mean, f_SBK.mean(0))
    assert_close(prediction.variance, 1 / tau + f_SBK.var(0, correction=0))


# `test_a_draw_is_one_function_for_all_rows_and_batches` looks at the masks of these exactly; their kinds are here by
# `functional`, `convolutional` and `lstm`
FEW = ("functional", "stack", "convolutional", "lstm", "elements", "alpha")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FEW else pytest.mark.study) for n in WITH_DROPOUT])
def test_rows_have_the_distribution_that_training_mode_gives_them(name: str) -> None:
    """The oracle is PyTorch: passes in training mode, which draws masks for each row; batch norms in evaluation."""
    draws = 1000 if name in IN_WEIGHTS else 150  # of the others each takes a pass of its own
    net, inputs = case(name, rows=2)
    drawn_SBK = posterior_of(net).functions(draws)(inputs)
    net.train()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        passes = [net(torch.cat([inputs] * 50)) for _ in range(draws // 50)]
    expected_SBK = torch.cat([outputs.unflatten(0, (50, 2)) for outputs in passes])
    spread = expected_SBK.std(0)
    assert ((drawn_SBK.mean(0) - expected_SBK.mean(0)).abs() < 5 * spread * math.sqrt(2 / draws) + 1e-12).all()
    fourth = (expected_SBK - expected_SBK.mean(0)).pow(4).mean(0)
    error = ((fourth - spread**4) * 2 / draws).sqrt()
    assert ((drawn_SBK.var(0) - spread**2).abs() < 5 * error + 1e-12).all()
    assert spread.max() > 1e-3


# --- a draw is a function


@networks
def test_a_draw_is_one_function_for_all_rows_and_batches(name: str) -> None:
    net, inputs = case(name)
    functions = posterior_of(net).functions(4, seed=3)
    outputs_SBK = functions(inputs)
    assert_close(functions(inputs.flip(0)).flip(1), outputs_SBK)
    assert_close(functions(inputs, chunk_size=2), outputs_SBK)
    assert_close(torch.stack([functions(row[None])[:, 0] for row in inputs], 1), outputs_SBK)
    loader = DataLoader(TensorDataset(inputs, torch.zeros(9, dtype=torch.int64)), batch_size=4)
    assert_close(tb.predict(functions, loader).outputs_SBK, outputs_SBK)
    assert_close(functions(inputs[:1].expand_as(inputs)), outputs_SBK[:, :1].expand_as(outputs_SBK))
    assert outputs_SBK.std(0).min() > 0


@pytest.mark.parametrize("name", IN_WEIGHTS)
def test_masks_in_the_weights_and_beside_them_are_the_same_functions(name: str) -> None:
    net, inputs = case(name)
    inside, beside = posterior_of(net), posterior_of(Wrapped(net))
    assert folds(inside.model.network) is not None
    assert folds(beside.model.network) is None
    assert_close(inside.functions(8, seed=3)(inputs), beside.functions(8, seed=3)(inputs))
    assert_close(beside.sample(8), beside.weights_MD.expand(8, -1))
    assert (inside.sample(8) == 0).sum() > (beside.sample(8) == 0).sum()


@pytest.mark.parametrize("name", BESIDE)
def test_masks_that_are_not_in_the_weights_are_beside_them(name: str) -> None:
    posterior = posterior_of(case(name)[0])
    assert folds(posterior.model.network) is None
    assert_close(posterior.sample(3), posterior.weights_MD.expand(3, -1))


def test_positions_have_their_masks_in_sequences_of_any_length() -> None:
    functions, inputs = posterior_of(made(EachPosition)).functions(3), normal(4, 7, 4)
    long = functions(inputs)
    for length in (1, 2, 6):
        assert_close(functions(inputs[:, :length]), long[:, :, :length])
    dropped = (functions.masks_S is not None, long.std(0).min() > 0)
    assert all(dropped)


def test_positions_share_masks_that_are_in_the_weights() -> None:
    net = made(stack)
    functions, row = posterior_of(net).functions(3), normal(1, 1, 4)
    outputs = functions(row.expand(2, 5, 4))
    assert_close(outputs, outputs[:, :1, :1].expand_as(outputs))


def test_kernel_and_loop_give_the_same_functions() -> None:
    net = made(stack)
    model = tb.Model(net, tb.likelihoods.Categorical())
    density = tb.LogDensity(model, 9, plan="auto")
    inputs, targets = normal(9, 4), torch.arange(9) % 3
    density(model.given_weights()[None], tb.Batch(inputs[None], targets[None]))
    assert density.plan is not None
    assert density.plan.backend == "native"  # dropout is the identity in evaluation mode
    functions = tb.DropoutPosterior.of(model, net).functions(5)
    looped = torch.stack([model.network(w[: model.network.layout.size], inputs) for w in functions.weights_SD])
    assert_close(functions(inputs), looped)


# one with masks in the weights, and one with masks beside them
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in {"stack", "functional"} else pytest.mark.study) for n in WITH_DROPOUT]
)
def test_network_and_random_state_are_untouched(name: str) -> None:
    net, inputs = case(name)
    net.train()
    before, state = {n: t.clone() for n, t in net.state_dict().items()}, torch.get_rng_state()
    posterior = posterior_of(net)
    own = {n: b.clone() for n, b in posterior.model.network.buffers.items()}
    tb.predict(posterior, inputs)
    posterior.module()(inputs)
    assert_same_tensors(net.state_dict(), before)
    assert_same_tensors(posterior.model.network.buffers, own)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in net.modules())
    assert not any(m.training for m in posterior.model.network.module.modules())


# --- files and modules


@networks
def test_module_predicts_the_same(name: str, tmp_path: Path) -> None:
    net, inputs = case(name)
    posterior = posterior_of(net)
    expected = tb.predict(posterior, inputs, draws=4, seed=2).probs
    module = posterior.module(4, seed=2)
    assert_close(module(inputs)["probs"], expected)
    again = tb.load_module(module.save(tmp_path / "m.safetensors"), posterior.model)
    assert_close(again(inputs)["probs"], expected)


def test_module_is_exported_where_masks_are_in_the_weights() -> None:
    inputs = normal(6, 4)
    module = posterior_of(made(stack)).module(4)
    exported = torch.export.export(module, (inputs,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert_close(exported.module()(inputs[:3])["probs"], module(inputs[:3])["probs"])
    beside = posterior_of(Wrapped(made(stack))).module(4)
    with pytest.raises(DropoutError, match="can be exported if its masks are a part of the weights"):
        torch.export.export(beside, (inputs,))


def test_a_file_keeps_the_rates(tmp_path: Path) -> None:
    net, inputs = case("stack")
    expected = posterior_of(net).functions(6, seed=1)(inputs)
    posterior_of(net).save(tmp_path / "q.safetensors")
    other = made(stack)
    for part in other.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.01
    loaded = tb.load(tmp_path / "q.safetensors", tb.Model(other, tb.likelihoods.Categorical()))
    assert_close(loaded.functions(6, seed=1)(inputs), expected)


# --- what is refused


def test_refusals_say_what_to_do() -> None:
    plain = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"no dropout in a part with random weights.*Put nn.Dropout"):
        posterior_of(plain)
    model = tb.Model(made(stack), tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match=r"rates, from 0 to 1, of the 3 dropout layers.*got shape \(1, 2\)"):
        tb.DropoutPosterior(model, model.given_weights()[None], torch.full((1, 2), 0.1))
    with pytest.raises(DropoutError, match=r"no dropout masks: aten.randn_like"):
        posterior_of(made(Noisy)).functions(2)(normal(3, 4))
    with pytest.raises(DropoutError, match="three equal rows of a batch have unequal outputs"):
        posterior_of(made(lambda: Flat(rows_first=False))).functions(2)(normal(3, 5, 4))
    rare = made(lambda: Flat(rows_first=False))
    vars(rare.get_submodule("dropout"))["p"] = 1e-9  # so that masks are the same in all rows, wherever these are
    with pytest.raises(DropoutError, match="three equal rows of a batch have unequal outputs"):
        posterior_of(rare).functions(2)(normal(3, 5, 4))


def test_dropout_of_frozen_parts_stays_off() -> None:
    frozen = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh()).requires_grad_(False)
    head = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, CLASSES))
    net, inputs = nn.Sequential(frozen, head).double(), normal(5, 4)
    posterior = posterior_of(net)
    with torch.no_grad():
        features = frozen.eval()(inputs)
    expected = posterior_of(head).functions(4)(features)
    assert_close(posterior.functions(4)(inputs), expected)
    with pytest.raises(ValueError, match="no dropout in a part with random weights"):
        posterior_of(nn.Sequential(frozen, nn.Linear(6, 3).double()))


def test_a_rate_of_one_drops_everything() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(1.0), nn.Linear(6, 3)).double()
    outputs = posterior_of(net).functions(3)(normal(5, 4))
    assert_close(outputs, net.get_submodule("3").bias.expand_as(outputs))  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("wrapped", [False, True], ids=["in the weights", "beside them"])
def test_each_member_has_its_own_rates(wrapped: bool) -> None:
    """Draw s is of member s mod M, in weights and masks: the first member drops nothing, the second all units."""
    nothing = 1e-12  # PyTorch leaves out the dropout of rate 0, and a pass without any is refused
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    net = Wrapped(plain) if wrapped else plain
    model = tb.Model(net, tb.likelihoods.Categorical())
    weights_MD = normal(2, model.layout.size, seed=3)
    posterior = tb.DropoutPosterior(model, weights_MD, torch.tensor([[nothing], [1.0]], dtype=torch.float64))
    inputs = normal(5, 4)
    whole = tb.Point(model, weights_MD).functions()(inputs)[0]
    bias = model.layout.split(weights_MD[1])[model.layout.names[-1]]
    expected = torch.stack([whole, bias.expand_as(whole)]).repeat(3, 1, 1)
    assert_close(posterior.functions(6, seed=4)(inputs), expected)


@pytest.mark.parametrize("rates", [[[0.0, 0.0], [0.5, 0.0]], [[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.5], [0.5, 0.5]]])
def test_layers_that_a_member_never_drops_are_left_out_of_its_masks(rates: list[list[float]]) -> None:
    """PyTorch draws no numbers where a rate is 0, so that calls of dropout are other layers' from member to member."""
    net, inputs = made(TimeFirst), normal(4, 3, 2, seed=5)
    model = tb.Model(net, tb.likelihoods.Categorical())
    weights_MD = model.given_weights().expand(2, -1).contiguous()

    def outputs(of_members: list[int], rows: Tensor = inputs) -> Tensor:
        rates_ML = torch.tensor([rates[member] for member in of_members], dtype=torch.float64)
        posterior = tb.DropoutPosterior(model, weights_MD[: len(of_members)], rates_ML)
        return tb.predict(posterior, rows, draws=2 * len(of_members)).outputs_SBK

    both = outputs([0, 1])
    assert_close(both[:, :2], outputs([0, 1], inputs[:2]))  # one function, whichever rows come
    plain = net.eval()(inputs)
    for member in (0, 1):
        drops = any(rates[member])
        assert bool((both[member::2] - plain).abs().amax() > 1e-3) is drops
