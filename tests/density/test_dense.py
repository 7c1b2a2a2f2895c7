"""The kernel of fully connected networks: equal to autograd, refused where it does not fit, safe to hand over."""

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes import networks
from torchbayes.density import LogDensity
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.native import build
from torchbayes.native.build import UnavailableError, available, load

N, B = 1000, 23


pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
ACTIVATIONS: list[type[nn.Module]] = [nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU]


def stack(*widths: int, activation: type[nn.Module] = nn.Tanh, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    return nn.Sequential(*layers[:-1]).double()


def flattened() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Sequential(stack(5, 4), nn.Identity(), nn.Sigmoid()), stack(4, 3))


def encoded(outputs: int) -> nn.Sequential:
    """A network for tables, whose columns have several bins and missing values."""
    inputs = normal(40, 5, seed=4)
    encoding = networks.ColumnEncoding.fit(inputs.masked_fill(inputs > 1.5, math.nan), bins=3)
    assert len(encoding.marked)
    assert encoding.features > 10
    torch.manual_seed(0)
    return networks.tabular(5, outputs, encoding=encoding, hidden=(4, 3))


TARGETS: dict[str, Callable[[int, int], Tensor]] = {
    "classes": classes,
    "numbers": lambda rows, outputs: normal(rows, outputs, seed=1),
    "number": lambda rows, outputs: normal(rows, seed=1),
}
CASES: dict[str, tuple[Callable[[], Model], str]] = {
    **{
        f"classes, {activation.__name__}": (
            lambda activation=activation: Model(
                stack(5, 7, 6, 4, activation=activation), likelihoods.Categorical(), priors.Normal(0.7)
            ),
            "classes",
        )
        for activation in ACTIVATIONS
    },
    "no bias": (lambda: Model(stack(5, 7, 4, bias=False), likelihoods.Categorical(), priors.Flat()), "classes"),
    "linear": (lambda: Model(stack(5, 1), likelihoods.Gaussian(0.3), priors.Normal(2.0, 0.5)), "number"),
    "flatten and nested": (lambda: Model(flattened(), likelihoods.Categorical()), "classes"),
    "a noise for each": (lambda: Model(stack(5, 4, 2), likelihoods.Gaussian((0.3, 2.0))), "numbers"),
    "learned noise": (lambda: Model(stack(5, 4, 2), likelihoods.Gaussian("learned")), "numbers"),
    "learned noises": (
        lambda: Model(stack(5, 4, 2), likelihoods.Gaussian("learned", 2), {"*": priors.StudentT()}),
        "numbers",
    ),
    "learned noises on scales of their own": (
        lambda: Model(stack(5, 4, 2), likelihoods.Gaussian("learned", 2, spread=(0.5, 30.0)), priors.Flat()),
        "numbers",
    ),
    "encoded columns": (lambda: Model(encoded(3), likelihoods.Categorical(), priors.Normal(0.7)), "classes"),
    "heteroscedastic": (lambda: Model(stack(5, 4, 2), likelihoods.HeteroscedasticGaussian(1e-3)), "number"),
    **{
        f"groups, {groups}": (
            lambda groups=groups: Model(
                stack(5, 4, 3), likelihoods.Categorical(), priors.Hierarchical(0.6, 3.0, groups), temperature=0.7
            ),
            "classes",
        )
        for groups in ("layer", "rows", "columns")
    },
    "heavy tails around a mean": (
        lambda: Model(stack(5, 4, 2), likelihoods.HeteroscedasticGaussian(), priors.StudentT(3.0, 0.7, 0.4)),
        "number",
    ),
    "three priors": (
        lambda: Model(
            stack(5, 4, 3),
            likelihoods.Categorical(),
            {"0.*": priors.Laplace(), "2.weight": priors.Normal(3.0), "*": priors.Flat()},
            temperature=0.2,
        ),
        "classes",
    ),
}
each_case = pytest.mark.parametrize(("make", "kind"), CASES.values(), ids=CASES.keys())


