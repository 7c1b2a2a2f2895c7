import copy
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.model.helpers import ConvNorm, Tied, Tokens, mlp, tokens
from tests.oracles import LinearGaussian, assert_close, classes, finite_differences, mlp_log_joint, normal
from torch import Tensor, nn

from torchbayes.density import FunctionDensity, LogDensity, Plan, Value
from torchbayes.density.density import seeds_here
from torchbayes.density.plans import BackendName
from torchbayes.density.ranks import Ranks
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.randomness.seeds import Purpose, seeded

M, B, N = 3, 6, 50
COMPILER = any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++"))
COMPILED = [
    pytest.mark.skipif(not COMPILER, reason="torch.compile needs a C++ compiler, and none is installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the compiler's own
]
WAYS: list[Any] = ["loop", "vmap", pytest.param("compiled", marks=COMPILED)]


@pytest.fixture(autouse=True)
def _compile_anew(request: pytest.FixtureRequest):
    """Let each test compile from the start, and fail it when PyTorch quietly ran something uncompiled."""
    if "compiled" not in request.node.name:
        yield
        return
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    yield
    assert counters["frames"]["ok"] == counters["frames"]["total"] > 0
    assert not counters["graph_break"]


IMAGES = normal(M, B, 1, 4, 4)
ROWS = normal(M, B, 3)


def per_member(inputs: Any, targets: Tensor) -> Batch:
    """Give each member its own rows: (M, B, ...)."""
    return Batch(inputs, targets.view(M, -1, *targets.shape[1:]))


CASES: dict[str, tuple[Callable[[], Model], Batch]] = {
    "mlp": (
        lambda: Model(mlp(), likelihoods.Categorical(), priors.Normal(0.8), temperature=0.3),
        per_member(ROWS, classes(M * B, 2)),
    ),
    "convolution and batch norm": (
        lambda: Model(ConvNorm(), likelihoods.Categorical(), priors.Laplace(0.8)),
        per_member(IMAGES, classes(M * B, 3)),
    ),
    "learned noise": (
        lambda: Model(mlp((3, 4, 2)), likelihoods.Gaussian("learned", outputs=2), {"*": priors.StudentT()}),
        per_member(ROWS, normal(M * B, 2, seed=1)),
    ),
    "tied": (
        lambda: Model(Tied(), likelihoods.Bernoulli(), tempering="likelihood", temperature=0.3),
        per_member(ROWS, classes(M * B * 3, 2).view(M * B, 3)),
    ),
    "frozen body": (
        lambda: Model(ConvNorm(), likelihoods.Poisson(), priors.FanInNormal(), random="head.*"),
        per_member(IMAGES, classes(M * B * 3, 5).view(M * B, 3)),
    ),
    "tokens": (
        lambda: Model(Tokens(), likelihoods.Categorical()),
        per_member({n: t.view(M, B, 5) for n, t in tokens(M * B).items()}, classes(M * B, 3)),
    ),
    "student t": (lambda: Model(mlp((3, 1)), likelihoods.StudentT()), per_member(ROWS, normal(M * B, seed=1))),
    "custom": (
        lambda: Model(mlp((3, 1)), lambda f: torch.distributions.Gumbel(f, 0.5, validate_args=False)),
        per_member(ROWS, normal(M * B, seed=1)),
    ),
}
# a compilation takes seconds: `test_batch_norm_in_training_moves_each_members_own_buffers` has one to code, and
# `test_a_density_compiled_by_tracing_alone_has_learned_noise` one of the graph
COMPILED_CASES: dict[str, list[Any]] = {
    "convolution and batch norm": [*COMPILED, pytest.mark.study],
    "learned noise": [*COMPILED, pytest.mark.study],
}
each_case = pytest.mark.parametrize(("make", "batch"), CASES.values(), ids=CASES.keys())


def own_rows(batch: Batch, m: int) -> Batch:
    return batch.map(lambda t: t[m])


def by_hand(model: Model, weights_MD: Tensor, batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """Value and gradient of `Model.log_joint`, member by member, in evaluation mode."""
    leaf = weights_MD.clone().requires_grad_()
    values = torch.stack([model.log_joint(leaf[m], batches[m], N) for m in range(len(leaf))])
    return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]


# --- the three ways are one function ---


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, way) for name in CASES for way in ("loop", "vmap")),
        *(pytest.param(name, "compiled", marks=marks) for name, marks in COMPILED_CASES.items()),
    ],
)
def test_every_way_equals_the_models_log_joint(name: str, way: BackendName):
    make, batch = CASES[name]
    model = make()
    weights_MD = 0.5 * normal(M, model.layout.size)
    value = LogDensity(model, N, plan=way)(weights_MD, batch)
    expected, gradient = by_hand(model, weights_MD, [own_rows(batch, m) for m in range(M)])
    assert_close(value.log_density, expected)
    assert_close(value.gradient, gradient)


