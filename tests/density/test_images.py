"""Convolutions and pools in the kernel: equal to autograd, whatever the sizes; refused where it knows better ones."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn
from torch.nn import AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Sequential, Sigmoid, SiLU, Tanh

import torchbayes as tb
from torchbayes.density import LogDensity
from torchbayes.density.dynamics import leapfrog
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.native.build import available
from torchbayes.networks import build

pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
Shape = tuple[int, int, int]
ACTIVATIONS: list[type[nn.Module]] = [Identity, ReLU, Tanh, Sigmoid, SiLU]


def headed(shape: Shape, *stages: nn.Module, outputs: int = 3) -> Sequential:
    """Return stages followed by a linear layer of the right width, in float64."""
    torch.manual_seed(0)
    features = Sequential(*stages, Flatten()).double()
    with torch.no_grad():
        width = features(torch.zeros(1, *shape).double()).shape[1]
    return Sequential(*features, Linear(width, outputs).double())


NETWORKS: dict[str, tuple[Shape, Callable[[], list[nn.Module]]]] = {
    "one": ((1, 5, 4), lambda: [Conv2d(1, 2, 3)]),
    "pixels": ((3, 3, 3), lambda: [Conv2d(3, 5, 1, bias=False), ReLU()]),
    "odd sizes": ((2, 9, 7), lambda: [Conv2d(2, 17, (3, 2), padding=(1, 0)), Tanh(), Conv2d(17, 5, (2, 3)), SiLU()]),
    "wide": ((3, 6, 5), lambda: [Conv2d(3, 50, 3, padding=1), SiLU(), Conv2d(50, 35, 3), ReLU(), Conv2d(35, 9, 2)]),
    "strides": ((2, 11, 10), lambda: [Conv2d(2, 6, 3, stride=2, padding=1), ReLU(), Conv2d(6, 7, 3, stride=(3, 2))]),
    "a stride over all": ((1, 6, 6), lambda: [Conv2d(1, 4, 2, stride=3), Sigmoid(), Conv2d(4, 4, 2, stride=5)]),
    "dilated": ((2, 12, 11), lambda: [Conv2d(2, 4, 3, dilation=2, stride=2), Tanh(), Conv2d(4, 9, 2, dilation=(1, 2))]),
    "much padding": ((2, 3, 4), lambda: [Conv2d(2, 3, 2, padding=3), ReLU(), Conv2d(3, 2, 3, padding=(4, 2))]),
    "same": ((2, 4, 6), lambda: [Conv2d(2, 3, (3, 5), padding="same"), ReLU(), Conv2d(3, 3, 2, padding="valid")]),
    "pools": (
        (1, 13, 11),
        lambda: [Conv2d(1, 18, 3), MaxPool2d(2), ReLU(), Conv2d(18, 4, 2), AvgPool2d((3, 2)), SiLU()],
    ),
    "pools that overlap": (
        (2, 9, 9),
        lambda: [
            Conv2d(2, 5, 2),
            Tanh(),
            MaxPool2d(3, 1),
            AvgPool2d(2, 1),
            Conv2d(5, 6, 3, padding=1),
            MaxPool2d(3, 2),
        ],
    ),
    "pools that skip": ((2, 9, 8), lambda: [Conv2d(2, 9, 2), MaxPool2d(2, 3), Conv2d(9, 3, 1), AvgPool2d(1, 2)]),
    "no pool": ((1, 4, 4), lambda: [Conv2d(1, 3, 3, padding=1), MaxPool2d(1), ReLU(), Identity(), Identity()]),
    "small_cnn": ((1, 8, 8), lambda: list(build("small_cnn", (1, 8, 8), 3).children())[:-2]),
}
each_network = pytest.mark.parametrize(("shape", "stages"), NETWORKS.values(), ids=NETWORKS.keys())
Stages = Callable[[], list[nn.Module]]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_same_values(model: Model, weights_MD: Tensor, batch: Batch | None, data: Batch | None, chunk: int = 1024):
    rows = 1000 if data is None else data.size
    ours = LogDensity(model, rows, data, plan="native", chunk_size=chunk)(weights_MD, batch)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the number is about the kernel
    expected = LogDensity(model, rows, data, plan="loop")(weights_MD, batch)
    torch.set_num_threads(before)
    for mine, right in zip(ours, expected, strict=True):
        assert_close(mine, right, rtol=1e-10, atol=1e-10 * right.abs().max().item())


@each_network
@pytest.mark.parametrize("members", [1, 3])
def test_minibatches_give_what_autograd_gives(shape: Shape, stages: Stages, members: int, threads: int):
    model = Model(headed(shape, *stages()), likelihoods.Categorical(), priors.Normal(0.7))
    weights_MD, inputs = 0.5 * normal(members, model.layout.size), normal(members, 9, *shape)
    assert_same_values(model, weights_MD, Batch(inputs, classes(members * 9, 3).view(members, 9)), None)


@each_network
@pytest.mark.parametrize("chunk", [5, 1024])
def test_all_the_data_are_the_sum_of_their_chunks(shape: Shape, stages: Stages, chunk: int, threads: int):
    model = Model(headed(shape, *stages()), likelihoods.Categorical(), priors.Normal(0.7))
    assert_same_values(
        model, 0.5 * normal(2, model.layout.size), None, Batch(normal(101, *shape), classes(101, 3)), chunk
    )


@each_network
def test_predictions_are_the_networks_own(shape: Shape, stages: Stages, threads: int):
    model = Model(headed(shape, *stages()), likelihoods.Categorical())
    weights_SD, inputs = normal(3, model.layout.size), normal(70, *shape)
    outputs = tb.Point(model, weights_SD).functions()(inputs, chunk_size=30)
    apart_SD = torch.cat([weights_SD, math.nan * weights_SD], 1)[:, : model.layout.size]
    assert_close(tb.Functions(model, apart_SD)(inputs, chunk_size=30), outputs)
    assert_close(outputs, torch.stack([model.network(model.split(w)[0], inputs) for w in weights_SD]), rtol=1e-10)


def random_network(seed: int) -> tuple[Shape, Sequential]:
    source = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=source))

    shape = channels, height, width = pick(1, 4), pick(5, 14), pick(5, 14)
    stages: list[nn.Module] = []
    for _ in range(pick(1, 4)):
        kernel = pick(1, min(4, height)), pick(1, min(4, width))
        stride = pick(1, 3), pick(1, 3)
        if stages and pick(0, 2) == 0:
            stages.append((MaxPool2d, AvgPool2d)[pick(0, 1)](kernel, stride))
            padding = 0, 0
        else:
            padding, wider = (pick(0, 2), pick(0, 2)), (1, 3, 8, 16, 20, 33)[pick(0, 5)]
            stages.append(Conv2d(channels, wider, kernel, stride, padding, bias=pick(0, 3) > 0))
            channels = wider
        stages.append(ACTIVATIONS[pick(0, 4)]())
        height, width = (
            (side + 2 * p - k) // s + 1 for side, p, k, s in zip((height, width), padding, kernel, stride, strict=True)
        )
    return shape, headed(shape, *stages)


@pytest.mark.parametrize("seed", range(20))
def test_any_stack_of_stages_gives_what_autograd_gives(seed: int):
    shape, network = random_network(seed)
    model = Model(network, likelihoods.Categorical(), {"*bias": priors.Laplace(), "*": priors.Normal()})
    batch = Batch(normal(2, 19, *shape), classes(38, 3).view(2, 19))
    assert_same_values(model, 0.5 * normal(2, model.layout.size), batch, None, chunk=7)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (likelihoods.Gaussian("learned"), normal(30, 2, seed=1)),
        (likelihoods.HeteroscedasticGaussian(1e-3), normal(30, seed=1)),
    ],
)
def test_other_likelihoods_work_on_images(likelihood: likelihoods.Likelihood, targets: Tensor, threads: int):
    model = Model(headed((2, 6, 5), Conv2d(2, 4, 3), Tanh(), outputs=2), likelihood)
    assert_same_values(model, 0.5 * normal(2, model.layout.size), None, Batch(normal(30, 2, 6, 5), targets))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_single_precision_is_right_to_its_own_rounding(activation: type[nn.Module]):
    shape, rows = (2, 9, 8), 60
    network = headed(shape, Conv2d(2, 20, 3, padding=1), activation(), MaxPool2d(2), Conv2d(20, 7, 3), activation())
    exact = Model(network, likelihoods.Categorical())
    data = Batch(normal(rows, *shape).float(), classes(rows, 3))
    model = Model(network.float(), likelihoods.Categorical())
    weights_MD = 0.3 * normal(2, model.layout.size)
    value = LogDensity(model, rows, data, plan="native")(weights_MD.float())
    double = data._replace(inputs=data.inputs.double())
    expected = LogDensity(exact, rows, double, plan="loop")(weights_MD.float().double())
    for mine, right in zip(value, expected, strict=True):
        assert_close(mine, right, rtol=2e-5, atol=2e-5 * right.abs().max().item())


def test_the_first_of_equal_values_is_the_maximum():
    # whole numbers make ties everywhere
    network = headed((1, 7, 7), Conv2d(1, 3, 2), MaxPool2d(3, 2), Conv2d(3, 4, 1), MaxPool2d(2))
    model = Model(network, likelihoods.Categorical(), priors.Flat())
    source = torch.Generator().manual_seed(0)
    weights_MD = torch.randint(-1, 2, (4, model.layout.size), generator=source).double()
    inputs = torch.randint(-1, 2, (12, 1, 7, 7), generator=source).double()
    assert_same_values(model, weights_MD, None, Batch(inputs, classes(12, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pool", [MaxPool2d, AvgPool2d])
def test_nan_is_never_hidden(pool: type[nn.Module], dtype: torch.dtype):
    model = Model(headed((1, 6, 6), Conv2d(1, 3, 3), pool(2), ReLU()).to(dtype), likelihoods.Categorical())
    weights_MD = normal(2, model.layout.size).to(dtype)
    weights_MD[1, 3] = torch.nan
    data = Batch(normal(5, 1, 6, 6).to(dtype), classes(5, 3))
    value = LogDensity(model, 5, data, plan="native")(weights_MD)
    assert value.log_density.isnan().tolist() == [False, True]
    assert value.gradient.isnan().any(1).tolist() == [False, True]


def test_trajectories_in_the_kernel_are_those_outside(threads: int):
    model = Model(headed((1, 8, 8), *NETWORKS["small_cnn"][1]()), likelihoods.Categorical())
    density = LogDensity(model, 40, Batch(normal(40, 1, 8, 8), classes(40, 3)), plan="native")
    weights_MD, momentum_MD = 0.3 * normal(3, model.layout.size), normal(3, model.layout.size, seed=1)
    options = {
        "gradient_MD": density(weights_MD).gradient,
        "step_size_M": torch.tensor([0.01, -0.02, 0.005]).double(),
        "steps_M": torch.tensor([3, 1, 4]),
    }
    ours = density.leapfrog(weights_MD, momentum_MD, **options)
    expected = leapfrog(density, weights_MD, momentum_MD, **options)
    assert_close(ours.weights_MD, expected.weights_MD)
    assert_close(ours.momentum_MD, expected.momentum_MD)
    assert_close(ours.value.log_density, expected.value.log_density)


def test_images_of_another_size_take_turns():
    # the kernel keeps borders of zeros from call to call: those of one shape must not show in the other
    networks = [
        headed(shape, Conv2d(1, 3, 3, padding=1), ReLU(), Conv2d(3, 4, 3, padding=1))
        for shape in ((1, 6, 4), (1, 4, 6))
    ]
    models = [Model(network, likelihoods.Categorical()) for network in networks]
    for (model, sides), rows in itertools.product(zip(models, ((6, 4), (4, 6)), strict=True), (20, 3, 30)):
        weights_MD = normal(2, model.layout.size)
        assert_same_values(model, weights_MD, None, Batch(normal(rows, 1, *sides), classes(rows, 3)))
        turned = Batch(normal(rows, 1, *sides[::-1]), classes(rows, 3))  # the same number of features
        assert_same_values(model, weights_MD, None, turned)


def test_auto_takes_the_kernel():
    model = Model(build("small_cnn", (1, 8, 8), 10), likelihoods.Categorical())
    assert isinstance(kernel_of(model), DenseModel)
    density = LogDensity(model, 4, Batch(normal(4, 1, 8, 8).float(), classes(4, 10)))
    density(normal(1, model.layout.size).float())
    assert density.plan
    assert density.plan.backend == "native"


REFUSED: dict[str, tuple[list[nn.Module], str]] = {
    "groups": ([Conv2d(2, 2, 3, groups=2), Flatten(), Linear(2, 2)], "groups"),
    "reflections": ([Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), Flatten(), Linear(2, 2)], "zeros alone"),
    "one side": ([Conv2d(1, 2, 2, padding="same"), Flatten(), Linear(2, 2)], "differs from one side"),
    "padded pool": ([Conv2d(1, 2, 3), MaxPool2d(2, padding=1), Flatten(), Linear(2, 2)], "kernel size and stride"),
    "ceiling": ([Conv2d(1, 2, 3), AvgPool2d(2, ceil_mode=True), Flatten(), Linear(2, 2)], "kernel size and stride"),
    "divisor": ([Conv2d(1, 2, 3), AvgPool2d(2, divisor_override=3), Flatten(), Linear(2, 2)], "kernel size"),
    "pooled inputs": ([MaxPool2d(2), Conv2d(1, 2, 3), Flatten(), Linear(2, 2)], "pools its inputs"),
    "no head": ([Conv2d(1, 2, 3), Flatten()], "no linear layer"),
    "no flatten": ([Conv2d(1, 2, 3), Linear(2, 2)], "Linear where"),
    "batch norm": ([Conv2d(1, 2, 3), nn.BatchNorm2d(2), Flatten(), Linear(2, 2)], "BatchNorm2d"),
    "tail": ([Conv2d(1, 2, 3), Flatten(), Linear(2, 2), Conv2d(2, 2, 1)], "Conv2d where"),
}


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_kernel_cannot_run_is_refused_with_the_reason(parts: list[nn.Module], reason: str):
    assert reason in str(kernel_of(Model(Sequential(*parts), likelihoods.Categorical())))


@pytest.mark.parametrize("shape", [(4, 36), (4, 1, 5, 7), (4, 2, 6, 6), (4, 6, 6), (4, 1, 2, 2), (4, 1, 3, 17)])
def test_images_that_do_not_fit_are_refused_before_memory_is_read(shape: tuple[int, ...]):
    model = Model(headed((1, 6, 6), Conv2d(1, 2, 3)), likelihoods.Categorical())
    with pytest.raises(ValueError, match=r"1 channels that come to 32 features in torch\.float64"):
        LogDensity(model, 4, Batch(normal(*shape), classes(4, 3)), plan="native")(normal(1, model.layout.size))
