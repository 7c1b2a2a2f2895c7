import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, vmap

from torchbayes import networks


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def conv(fan_in: int, fan_out: int, side: int, *, bias: bool = True) -> int:
    return fan_out * (fan_in * side * side + bias)


def resnet_convs(channels: int, *, bias: bool, width: int = 16) -> int:
    total = conv(channels, width, 3, bias=bias) + 6 * conv(width, width, 3, bias=bias)
    for fan_in, fan_out in ((width, 2 * width), (2 * width, 4 * width)):
        total += conv(fan_in, fan_out, 3, bias=bias) + 5 * conv(fan_out, fan_out, 3, bias=bias)
        total += conv(fan_in, fan_out, 1, bias=bias)
    return total


NORMED = 7 * 16 + 7 * 32 + 7 * 64  # channels that pass a normalisation in the post-activation net, shortcuts included
PRENORMED = 6 * 16 + (16 + 5 * 32) + (32 + 5 * 64) + 64
HEAD = 64 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "settings", "expected"),
    [
        ("mlp", (13,), {}, 13 * 50 + 50 + 50 * 50 + 50 + 50 * 10 + 10),
        ("mlp", (1, 28, 28), {"hidden": [200], "activation": "tanh"}, 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", (5,), {"hidden": ()}, 5 * 10 + 10),
        ("linear", (2, 3, 4), {}, 24 * 10 + 10),
        ("lenet", (1, 28, 28), {}, 431_080),
        ("lenet", (3, 32, 32), {}, conv(3, 20, 5) + conv(20, 50, 5) + 1250 * 500 + 500 + 5010),
        ("lenet", (1, 16, 16), {}, conv(1, 20, 5) + conv(20, 50, 5) + 50 * 500 + 500 + 5010),
        (
            "lenet",
            (3, 32, 32),
            {"channels": [192, 192], "hidden": 1000, "dropout": 0.5},
            conv(3, 192, 5) + conv(192, 192, 5) + 4800 * 1000 + 1000 + 10_010,
        ),
        ("small_cnn", (1, 8, 8), {}, conv(1, 16, 3) + conv(16, 32, 3) + 512 * 10 + 10),
        ("small_cnn", (1, 28, 28), {}, conv(1, 16, 3) + conv(16, 32, 3) + 512 * 10 + 10),
        ("small_cnn", (3, 32, 32), {}, conv(3, 16, 3) + conv(16, 32, 3) + 512 * 10 + 10),
        ("small_cnn", (2, 9, 21), {}, conv(2, 16, 3) + conv(16, 32, 3) + 32 * 4 * 5 * 10 + 10),
        ("resnet20_frn", (3, 32, 32), {}, 272_474),
        ("resnet20_frn", (1, 28, 28), {}, resnet_convs(1, bias=False) + 2 * NORMED + HEAD),
        ("resnet20_frn", (3, 32, 32), {"bias": True, "threshold": True}, 274_042),
        ("preresnet20", (3, 32, 32), {}, resnet_convs(3, bias=False) + 2 * PRENORMED + HEAD),
        ("preresnet20", (1, 8, 8), {}, resnet_convs(1, bias=False) + 2 * PRENORMED + HEAD),
        # all that passes a normalisation grows with the width, and so does the head but for its biases
        ("resnet20_frn", (1, 8, 8), {"width": 4}, resnet_convs(1, bias=False, width=4) + (2 * NORMED + 640) // 4 + 10),
        (
            "preresnet20",
            (3, 8, 8),
            {"width": 5},
            resnet_convs(3, bias=False, width=5) + 5 * (2 * PRENORMED + 640) // 16 + 10,
        ),
    ],
)
def test_outputs_and_number_of_weights(name: str, shape: tuple[int, ...], settings: dict, expected: int):
    net = networks.build(name, shape, 10, **settings)
    assert count(net) == expected
    outputs = net(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)))
    assert outputs.shape == (3, 10)
    assert outputs.isfinite().all()


def test_published_counts_agree_with_the_sum_over_layers():
    assert resnet_convs(3, bias=False) + 2 * NORMED + HEAD == 272_474
    assert resnet_convs(3, bias=True) + 3 * NORMED + HEAD == 274_042
    assert conv(1, 20, 5) + conv(20, 50, 5) + 800 * 500 + 500 + 500 * 10 + 10 == 431_080


@pytest.mark.parametrize("name", ["resnet20_frn", "preresnet20"])
def test_resnets_halve_the_image_twice_and_end_in_64_features(name: str):
    outputs, sizes = torch.zeros(2, 3, 32, 32), []
    for layer in networks.build(name, (3, 32, 32), 10).children():
        outputs = layer(outputs)
        sizes.append(tuple(outputs.shape[1:]))
    assert list(dict.fromkeys(sizes)) == [(16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 1, 1), (64,), (10,)]