def test_a_density_compiled_by_tracing_alone_has_learned_noise(monkeypatch: pytest.MonkeyPatch):
    own = torch.compile
    monkeypatch.setattr(torch, "compile", lambda density, **options: own(density, **options, backend="eager"))
    test_every_way_equals_the_models_log_joint("learned noise", "compiled")


# compiled, buffers are those of `vmap`
@pytest.mark.parametrize("way", ["loop", "vmap", pytest.param("compiled", marks=[*COMPILED, pytest.mark.study])])
def test_batch_norm_in_training_moves_each_members_own_buffers(way: BackendName):
    module = ConvNorm()
    model = Model(module, likelihoods.Categorical())
    batch, weights_MD = CASES["convolution and batch norm"][1], model.starting_weights([1, 2, 3])[0]
    buffers = model.network.stacked_buffers(M)
    density = LogDensity(model, N, plan=way, training=True)
    values = [density(weights_MD, batch, buffers=buffers) for _ in range(2)]
    for m in range(M):
        reference = copy.deepcopy(module).train()
        torch.nn.utils.vector_to_parameters(weights_MD[m], reference.parameters())
        for value in values:
            log_prob = reference(batch.inputs[m]).log_softmax(1)[range(B), batch.targets[m]].sum()
            expected = N / B * log_prob + model.log_prior(weights_MD[m])
            assert_close(value.log_density[m], expected)
            flat = torch.cat([g.flatten() for g in torch.autograd.grad(N / B * log_prob, list(reference.parameters()))])
            assert_close(value.gradient[m], flat - weights_MD[m])
        for name, buffer in reference.named_buffers():
            assert_close(buffers[name][m], buffer)


@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_without_buffers_training_leaves_the_networks_own_alone(way: BackendName):
    model, batch = Model(ConvNorm(), likelihoods.Categorical()), CASES["convolution and batch norm"][1]
    weights_MD, before = normal(M, model.layout.size), {n: b.clone() for n, b in model.network.buffers.items()}
    given = LogDensity(model, N, plan=way, training=True)(weights_MD, batch, buffers=model.network.stacked_buffers(M))
    density = LogDensity(model, N, plan=way, training=True)
    for _ in range(2):
        assert_close(density(weights_MD, batch).log_density, given.log_density)
    assert all(torch.equal(model.network.buffers[name], buffer) for name, buffer in before.items())


# --- against answers from elsewhere ---


def test_minibatches_and_full_data_against_the_brute_force_sum():
    model = Model(mlp(), likelihoods.Categorical(), priors.Normal(0.8))
    weights_MD, batch = normal(M, model.layout.size), CASES["mlp"][1]
    value = LogDensity(model, N)(weights_MD, batch)
    full = LogDensity(model, B, own_rows(batch, 0))(weights_MD)
    for m in range(M):
        rows = own_rows(batch, m)
        expected = mlp_log_joint(weights_MD[m], (3, 5, 2), (rows.inputs, rows.targets), prior_scale=0.8, num_data=N)
        assert_close(value.log_density[m], expected)
        rows = own_rows(batch, 0)  # the full data are shared
        expected = mlp_log_joint(weights_MD[m], (3, 5, 2), (rows.inputs, rows.targets), prior_scale=0.8, num_data=B)
        assert_close(full.log_density[m], expected)


@each_case
def test_gradient_is_that_of_finite_differences(make: Callable[[], Model], batch: Batch):
    model = make()
    weights_MD = 0.5 * normal(1, model.layout.size)
    density, rows = LogDensity(model, N), batch.map(lambda t: t[:1])
    gradient, step = density(weights_MD, rows).gradient[0], 1e-5
    for direction in normal(5, model.layout.size, seed=2):
        ends = [density(weights_MD + sign * step * direction, rows).log_density[0] for sign in (1, -1)]
        assert_close(gradient @ direction, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-5)


