import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.model.helpers import ConvNorm, Tied, Tokens, mlp, snapshot, tokens
from tests.oracles import assert_close, classes, finite_differences, mlp_outputs, normal
from torchbayes.model import Batch, Model, Network, likelihoods
from torchbayes.randomness.seeds import Purpose, seeded

IMAGES = normal(6, 1, 4, 4)


class Pair(nn.Module):
    """Two inputs, one of them scaled by a parameter without axes; outputs without the axis K."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.linear = nn.Linear(3, 1)
        self.double()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.linear(left + self.scale * right).squeeze(-1)


class WithDropout(nn.Module):
    """A backbone and a head, with batch norm and dropout in each."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        first, second = (nn.BatchNorm1d(8, momentum=momentum) for _ in range(2))
        self.backbone = nn.Sequential(nn.Linear(3, 8), first, nn.Dropout(0.5))
        self.head = nn.Sequential(second, nn.Linear(8, 2))
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


# --- f_w(x) ---


def test_mlp_equals_matrix_products_on_the_flat_vector():
    network = Network(mlp((3, 5, 4, 2)))
    weights, inputs = normal(network.layout.size, seed=1), normal(7, 3)
    assert_close(network(weights, inputs), mlp_outputs(weights, (3, 5, 4, 2), inputs))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (mlp, normal(4, 3)),
        (ConvNorm, IMAGES),
        (Tied, normal(4, 3)),
        (lambda: nn.Sequential(mlp((3, 4)), nn.Sequential(nn.LayerNorm(4), mlp((4, 2)))).double(), normal(4, 3)),
        (lambda: nn.Sequential(nn.GroupNorm(1, 1), nn.Conv2d(1, 2, 3), nn.Flatten()).double(), IMAGES),
    ],
    ids=["mlp", "conv and batch norm", "tied", "nested", "group norm"],
)
def test_own_weights_give_the_modules_own_outputs(make: Callable[[], nn.Module], inputs: Tensor):
    module = make().eval()
    network = Network(module)
    assert_close(network(network.weights(), inputs), module(inputs))


def test_tuples_are_positional_mappings_are_keywords_and_logits_are_unpacked():
    pair = Pair()
    network, left, right = Network(pair), normal(4, 3), normal(4, 3, seed=1)
    assert_close(network(network.weights(), (left, right)), pair(left, right).unsqueeze(1))
    assert_close(network(network.weights(), {"right": right, "left": left}), pair(left, right).unsqueeze(1))
    words = Tokens()
    network = Network(words)
    assert_close(network(network.weights(), tokens(4)), words(**tokens(4)).logits)


def test_a_mapping_with_logits_is_unpacked_and_anything_else_is_an_error():
    class Wrapped(nn.Linear):
        answer: object = None

        def forward(self, input: Tensor) -> Any:
            return {"logits": super().forward(input)} if self.answer is None else self.answer

    module, inputs = Wrapped(3, 2).double(), normal(4, 3)
    network = Network(module)
    assert_close(network(network.weights(), inputs), F.linear(inputs, module.weight, module.bias))
    for wrong in ({"loss": inputs}, (inputs, inputs), SimpleNamespace(scores=inputs)):
        module.answer = wrong
        network = Network(module)
        with pytest.raises(TypeError, match=r"must return a tensor or an object with `\.logits`"):
            network(network.weights(), inputs)


def test_inputs_are_not_blamed_for_what_a_network_gives():
    class Both(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input), input

    model = Model(Both(3, 2).double(), likelihoods.Categorical())
    with pytest.raises(TypeError, match=r"^the network must return a tensor.*got an object of type tuple"):
        model.check(Batch(normal(4, 3), classes(4, 2)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.utils.weight_norm(nn.Linear(3, 2)), "cannot be copied.*torch.nn.utils.parametrizations"),
        (lambda: torch.jit.script(nn.Linear(3, 2)), "torch.jit keeps its own weights"),
    ],
    ids=["weight norm", "script"],
)
def test_a_module_that_cannot_hold_other_weights_is_refused(make: Any, said: str):
    for module in (make(), make):
        with pytest.raises(TypeError, match=said):
            Network(module)


def test_gradient_in_the_weights_is_that_of_finite_differences():
    network = Network(Tied())
    weights, inputs = normal(network.layout.size, seed=1), normal(4, 3)
    leaf = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network(leaf, inputs).square().sum(), leaf)
    assert_close(
        gradient, finite_differences(lambda w: network(w, inputs).square().sum(), weights), rtol=1e-6, atol=1e-7
    )