@pytest.mark.parametrize("threshold", [False, True])
def test_filter_response_norm_is_its_formula(threshold: bool):
    generator = torch.Generator().manual_seed(0)
    norm = networks.FilterResponseNorm2d(4, eps=1e-3, threshold=threshold).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_(generator=generator)
    inputs = torch.randn(2, 4, 3, 5, dtype=torch.float64, generator=generator)
    actual = norm(inputs)
    for image in range(2):
        for channel in range(4):
            values = inputs[image, channel]
            power = sum(float(value) ** 2 for value in values.flatten()) / 15
            expected = norm.weight[channel] * values / math.sqrt(power + 1e-3) + norm.bias[channel]
            if norm.threshold is not None:
                expected = torch.clamp(expected, min=norm.threshold[channel].item())
            torch.testing.assert_close(actual[image, channel], expected, rtol=1e-13, atol=1e-13)
    assert not list(norm.buffers())


# PyTorch compiles its rules of forward mode when they are first used, in a way that it warns of
forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def response(*, threshold: bool) -> tuple[networks.FilterResponseNorm2d, dict[str, torch.Tensor], torch.Tensor]:
    """Return a norm of two channels, weights for it whose threshold cuts off a part, and images."""
    source = torch.Generator().manual_seed(1)
    norm = networks.FilterResponseNorm2d(2, eps=1e-3, threshold=threshold).double()
    weights = {n: torch.randn(p.shape, dtype=p.dtype, generator=source) / 2 for n, p in norm.named_parameters()}
    return norm, weights, torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=source)