def test_the_mode_and_curvature_of_linear_regression():
    exact = LinearGaussian(normal(20, 3), normal(20, seed=1), prior_scale=1.5, noise_scale=0.4)
    model = Model(nn.Linear(3, 1).double(), likelihoods.Gaussian(0.4), priors.Normal(1.5))
    density = LogDensity(model, 20, Batch(exact.inputs_NF, exact.targets_N), plan="vmap", chunk_size=6)
    mean, covariance = exact.posterior()
    value = density(torch.stack([mean, mean + 1]))
    assert_close(value.gradient[0], torch.zeros(4), atol=1e-9)
    assert_close(value.gradient[1], -torch.linalg.solve(covariance, torch.ones(4, dtype=torch.float64)), rtol=1e-9)
    assert_close(value.log_density, [exact.log_joint(mean), exact.log_joint(mean + 1)])


# --- minibatches and the full data ---


@pytest.mark.parametrize("way", ["loop", "vmap"])
@pytest.mark.parametrize("chunk_size", [1, 4, 7, 20, 1000])
def test_chunks_change_nothing(chunk_size: int, way: BackendName):
    model = Model(ConvNorm(), likelihoods.Categorical(), temperature=0.5)
    data, weights_MD = Batch(normal(20, 1, 4, 4), classes(20, 3)), normal(M, model.layout.size)
    value = LogDensity(model, 20, data, plan=way, chunk_size=chunk_size)(weights_MD)
    for m in range(M):
        assert_close(value.log_density[m], model.log_joint(weights_MD[m], data, 20))
    once = LogDensity(model, 20, data, plan="loop", chunk_size=20)(weights_MD)
    assert_close(value.gradient, once.gradient)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_minibatches_average_to_the_full_data(temperature: float):
    model = Model(mlp(), likelihoods.Categorical(), priors.Logistic(), temperature=temperature)
    data, weights_MD = Batch(normal(12, 3), classes(12, 2)), normal(M, model.layout.size)
    full = LogDensity(model, 12, data)(weights_MD)
    density = LogDensity(model, 12)
    # each member visits the parts in its own order
    orders = [torch.randperm(4, generator=torch.Generator().manual_seed(m)) for m in range(M)]
    parts = [
        density(weights_MD, data.map(lambda t, k=k: torch.stack([t.view(4, 3, *t.shape[1:])[o[k]] for o in orders])))
        for k in range(4)
    ]
    assert_close(torch.stack([p.log_density for p in parts]).mean(0), full.log_density)
    assert_close(torch.stack([p.gradient for p in parts]).mean(0), full.gradient)


def test_a_member_does_not_see_the_others():
    make, batch = CASES["mlp"]
    model = make()
    weights_MD = normal(M, model.layout.size)
    for way in ("loop", "vmap"):
        together = LogDensity(model, N, plan=way)(weights_MD, batch)
        for m in range(M):
            alone = LogDensity(model, N, plan=way)(weights_MD[m : m + 1], batch.map(lambda t, m=m: t[m : m + 1]))
            assert_close(together.log_density[m], alone.log_density[0])
            assert_close(together.gradient[m], alone.gradient[0])


def test_arguments_are_left_alone_and_the_gradient_is_new():
    make, batch = CASES["mlp"]
    model = make()
    weights_MD = normal(M, model.layout.size).requires_grad_()
    before = weights_MD.detach().clone()
    density = LogDensity(model, N, plan="loop")
    first = density(weights_MD, batch)
    kept = first.gradient.clone()
    density(weights_MD, batch).gradient.zero_()
    assert torch.equal(first.gradient, kept)
    assert torch.equal(weights_MD.detach(), before)
    assert weights_MD.grad is None
    assert not first.log_density.requires_grad
    assert not first.gradient.requires_grad


@each_case
def test_the_log_likelihood_comes_along_untempered_and_without_the_prior(make: Callable[[], Model], batch: Batch):
    model = make()
    weights_MD, density = 0.5 * normal(M, model.layout.size), LogDensity(model, N)
    rows = [model.log_likelihood(weights_MD[m], own_rows(batch, m)).sum() for m in range(M)]
    for value in (density(weights_MD, batch), density.loss(weights_MD, batch)):
        assert_close(value.log_likelihood, N / B * torch.stack(rows))


def test_gradients_are_taken_under_no_grad_too():
    make, batch = CASES["mlp"]
    model = make()
    weights_MD = normal(M, model.layout.size)
    expected = by_hand(model, weights_MD, [own_rows(batch, m) for m in range(M)])[1]
    for way in ("loop", "vmap"):
        with torch.no_grad():
            value = LogDensity(model, N, plan=way)(weights_MD, batch)
        assert_close(value.gradient, expected)