# --- which weights are random ---


def test_tied_weights_appear_once_and_their_gradients_add_up():
    module = Tied()
    network, inputs = Network(module), normal(4, 3)
    assert network.layout.names == ("encoder.weight", "encoder.bias", "decoder.bias")
    assert network.layout.size == 15
    leaf = network.weights().requires_grad_()
    (gradient,) = torch.autograd.grad(network(leaf, inputs).square().sum(), leaf)
    module(inputs).square().sum().backward()
    assert module.encoder.weight.grad is not None
    assert_close(network.layout.split(gradient)["encoder.weight"], module.encoder.weight.grad)


@pytest.mark.parametrize(
    ("random", "names"),
    [
        ("head.*", ("head.weight", "head.bias")),
        ("*lora*", ("body.lora_A", "body.lora_B")),
        (["head.bias", "*lora_A"], ("body.lora_A", "head.bias")),
        ("*", ("body.lora_A", "body.lora_B", "head.weight", "head.bias")),  # `base` is frozen
    ],
)
def test_globs_choose_the_random_weights_and_the_rest_are_constants(random: str | list[str], names: tuple[str, ...]):
    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Parameter(torch.randn(3, 3), requires_grad=False)
            self.lora_A, self.lora_B = nn.Parameter(torch.randn(3, 1)), nn.Parameter(torch.randn(1, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ (self.base + self.lora_A @ self.lora_B)

    module = nn.Sequential()
    module.add_module("body", Lora())
    module.add_module("head", nn.Linear(3, 2))
    network, inputs = Network(module.double(), random), normal(4, 3)
    assert network.layout.names == names
    everything = {n for n, _ in module.named_parameters()}
    assert set(network.constants) == everything - set(names)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        for name in names:
            moved.get_parameter(name).add_(1.0)
    assert_close(network(network.weights() + 1, inputs), moved(inputs))
    assert not network(network.weights(), inputs).requires_grad  # constants build no graph


def test_no_match_and_nothing_to_infer_are_errors():
    with pytest.raises(
        ValueError, match=r"random='tail\.\*'` matches none of the 4 trainable parameters \(0\.weight, 0"
    ):
        Network(mlp(), "tail.*")
    with pytest.raises(ValueError, match="matches none of the 0 trainable"):
        Network(mlp().requires_grad_(False))
    with pytest.raises(ValueError, match="no parameters, so there is nothing to infer"):
        Network(nn.ReLU())
    with pytest.raises(TypeError, match=r"must be an nn\.Module or a function that makes one; got 3 from it"):
        Network(lambda: 3)  # type: ignore[arg-type]


def test_lazy_and_mixed_modules_are_errors():
    with pytest.raises(ValueError, match=r"`0\.weight` is not initialised yet\. Run one batch"):
        Network(nn.Sequential(nn.LazyLinear(2)))
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(TypeError, match=r"one floating-point dtype; got \['torch.float32', 'torch.float64'\]"):
        Network(mixed)
    turns = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"got \['torch.complex64'\]\. Complex weights, such as `weight`, are"):
        Network(turns)
    assert Network(mixed, "1.*").dtype == torch.float64
    network = Network(nn.Linear(2, 2, dtype=torch.float64))
    assert network(network.weights(), normal(1, 2)).dtype == torch.float64  # a double network stays double


# --- the module is the user's ---


@pytest.mark.parametrize("train", [True, False])
def test_the_module_is_never_written_to(train: bool, untouched_rng: None):
    with torch.random.fork_rng():
        module = ConvNorm()
    module.train(train)
    module.head.weight.requires_grad_(False)
    module.body[0].eval()  # a mode of its own
    module(IMAGES).sum().backward()
    before = snapshot(module)
    network = Network(module)
    weights, buffers = network.fresh([1, 2])
    with network.training():
        network(weights[0], IMAGES, {n: b[0] for n, b in buffers.items()})
        network(weights[0], IMAGES)
    network.recalibrate(weights[1], [IMAGES])
    network.weights().zero_()
    after = snapshot(module)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_changing_random_weights_of_the_module_later_changes_nothing_and_constants_are_refused():
    module = mlp()
    network, inputs = Network(module, "2.*"), normal(4, 3)
    weights, outputs = network.weights(), network(network.weights(), inputs)
    with torch.no_grad():
        module[2].weight.zero_()  # type: ignore[operator,union-attr]
    assert torch.equal(network(weights, inputs), outputs)
    with torch.no_grad():
        module[0].weight.zero_()  # type: ignore[operator,union-attr]
    with pytest.raises(ValueError, match=r"was changed later: `0\.weight`, which is not random\. Model reads"):
        network(weights, inputs)


# --- training mode and buffers ---


def test_training_moves_the_given_buffers_as_the_modules_own_would_move():
    module = ConvNorm()
    network, reference = Network(module), copy.deepcopy(module).train()
    stack = network.stacked_buffers(3)
    own = {n: b[1] for n, b in stack.items()}
    for step in range(3):
        batch = normal(5, 1, 4, 4, seed=step)
        with network.training():
            outputs = network(network.weights(), batch, own)
        assert_close(outputs, reference(batch))
    for name, buffer in reference.named_buffers():
        assert_close(stack[name][1], buffer)
        assert torch.equal(stack[name][0], dict(module.named_buffers())[name])  # the other members' stand still
    assert_close(network(network.weights(), IMAGES, own), reference.eval()(IMAGES))


def test_training_ends_with_the_block_even_after_an_error():
    network = Network(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double())
    inputs = normal(4, 3)
    expected = network(network.weights(), inputs)
    with pytest.raises(RuntimeError), network.training():
        network(network.weights(), normal(4, 2))
    assert torch.equal(network(network.weights(), inputs), expected)


def test_batch_norm_without_running_statistics_depends_on_the_batch_and_other_norms_do_not():
    norms = [nn.InstanceNorm1d(4), nn.GroupNorm(1, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)]
    network = Network(nn.Sequential(*norms, nn.Flatten(), nn.Linear(8, 2)))
    assert (network.batch_norms, network.by_batch) == (("2",), ("3",))


def test_a_frozen_backbone_stays_in_evaluation_mode_while_the_head_trains():
    module = WithDropout()
    module.get_buffer("backbone.1.running_mean").fill_(0.3)
    network, inputs = Network(module, "head.*"), normal(16, 3)
    assert network.batch_norms == ("head.0",)
    assert all(name.startswith("head.0.") for name in network.buffers)
    own = {n: b.clone() for n, b in network.buffers.items()}
    with network.training():
        outputs = network(network.weights(), inputs, own)
    module.eval()
    hidden = module.backbone(inputs)
    assert_close(own["head.0.running_mean"], 0.1 * hidden.mean(0))
    normed = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    assert_close(outputs, module.head[1](normed))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recalibrated_statistics_are_the_averages_over_batches_weighted_by_rows(momentum: float | None):
    module = WithDropout(momentum)
    for name in ("backbone.1", "head.0"):
        module.get_buffer(f"{name}.running_mean").fill_(9.0)
    network, batches = Network(module), [normal(rows, 3, seed=rows) for rows in (4, 9, 2)]
    actual = network.recalibrate(network.weights() * 1.5, iter(batches))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
        hidden = [module.backbone[0](batch) for batch in batches]
        means, variances = (torch.stack([getattr(h, f)(0) for h in hidden]) for f in ("mean", "var"))
        share = torch.tensor([4, 9, 2], dtype=torch.float64).unsqueeze(1) / 15
        assert_close(actual["backbone.1.running_mean"], (share * means).sum(0))
        assert_close(actual["backbone.1.running_var"], (share * variances).sum(0))
        normed = [F.batch_norm(h, None, None, *module.backbone[1].parameters(), training=True) for h in hidden]
        assert_close(actual["head.0.running_mean"], (share * torch.stack([h.mean(0) for h in normed])).sum(0))
        assert_close(actual["head.0.running_var"], (share * torch.stack([h.var(0) for h in normed])).sum(0))
    own = network.buffers["head.0.running_mean"]
    assert (own == 9.0).all()  # the network's own buffers are unchanged, and nothing was left in training mode
    assert torch.equal(network(network.weights(), batches[0]), network(network.weights(), batches[0]))


def test_recalibration_starts_from_given_buffers_and_leaves_them_alone():
    network = Network(ConvNorm())
    given = {n: b + 1 for n, b in network.buffers.items()}
    actual = network.recalibrate(network.weights(), [IMAGES, IMAGES], given)
    assert actual["body.1.num_batches_tracked"].item() == 3
    assert given["body.1.num_batches_tracked"].item() == 1
    with pytest.raises(ValueError, match="cannot be recalibrated without data; got no batch"):
        network.recalibrate(network.weights(), [])


# --- fresh initialisation ---


DOUBLE: dict[str, Any] = {"dtype": torch.float64}


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(3, 5, **DOUBLE), nn.BatchNorm1d(5, **DOUBLE), nn.Linear(5, 2, **DOUBLE)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, **DOUBLE), nn.PReLU(**DOUBLE)),
        lambda: nn.Sequential(nn.Embedding(4, 3, **DOUBLE), nn.LSTM(3, 2, **DOUBLE)),
        lambda: nn.MultiheadAttention(4, 2, **DOUBLE),
        lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True, **DOUBLE),
    ],
    ids=["linear", "convolution", "recurrent", "attention", "transformer"],
)
def test_fresh_weights_are_those_the_constructor_draws_under_the_seed(
    make: Callable[[], nn.Module], untouched_rng: None
):
    with torch.random.fork_rng():
        module = make()
        expected = []
        for seed in (3, 4):
            with seeded(Purpose.INITIALISATION, seed):
                expected.append(Network(make()).weights())
    by_reset, _ = Network(module).fresh([3, 4, 3])
    by_factory, _ = Network(make).fresh([3, 4, 3])
    for drawn in (by_reset, by_factory):
        assert torch.equal(drawn, torch.stack([*expected, expected[0]]))
    assert (by_reset[0] != by_reset[1]).any()