def members_batch(model: Model, kind: str, members: int, rows: int) -> Batch:
    outputs = int(model.network(model.network.weights(), normal(1, 5)).shape[-1])
    targets = TARGETS[kind](members * rows, outputs)
    return Batch(normal(members, rows, 5), targets.view(members, rows, *targets.shape[1:]))


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@each_case
@pytest.mark.parametrize("members", [1, 2, 5])
def test_value_and_gradient_are_those_of_autograd(make: Callable[[], Model], kind: str, members: int, threads: int):
    model = make()
    weights_MD, batch = 0.8 * normal(members, model.layout.size), members_batch(model, kind, members, B)
    ours, loop = LogDensity(model, N, plan="native"), LogDensity(model, N, plan="loop")
    for call in ("__call__", "loss"):
        for mine, expected in zip(
            getattr(ours, call)(weights_MD, batch), getattr(loop, call)(weights_MD, batch), strict=True
        ):
            assert_close(mine, expected)


@each_case
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("chunk_size", [7, 10_000])
def test_all_the_data_are_the_sum_of_their_chunks(
    make: Callable[[], Model], kind: str, members: int, chunk_size: int, threads: int
):
    model, rows = make(), 700  # enough for threads to share the rows of one member
    data = members_batch(model, kind, 1, rows).map(lambda t: t[0])
    weights_MD = 0.8 * normal(members, model.layout.size)
    value = LogDensity(model, rows, data, plan="native", chunk_size=chunk_size)(weights_MD)
    for mine, expected in zip(value, LogDensity(model, rows, data, plan="loop")(weights_MD), strict=True):
        assert_close(mine, expected)


@each_case
@pytest.mark.parametrize("draws", [1, 3])
def test_predictions_are_the_networks_own(make: Callable[[], Model], kind: str, draws: int, threads: int):
    model = make()
    weights_SD, inputs = normal(draws, model.layout.size), normal(700, 5)
    outputs = tb.Point(model, weights_SD).functions()(inputs, chunk_size=300)
    assert_close(outputs, torch.stack([model.network(model.split(w)[0], inputs) for w in weights_SD]))
    for apart_SD in (  # rows apart, as chains and checksums lie between them; one row again and again; columns
        torch.cat([weights_SD, math.nan * weights_SD], 1)[:, : model.layout.size],
        weights_SD[:1].expand(draws, -1),
        weights_SD.T.contiguous().T,
    ):
        actual = tb.Functions(model, apart_SD)(inputs, chunk_size=300)
        # not to the bit: products of matrices round by how these are aligned
        assert_close(actual, tb.Functions(model, torch.stack(list(apart_SD)))(inputs, chunk_size=300))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # runs are short
@pytest.mark.parametrize(
    "method",
    [
        tb.HMC(chains=2, steps=4, burn_in=2, step_size=0.02),
        # its kernel takes the gradients that HMC takes
        pytest.param(tb.NUTS(chains=2, steps=4, burn_in=2, step_size=0.02), marks=pytest.mark.study),
        tb.EllipticalSlice(chains=2, steps=4, burn_in=2),
        tb.VI(epochs=3),
    ],
    ids=lambda method: type(method).__name__,
)
def test_methods_with_kernels_of_their_own_encode_columns(method: Any) -> None:
    model = Model(encoded(2), likelihoods.HeteroscedasticGaussian(0.1), priors.Normal(0.5))
    data = (normal(30, 5), normal(30, 1, seed=1))
    mine, loop = (tb.fit(model, data, replace(method, plan=plan)) for plan in ("native", "loop"))
    assert_close(*(tb.predict(each, normal(7, 5, seed=2)).mean for each in (mine, loop)), rtol=1e-6)