def test_float32_networks_sum_their_chunks_in_float64():
    model = Model(nn.Linear(1, 1, bias=False), likelihoods.Gaussian(1.0), priors.Flat())
    rows = 300
    data = Batch(torch.ones(rows, 1), torch.full((rows,), 0.1))
    density = LogDensity(model, rows, data, chunk_size=1, plan="loop")
    value = density(torch.zeros(1, 1))
    one = float(model.log_likelihood(torch.zeros(1), data.map(lambda t: t[:1])))
    assert value.log_density.dtype == torch.float64
    assert_close(value.log_density, [rows * one], rtol=1e-12)
    assert value.gradient.dtype == torch.float32


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_loss_is_the_negative_log_joint_per_observation_with_the_temperature_removed(tempering: Any):
    batch = CASES["mlp"][1]
    model = Model(mlp(), likelihoods.Categorical(), priors.StudentT(), temperature=0.3, tempering=tempering)
    weights_MD = normal(M, model.layout.size)
    loss = LogDensity(model, N).loss(weights_MD, batch)
    value = LogDensity(model, N)(weights_MD, batch)
    factor = -(0.3 if tempering == "joint" else 1.0) / N
    assert_close(loss.log_density, factor * value.log_density)
    assert_close(loss.gradient, factor * value.gradient)
    if tempering == "joint":  # a learning rate means the same at every temperature
        model = Model(mlp(), likelihoods.Categorical(), priors.StudentT())
        assert_close(LogDensity(model, N).loss(weights_MD, batch).gradient, loss.gradient)
        assert_close(loss.log_density, by_hand(model, weights_MD, [own_rows(batch, m) for m in range(M)])[0] / -N)


# --- dropout ---


def dropout_model() -> Model:
    return Model(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)).double(), likelihoods.Categorical())


def test_dropout_depends_on_a_members_seed_alone(untouched_rng: None):
    with torch.random.fork_rng():
        model = dropout_model()
    weights_MD, batch = normal(1, model.layout.size).expand(M, -1), CASES["mlp"][1].map(lambda t: t[:1].expand_as(t))
    density = LogDensity(model, N, training=True)
    first = density(weights_MD, batch, seeds=[5, 6, 5])
    assert density.plan is not None
    assert density.plan.backend == "loop"
    assert "random numbers in training mode" in density.plan.reason
    again = density(weights_MD, batch, seeds=[7, 6, 8])
    assert_close(first.log_density[0], first.log_density[2], rtol=0, atol=0)
    assert_close(first.log_density[1], again.log_density[1], rtol=0, atol=0)
    assert abs(first.log_density[0] - first.log_density[1]) > 1e-3
    alone = density(weights_MD[:1], batch.map(lambda t: t[:1]), seeds=[6])
    assert_close(alone.gradient[0], first.gradient[1], rtol=0, atol=0)


def test_dropout_is_the_modules_own_under_the_members_seed_and_off_outside_training():
    module = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)).double()
    model, batch = Model(module, likelihoods.Categorical(), priors.Flat()), CASES["mlp"][1]
    weights_MD = model.given_weights().expand(M, -1)
    value = LogDensity(model, N, training=True)(weights_MD, batch, seeds=[5, 6, 7])
    still = LogDensity(model, N)(weights_MD, batch)
    for m, seed in enumerate([5, 6, 7]):
        with seeded(Purpose.DROPOUT, seed):
            outputs = [module.train()(batch.inputs[m]), module.eval()(batch.inputs[m])]
        expected = [N / B * f.log_softmax(1)[range(B), batch.targets[m]].sum() for f in outputs]
        assert_close(value.log_density[m], expected[0])
        assert_close(still.log_density[m], expected[1])


# --- the plan ---


def test_one_member_is_looped():
    make, batch = CASES["student t"]
    density = LogDensity(make(), N)
    assert density.plan is None
    density(normal(1, density.model.layout.size), batch.map(lambda t: t[:1]))
    assert density.plan == Plan("loop", "there is one member")


def test_auto_measures_loop_and_vmap_and_takes_the_faster():
    make, batch = CASES["student t"]
    density = LogDensity(make(), N)
    value = density(normal(M, density.model.layout.size), batch)
    plan = density.plan
    assert plan is not None
    assert set(plan.seconds) == {"loop", "vmap"}
    assert min(plan.seconds.values()) > 0
    faster = plan.seconds["loop"] / plan.seconds["vmap"]
    assert plan.backend == ("vmap" if faster > 1.15 else "loop")
    assert f"{faster:.2f} times faster than a loop" in plan.reason
    assert_close(value.log_density, LogDensity(density.model, N, plan=plan)(normal(M, 4), batch).log_density)