def test_fresh_weights_of_a_trained_module_follow_its_initialisers_distribution():
    from scipy.stats import kstest

    module = Tied()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=100.0)
    network = Network(module)
    drawn, _ = network.fresh(range(300))
    bound = 3**-0.5  # of nn.Linear(3, 3), weights and biases alike
    for name, view in network.layout.split(drawn).items():
        assert kstest(view.flatten().numpy(), "uniform", (-bound, 2 * bound)).pvalue > 0.003, name


def test_fresh_leaves_constants_alone_and_gives_each_member_its_buffers():
    module = WithDropout()
    with torch.no_grad():
        module.get_buffer("head.0.running_mean").fill_(5.0)
    network = Network(module, "head.*")
    weights, buffers = network.fresh([1, 2])
    assert weights.shape == (2, network.layout.size)
    assert torch.equal(network.constants["backbone.0.weight"], module.backbone.get_parameter("0.weight"))
    assert (buffers["head.0.running_mean"] == torch.zeros(2, 8)).all()  # a new batch norm has seen nothing
    assert buffers["head.0.num_batches_tracked"].shape == (2,)


def test_fresh_leaves_the_network_itself_alone():
    network, inputs = Network(mlp(), "*.weight"), normal(4, 3)  # the biases are constants
    biases, outputs = network.constants["0.bias"].clone(), network(network.weights(), inputs)
    network.fresh([1])
    assert torch.equal(network.constants["0.bias"], biases)
    assert torch.equal(network(network.weights(), inputs), outputs)