@forward_mode
@pytest.mark.parametrize("threshold", [False, True])
def test_filter_response_norm_gradients_by_finite_differences(threshold: bool):
    norm, weights, images = response(threshold=threshold)

    def run(images: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return functional_call(norm, dict(zip(weights, values, strict=True)), (images,))

    leaves = [tensor.requires_grad_() for tensor in (images, *weights.values())]
    if threshold:
        assert 0.1 < (run(*leaves) == weights["threshold"][:, None, None]).double().mean() < 0.9
    every = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(run, leaves, **every)
    assert torch.autograd.gradgradcheck(run, leaves)


@forward_mode
@pytest.mark.parametrize("threshold", [False, True])
def test_filter_response_norm_has_the_derivatives_of_its_formula(threshold: bool):
    norm, weights, images = response(threshold=threshold)

    def loss(run, weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        return run(weights, images).pow(3).sum()

    def formula(weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        own = {name: weight[:, None, None] for name, weight in weights.items()}
        normed = own["weight"] * images * (images.square().mean((-2, -1), keepdim=True) + 1e-3) ** -0.5 + own["bias"]
        return torch.maximum(normed, own["threshold"]) if threshold else normed

    def module(weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        return functional_call(norm, weights, (images,))

    two = {name: torch.stack([weight, 2 * weight]) for name, weight in weights.items()}
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
    for members, rows in ((0, None), (None, 0), (0, 0)):
        own = two if members == 0 else weights
        each = images.unsqueeze(1) if rows == 0 else images
        actual, expected = (
            vmap(grad(partial(loss, run), argnums=(0, 1)), (members, rows))(own, each) for run in (module, formula)
        )
        close(actual, expected)
    actual, expected = (hessian(partial(loss, run))(weights, images) for run in (module, formula))
    close(actual, expected)


def test_each_side_of_a_threshold_gets_half_of_the_gradient_where_both_are_equal():
    norm = networks.FilterResponseNorm2d(1, threshold=True)
    assert norm.threshold is not None
    outputs = norm(torch.tensor([[[[-1.0, 0.0, 1.0, 2.0]]]]))
    assert torch.autograd.grad(outputs.sum(), (norm.bias, norm.threshold)) == (2.5, 1.5)


SMALL = {"mlp": (1, 8, 8), "lenet": (1, 16, 16), "small_cnn": (2, 8, 8), "resnet20_frn": (2, 8, 8)}


def stacked(name: str, members: int) -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    nets = [networks.build(name, SMALL[name], 3).double() for _ in range(members)]
    return nets[0], [{key: value.detach() for key, value in net.named_parameters()} for net in nets]


@pytest.mark.parametrize("name", SMALL)
def test_vmap_over_three_weight_sets_equals_the_loop(name: str):
    net, weights = stacked(name, 3)
    inputs = torch.randn(2, *SMALL[name], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = {key: torch.stack([one[key] for one in weights]) for key in weights[0]}
    outputs_MBK = vmap(lambda one: functional_call(net, one, (inputs,)))(together)
    expected = torch.stack([functional_call(net, one, (inputs,)) for one in weights])
    torch.testing.assert_close(outputs_MBK, expected, rtol=1e-10, atol=1e-12)
    assert (expected[0] - expected[1]).abs().min() > 1e-6  # the members do differ


def test_vmap_of_preresnet_in_evaluation_mode():
    nets = [networks.preresnet20((1, 8, 8), 3).double().eval() for _ in range(2)]
    inputs = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stack, buffers = torch.func.stack_module_state(nets)
    outputs = vmap(lambda one, state: functional_call(nets[0], (one, state), (inputs,)))(stack, buffers)
    torch.testing.assert_close(outputs, torch.stack([net(inputs) for net in nets]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", networks.names())
def test_gradients_reach_every_weight(name: str):
    net = networks.build(name, (1, 16, 16), 3)
    outputs = net(torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0)))
    nn.functional.cross_entropy(outputs, torch.tensor([0, 1, 2, 0])).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.slow
# the layers of a residual network are traced by `vmap`, above, and its sums have no branch
@pytest.mark.parametrize("name", ["mlp", "small_cnn", pytest.param("resnet20_frn", marks=pytest.mark.study)])
def test_one_graph_under_compile(name: str):
    net = networks.build(name, SMALL[name], 3).double()
    inputs = torch.randn(2, *SMALL[name], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(inputs), net(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", networks.names())
def test_reset_parameters_draws_the_construction_anew(name: str):
    torch.manual_seed(5)
    first = networks.build(name, (1, 16, 16), 3)
    fresh = networks.build(name, (1, 16, 16), 3)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.fill_(7.0)
    torch.manual_seed(5)
    for module in fresh.modules():
        if list(module.parameters(recurse=False)):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
    for key, value in first.named_parameters():
        torch.testing.assert_close(fresh.get_parameter(key), value, rtol=0, atol=0)


def test_he_initialisation_has_its_variance():
    torch.manual_seed(0)
    net = networks.resnet20_frn((3, 32, 32), 10, bias=True)
    kernel = net.get_parameter("11.conv2.weight")  # 36,864 values: relative error of the variance sqrt(2 / 36864)
    ratio = kernel.var() / (2 / (64 * 9))
    torch.testing.assert_close(ratio, torch.tensor(1.0), rtol=0, atol=5 * math.sqrt(2 / kernel.numel()))
    assert not net.get_parameter("11.conv2.bias").any()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 8, 8), "at least 16x16 pixels; got 8x8"),
        ("lenet", (1, 28, 15), "at least 16x16 pixels; got 28x15"),
        ("small_cnn", (1, 7, 8), "at least 8x8 pixels; got 7x8"),
        ("resnet20_frn", (3, 4, 4), "at least 8x8 pixels; got 4x4"),
        ("preresnet20", (64,), "must be \\(channels, height, width\\); got \\(64,\\)"),
        ("lenet", (28, 28), "must be \\(channels, height, width\\); got \\(28, 28\\)"),
        ("mlp", (), "one or more positive sizes"),
        ("mlp", (3, 0), "one or more positive sizes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(name: str, shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        networks.build(name, shape, 10)


def test_unknown_names_and_settings_suggest_the_close_ones():
    with pytest.raises(ValueError, match=r"no network 'lenett'\. Did you mean lenet or linear\?"):
        networks.build("lenett", (1, 28, 28), 10)
    known = "linear, mlp, tabular, lenet, small_cnn, resnet20_frn, preresnet20"
    with pytest.raises(ValueError, match=f"Choose from: {known}"):
        networks.build("xyz", (1, 28, 28), 10)
    with pytest.raises(ValueError, match=r"has no setting 'hiden'\. Did you mean hidden\?"):
        networks.build("mlp", (4,), 1, hiden=(3,))
    with pytest.raises(ValueError, match="one of relu, tanh, swish; got 'gelu'"):
        networks.build("mlp", (4,), 1, activation="gelu")
    with pytest.raises(ValueError, match="`hidden` must be a whole number of at least 1; got 0"):
        networks.mlp(4, 1, hidden=(3, 0))
    with pytest.raises(ValueError, match="`num_outputs` must be a whole number of at least 1; got 0"):
        networks.mlp(4, 0)
    for name in ("resnet20_frn", "preresnet20"):
        with pytest.raises(ValueError, match="`width` must be a whole number of at least 1; got 0"):
            networks.build(name, (1, 8, 8), 10, width=0)


def shapes_of_numpy(*shapes: list[int]) -> tuple[Any, ...]:
    return tuple(np.array(shape) for shape in shapes)


def test_sizes_may_be_arrays():
    table, image = shapes_of_numpy([2, 3], [1, 8, 8])
    shapes = [p.shape for p in networks.build("mlp", table, 1, hidden=np.array([5, 4])).parameters()]
    assert shapes == [p.shape for p in networks.build("mlp", (2, 3), 1, hidden=(5, 4)).parameters()]
    assert networks.build("small_cnn", image, 2)(torch.zeros(1, 1, 8, 8)).shape == (1, 2)