def test_measuring_moves_neither_buffers_nor_the_global_generator(untouched_rng: None):
    with torch.random.fork_rng():
        model = Model(ConvNorm(), likelihoods.Categorical())
    weights_MD, batch = normal(M, model.layout.size), CASES["convolution and batch norm"][1]
    measured, given = model.network.stacked_buffers(M), model.network.stacked_buffers(M)
    auto = LogDensity(model, N, training=True)
    value = auto(weights_MD, batch, buffers=measured)
    assert auto.plan is not None
    assert set(auto.plan.seconds) == {"loop", "vmap"}
    assert_close(
        value.gradient, LogDensity(model, N, plan="loop", training=True)(weights_MD, batch, buffers=given).gradient
    )
    for name, buffer in given.items():
        assert_close(measured[name], buffer)


def test_a_network_that_cannot_be_stacked_is_looped_and_the_plan_says_why():
    class Branching(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            outputs = super().forward(input)
            return outputs if outputs.sum() > 0 else 2 * outputs  # depends on values

    model = Model(Branching(3, 2).double(), likelihoods.Categorical())
    weights_MD, batch = normal(M, model.layout.size), CASES["mlp"][1]
    density = LogDensity(model, N)
    value = density(weights_MD, batch)
    assert density.plan is not None
    assert density.plan.backend == "loop"
    assert density.plan.reason.startswith("vmap cannot run this network: ")
    assert_close(value.log_density, by_hand(model, weights_MD, [own_rows(batch, m) for m in range(M)])[0])


def test_a_plan_can_be_set():
    make, batch = CASES["mlp"]
    model = make()
    weights_MD = normal(M, model.layout.size)
    density = LogDensity(model, N, plan=Plan("vmap", "I know"))
    assert_close(density(weights_MD, batch).gradient, LogDensity(model, N, plan="loop")(weights_MD, batch).gradient)
    assert density.plan == Plan("vmap", "I know")
    assert LogDensity(model, N, plan="vmap").plan == Plan("vmap", "set by the caller")


def test_messages():
    make, batch = CASES["mlp"]
    model = make()
    with pytest.raises(ValueError, match="`plan` must be one of auto, native, loop, vmap, compiled; got 'fast'"):
        LogDensity(model, N, plan="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`num_data` must be a whole number of at least 1; got 0"):
        LogDensity(model, 0)
    with pytest.raises(ValueError, match="`chunk_size` must be a whole number of at least 1; got 0"):
        LogDensity(model, N, chunk_size=0)
    with pytest.raises(ValueError, match="`data` must hold all 50 rows; got 6"):
        LogDensity(model, N, own_rows(batch, 0))
    with pytest.raises(ValueError, match="a batch is needed: this density was made without `data`"):
        LogDensity(model, N)(normal(M, model.layout.size))


# --- any other density ---


def test_function_density_on_a_skewed_target():
    """Gumbel with a curved companion: log p(x, y) = −x − e^{−x} − ½(y − x²)², up to a constant."""

    def log_density(weights_MD: Tensor) -> Tensor:
        x, y = weights_MD.T
        return -x - (-x).exp() - 0.5 * (y - x**2) ** 2

    at = normal(5, 2)
    value = FunctionDensity(log_density)(at, buffers=None, seeds=[1])
    x, y = at.T
    expected = torch.stack([-1 + (-x).exp() + 2 * x * (y - x**2), -(y - x**2)], dim=1)
    assert isinstance(value, Value)
    assert_close(value.gradient, expected)
    assert_close(value.log_density, log_density(at))
    assert_close(
        value.gradient,
        torch.stack([finite_differences(lambda w: log_density(w[None])[0], row) for row in at]),
        rtol=1e-7,
        atol=1e-7,
    )
    assert not value.log_density.requires_grad


def test_the_loss_writes_its_gradient_where_it_is_told() -> None:
    model = Model(mlp(), likelihoods.Categorical())
    weights_MD = normal(M, model.layout.size)
    batch = Batch(normal(M, B, 3), classes(M * B, 2).view(M, B))
    density = LogDensity(model, N)
    out = torch.full_like(weights_MD, torch.nan)
    value = density.loss(weights_MD, batch, out=out)
    assert value.gradient is out
    assert_close(out, density.loss(weights_MD, batch).gradient)


def test_ranks_that_share_rows_have_dropout_masks_of_their_own():
    """The first has those of one process; nothing is drawn twice."""
    each = [seeds_here(Ranks(data=3, data_rank=rank), [5, 6]) for rank in range(3)]
    assert each[0] == [5, 6]
    assert len({seed for seeds in each for seed in seeds}) == 6
    assert seeds_here(Ranks(chains=2, chain_rank=1), [5, 6]) == [5, 6]