def test_members_that_encode_columns_in_other_ways_are_not_run_together() -> None:
    model = Model(encoded(3), likelihoods.Categorical())
    batch, weights_MD = members_batch(model, "classes", 2, B), normal(2, model.layout.size)
    others = model.network.stacked_buffers(2)
    others["1.centre"] = others["1.centre"] + torch.tensor([[0.0], [0.5]])
    kernel = kernel_of(model)
    assert isinstance(kernel, DenseModel)
    assert kernel.shares(model.network.stacked_buffers(2))
    assert not kernel.shares(others)
    loop = LogDensity(model, N, plan="loop")(weights_MD, batch, buffers=others)
    assert_close(LogDensity(model, N)(weights_MD, batch, buffers=others).log_density, loop.log_density)
    with pytest.raises(ValueError, match="encodes columns in the same way for all members"):
        LogDensity(model, N, plan="native")(weights_MD, batch, buffers=others)
    own, moved = (tb.Functions(model, weights_MD, b)(normal(4, 5)) for b in (None, others))
    assert_close(own[0], moved[0])
    assert not torch.allclose(own[1], moved[1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_single_precision_is_right_to_its_own_rounding(activation: type[nn.Module]):
    model = Model(stack(5, 30, 20, 4, activation=activation).float(), likelihoods.Categorical())
    exact = Model(stack(5, 30, 20, 4, activation=activation), likelihoods.Categorical())
    weights_MD, batch = 2 * normal(2, model.layout.size), members_batch(exact, "classes", 2, 300)
    value = LogDensity(model, N, plan="native")(weights_MD.float(), batch._replace(inputs=batch.inputs.float()))
    expected = LogDensity(exact, N, plan="loop")(weights_MD, batch)
    for mine, right in zip(value, expected, strict=True):
        assert_close(mine, right, rtol=2e-5, atol=2e-5 * right.abs().max().item())


def test_single_precision_sums_its_rows_in_double():
    model, rows = Model(nn.Linear(1, 1, bias=False), likelihoods.Gaussian(1.0), priors.Flat()), 50_000
    data = Batch(torch.ones(rows, 1), torch.full((rows,), 0.5))
    value = LogDensity(model, rows, data, plan="native")(torch.zeros(1, 1))
    assert_close(value.log_density, [-rows * (0.125 + 0.5 * math.log(2 * math.pi))], rtol=1e-14)


def test_extreme_activations_neither_overflow_nor_lose_digits():
    z = torch.tensor([-1e30, -200, -88, -20, -1, -0.25, -0.2499, -1e-3, -1e-20, 0, 1e-6, 0.3, 5, 89, 1e30, torch.inf])
    for kind in (nn.Tanh, nn.Sigmoid, nn.SiLU):
        model = Model(nn.Sequential(nn.Linear(1, 1), kind(), nn.Linear(1, 1)), likelihoods.Gaussian())
        assert isinstance(kernel_of(model), DenseModel)
        outputs = tb.Point(model, torch.tensor([[1.0, 0.0, 1.0, 0.0]])).functions()(z[:, None])[0, :, 0]
        right = kind()(z.double())
        assert_close(outputs[right != -torch.inf], right, rtol=5e-7, atol=1e-36)  # sigmoid(−88) is not a normal number


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_numbers_too_small_to_be_normal_are_zero_in_the_kernel_alone(threads: int):
    model = Model(nn.Linear(1, 1, bias=False), likelihoods.Gaussian(1.0), priors.Flat())
    tiny_MD = torch.full((threads, 1), 1e-39)
    data = Batch(torch.full((threads, 1, 1), 1e38), torch.ones(threads, 1, 1))
    value = LogDensity(model, 1, plan="native")(tiny_MD, data)
    assert_close(value.log_density, torch.full((threads,), -0.5 - 0.5 * math.log(2 * math.pi)), rtol=1e-7)
    assert (tiny_MD * 0.5).count_nonzero() == threads
    assert torch.full((100_000,), 1e-39).mul(0.5).count_nonzero() == 100_000  # by all threads of PyTorch


def test_extreme_logits_give_a_finite_likelihood():
    model = Model(nn.Linear(1, 3, bias=False).double(), likelihoods.Categorical(), priors.Flat())
    data = Batch(torch.ones(1, 1, 1).double(), torch.tensor([[2]]))
    value = LogDensity(model, 1, plan="native")(torch.tensor([[1e4, 0.0, -1e4]]).double(), data)
    assert_close(value.log_density, [-2e4])
    assert_close(value.gradient, [[-1.0, 0.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_is_never_hidden(activation: type[nn.Module], dtype: torch.dtype):
    model = Model(stack(5, 7, 4, activation=activation).to(dtype), likelihoods.Categorical())
    weights_MD, batch = (
        normal(2, model.layout.size).to(dtype),
        Batch(normal(2, 3, 5).to(dtype), classes(6, 4).view(2, 3)),
    )
    weights_MD[1, 3] = torch.nan
    value = LogDensity(model, N, plan="native")(weights_MD, batch)
    assert value.log_density.isnan().tolist() == [False, True]
    assert value.gradient.isnan().any(1).tolist() == [False, True]


def test_auto_takes_the_kernel_and_says_so():
    model, kind = CASES["linear"][0](), CASES["linear"][1]
    density = LogDensity(model, N)
    density(normal(1, 6), members_batch(model, kind, 1, B))
    assert density.plan
    assert density.plan.backend == "native"
    assert "kernel" in density.plan.reason


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gates": (lambda: Model(nn.Sequential(nn.Linear(2, 2), nn.GLU()), likelihoods.Categorical()), "GLU"),
    "convolution": (lambda: Model(nn.Conv2d(1, 2, 3), likelihoods.Categorical()), "Conv2d"),
    "a likelihood": (lambda: Model(nn.Linear(2, 1), likelihoods.Poisson()), "Poisson"),
    "frozen": (lambda: Model(stack(2, 3, 2), likelihoods.Categorical(), random="2.*"), "`0.weight` is not random"),
    "half precision": (lambda: Model(nn.Linear(2, 2).half(), likelihoods.Categorical()), "float32 and float64"),
    "an end": (lambda: Model(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), likelihoods.Categorical()), "ends in"),
    "own forward": (lambda: Model(type("Own", (nn.Linear,), {})(2, 2), likelihoods.Categorical()), "Own"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_kernel_cannot_run_is_refused_with_the_reason(make: Callable[[], Model], reason: str):
    model = make()
    assert reason in str(kernel_of(model))
    with pytest.raises(ValueError, match="plan 'native' cannot run this model"):
        LogDensity(model, N, plan="native")(
            normal(1, model.layout.size).float(), Batch(torch.ones(1, 1, 2), classes(1, 2).view(1, 1))
        )


def test_dropout_is_the_identity_in_evaluation_and_refused_in_training():
    layers = nn.Dropout(0.1), nn.Linear(2, 3), nn.Dropout(), nn.Tanh(), nn.AlphaDropout(0.2), nn.Linear(3, 2)
    model, plain = (
        Model(nn.Sequential(*own).double(), likelihoods.Categorical())
        for own in (layers, (layers[1], layers[3], layers[5]))
    )
    weights_MD, batch = normal(1, 17), Batch(normal(1, 6, 2), classes(6, 2).view(1, 6))
    actual = LogDensity(model, N, plan="native")(weights_MD, batch)
    expected = LogDensity(plain, N, plan="loop")(weights_MD, batch)
    torch.testing.assert_close(actual.gradient, expected.gradient, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"`0` is dropout, which the kernel knows in evaluation mode alone"):
        LogDensity(model, N, plan="native", training=True)(weights_MD, batch)
    auto = LogDensity(model, N, training=True)
    auto(weights_MD, batch, seeds=[1])
    assert auto.plan is not None
    assert auto.plan.backend == "loop"


def test_hooks_and_tied_layers_are_refused():
    hooked = stack(3, 2)
    hooked[0].register_forward_hook(lambda *_: None)
    assert "hooks" in str(kernel_of(Model(hooked, likelihoods.Categorical())))
    layer = nn.Linear(3, 3)
    assert "plain stack" in str(kernel_of(Model(nn.Sequential(layer, nn.Tanh(), layer), likelihoods.Categorical())))


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (normal(1, 4, 6), classes(4, 4).view(1, 4)),  # a feature too many
        (normal(1, 4, 5).float(), classes(4, 4).view(1, 4)),  # dtype
        (normal(2, 4, 5), classes(8, 4).view(2, 4)),  # members
        (normal(1, 4, 5), classes(3, 4).view(1, 3)),  # rows
        (normal(1, 4, 5), normal(1, 4)),  # not labels
    ],
)
def test_rows_that_do_not_fit_are_refused_before_memory_is_read(inputs: Tensor, targets: Tensor):
    model = CASES["classes, Tanh"][0]()
    with pytest.raises(ValueError, match=r"rows of 5 features in torch\.float64"):
        LogDensity(model, N, plan="native")(normal(1, model.layout.size), Batch(inputs, targets))


@pytest.mark.parametrize("label", [-1, 4, -100])
def test_labels_that_are_no_class_are_refused(label: int):
    model, targets = CASES["classes, Tanh"][0](), classes(B, 4).view(1, B)
    targets[0, 5] = label
    with pytest.raises(ValueError, match=r"class labels must lie in 0\.\.3"):
        LogDensity(model, N, plan="native")(normal(1, model.layout.size), Batch(normal(1, B, 5), targets))


def test_a_model_with_its_kernel_can_be_copied_and_pickled():
    model, kind = CASES["learned noise"][0](), CASES["learned noise"][1]
    weights_MD, batch = normal(2, model.layout.size), members_batch(model, kind, 2, B)
    value = LogDensity(model, N)(weights_MD, batch)
    assert isinstance(kernel_of(model), DenseModel)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(LogDensity(other, N)(weights_MD, batch).gradient, value.gradient, rtol=0, atol=0)


def test_strided_weights_and_gradients_are_written_in_the_right_places():
    model, kind = CASES["classes, Tanh"][0](), CASES["classes, Tanh"][1]
    wide, batch = normal(2, 3, model.layout.size), members_batch(model, kind, 2, B)
    density = LogDensity(model, N, plan="native")
    out = torch.zeros(2, 2, model.layout.size, dtype=torch.float64)
    assert_close(
        density.loss(wide[:, 1], batch, out=out[:, 0]).gradient, density.loss(wide[:, 1].clone(), batch).gradient
    )
    assert_close(out[:, 1], torch.zeros(2, model.layout.size))


def test_without_kernels_the_other_ways_run(monkeypatch: pytest.MonkeyPatch):
    model, kind = CASES["classes, Tanh"][0](), CASES["classes, Tanh"][1]
    weights_MD, batch = normal(2, model.layout.size), members_batch(model, kind, 2, B)
    expected = LogDensity(model, N, plan="native")(weights_MD, batch)
    monkeypatch.setenv(build.ENVIRONMENT, "0")
    load.cache_clear()
    try:
        other = CASES["classes, Tanh"][0]()
        density = LogDensity(other, N)
        assert_close(density(weights_MD, batch).gradient, expected.gradient)
        assert density.plan
        assert density.plan.backend in {"loop", "vmap"}
    finally:
        load.cache_clear()


@pytest.mark.study  # `tests/native/test_cache.py` has every way in which a file can be damaged
def test_a_damaged_library_is_compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load.cache_clear()
    try:
        path = build._compiled(build.SOURCES / "noise.cpp")  # the smaller of the two
        path.write_bytes(b"not a library")
        assert load("noise") is load("noise")
    finally:
        load.cache_clear()


def test_a_compiler_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load.cache_clear()
    try:
        with pytest.raises(UnavailableError, match=r"false could not compile dense\.cpp"):
            load("dense")
        assert not list(tmp_path.rglob("*.so"))
    finally:
        load.cache_clear()


@pytest.mark.parametrize("prior", [priors.LogUniform(), priors.Laplace(1.0), priors.StudentT(3.0)])
def test_the_likelihood_alone_has_nothing_of_the_prior(prior: Any):
    """Under a prior that is infinite at zero, a weight of exactly zero once had NaN for its gradient."""
    model = Model(nn.Linear(3, 2).double(), likelihoods.Categorical(), prior)
    weights_MD = normal(2, 8)
    weights_MD[0, 3] = 0.0
    batch = Batch(normal(2, 5, 3, seed=1), classes(10, 2).view(2, 5))
    native, loop = (
        LogDensity(model, 5, plan=plan, training=True).nll(weights_MD, batch) for plan in ("native", "loop")
    )
    assert_close(native.gradient, loop.gradient)
    assert_close(native.log_density, loop.log_density)