def test_a_module_that_cannot_be_initialised_is_named():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(1, 2, 3, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.gain

    module = nn.Sequential(mlp(), nn.Sequential(Bare()))
    with pytest.raises(ValueError, match=r"`1\.0` \(Bare\) owns gain, and no `reset_parameters` or"):
        Network(module).fresh([0])
    weights, _ = Network(module, "0.*").fresh([0])  # as a constant it needs no initialiser
    assert torch.isfinite(weights).all()
    made, _ = Network(lambda: nn.Sequential(mlp(), nn.Sequential(Bare()))).fresh([0])
    assert made[0, -3:].tolist() == [1, 1.5, 2]


def test_a_factory_of_changing_networks_is_an_error():
    widths = iter([(3, 2), (3, 2), (3, 4), (3, 4, 2)])
    network = Network(lambda: mlp(next(widths)))
    assert torch.isfinite(network.fresh([0])[0]).all()
    with pytest.raises(ValueError, match=r"`0\.weight` must end in shape \(2, 3\); got \(4, 3\)"):
        network.fresh([0])
    renamed = iter([mlp((3, 2)), nn.Linear(3, 2)])
    with pytest.raises(ValueError, match="the same parameter names at every call"):
        Network(lambda: next(renamed)).fresh([0])


def test_the_module_needs_no_memory_beside_the_snapshot():
    given = mlp()
    network = Network(given)
    own = dict(network.module.named_parameters())
    assert all(own[name].data_ptr() == view.data_ptr() for name, view in network.initial.items())
    for parameter in given.parameters():
        parameter.data.zero_()
    network.weights().zero_()
    assert all(view.abs().min() > 0 for view in network.initial.values())
