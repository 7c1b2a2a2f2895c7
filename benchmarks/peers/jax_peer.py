"""blackjax and numpyro: `python -m benchmarks.peers.jax_peer WAY CASE` in the environment JAX of setup.sh.

All units of a request run inside one compiled loop, and chains by vmap (or, with `_map` in the name of the way, one
after the other), so that the peers are seen at their best: nothing of Python is in the time.
"""
# jax and its libraries are not in the environment that the project is checked in
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
from numpyro.infer import HMC

from benchmarks.peers.server import Run, serve
from benchmarks.peers.work import CASES, FRICTION, NOISE_SCALE, PRIOR_SCALE, Case, Problem, problem

Weights = list[tuple[jax.Array, jax.Array]]
LogDensity = Callable[..., jax.Array]


def native(case: Case, numbers: Problem) -> Weights:
    """Return the starting weights as JAX likes them: matrices (M, in, out), filters (M, height, width, in, out)."""
    layers: Weights = []
    for matrix, bias in zip(numbers.weights[::2], numbers.weights[1::2], strict=True):
        weight = jnp.asarray(matrix)
        if weight.ndim == 5:
            weight = weight.transpose(0, 3, 4, 2, 1)
        elif case.network == "conv":  # the head: PyTorch flattens channels first, JAX last
            chains, outputs, _ = weight.shape
            weight = weight.reshape(chains, outputs, 32, 8, 8).transpose(0, 3, 4, 2, 1).reshape(chains, -1, outputs)
        else:
            weight = weight.swapaxes(1, 2)
        layers.append((jnp.array(weight), jnp.asarray(bias)))
    return layers


def convolve(images: jax.Array, filters: jax.Array, *, im2col: bool) -> jax.Array:
    """Return the convolution (B, H, W, out) of images (B, H, W, in) with 3x3 filters, padded to the same size."""
    if not im2col:
        return jax.lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    count, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    columns = jnp.concatenate(shifted, axis=-1).reshape(count * height * width, -1)
    return (columns @ filters.reshape(columns.shape[1], -1)).reshape(count, height, width, -1)


def log_density(case: Case, numbers: Problem, *, im2col: bool = False) -> LogDensity:
    """Return (weights of one chain, optionally a batch) -> log joint density, in nats."""
    activation = jnp.tanh if case.activation == "tanh" else jax.nn.relu
    rows = (jnp.asarray(numbers.inputs), jnp.asarray(numbers.targets))

    def outputs(weights: Weights, inputs: jax.Array) -> jax.Array:
        hidden = inputs.reshape(-1, 8, 8, 1) if case.network == "conv" else inputs
        for matrix, bias in weights[:-1]:
            filtered = convolve(hidden, matrix, im2col=im2col) if case.network == "conv" else hidden @ matrix
            hidden = activation(filtered + bias)
        matrix, bias = weights[-1]
        return hidden.reshape(len(inputs), -1) @ matrix + bias

    def joint(weights: Weights, batch: tuple[jax.Array, jax.Array] = rows) -> jax.Array:
        predicted, targets = outputs(weights, batch[0]), batch[1]
        if case.data == "sine":
            likelihood = -0.5 * jnp.sum(((predicted[:, 0] - targets) / NOISE_SCALE) ** 2)
        else:
            likelihood = jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(predicted), targets[:, None], 1))
        squares = sum(jnp.sum((leaf / PRIOR_SCALE) ** 2) for leaf in jax.tree.leaves(weights))
        return numbers.scale * likelihood - 0.5 * squares + numbers.constant

    return joint


def repeat(step: Callable[[jax.Array, Any], Any], state: Any) -> Run:
    """Return a function that takes so many steps (key, state) -> state in one compiled loop, from where it stood."""

    @jax.jit
    def loop(key: jax.Array, state: Any, count: jax.Array) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, s: step(jax.random.fold_in(key, i), s), state)

    kept = [jax.random.key(0), state]

    def run(units: int) -> None:
        kept[0], key = jax.random.split(kept[0])
        kept[1] = jax.block_until_ready(loop(key, kept[1], jnp.int32(units)))

    return run


def blackjax_hmc(case: Case, density: LogDensity, weights: Weights, *, mapped: bool) -> Run:
    """Return HMC by blackjax, identity mass."""
    size = sum(leaf[0].size for leaf in jax.tree.leaves(weights))
    sampler = blackjax.hmc(density, case.step_size, jnp.ones(size), case.steps)
    move = lambda pair: sampler.step(*pair)[0]  # noqa: E731
    moves = (lambda pairs: jax.lax.map(move, pairs)) if mapped else jax.vmap(move)
    return repeat(
        lambda key, state: moves((jax.random.split(key, case.chains), state)), jax.jit(jax.vmap(sampler.init))(weights)
    )


def numpyro_hmc(case: Case, density: LogDensity, weights: Weights) -> Run:
    """Return HMC by numpyro, identity mass; it keeps its own keys."""
    sampler = HMC(
        potential_fn=lambda w: -density(w),
        step_size=case.step_size,
        num_steps=case.steps,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    keys = jax.random.split(jax.random.PRNGKey(0), case.chains)
    if case.chains == 1:  # numpyro's own form of one chain is faster than a stack of one
        keys, weights = keys[0], jax.tree.map(lambda leaf: leaf[0], weights)
    state = sampler.init(keys, 0, weights, model_args=(), model_kwargs={})
    taken = jax.jit(lambda s: sampler.sample(s, (), {}))(state).num_steps
    if (taken != case.steps).any():
        raise RuntimeError(f"numpyro took {taken} leapfrog steps instead of {case.steps}.")
    return repeat(lambda _, s: sampler.sample(s, (), {}), state)


def stochastic(case: Case, density: LogDensity, numbers: Problem, weights: Weights) -> Run:
    """Return SGHMC or SGLD by blackjax, one chain, the batch resident."""
    batch = (jnp.asarray(numbers.inputs), jnp.asarray(numbers.targets))
    start = jax.tree.map(lambda leaf: leaf[0], weights)
    if case.method == "sghmc":  # a step of blackjax is a whole run of `steps` with a fresh momentum
        kernel = blackjax.sghmc(jax.grad(density), case.steps, FRICTION)
        return repeat(lambda key, w: kernel.step(key, w, batch, case.step_size), start)
    kernel = blackjax.sgld(jax.grad(density))

    def unit(key: jax.Array, position: Weights) -> Weights:
        keys = jax.random.split(key, case.steps)
        return jax.lax.scan(lambda w, k: (kernel.step(k, w, batch, case.step_size), None), position, keys)[0]

    return repeat(unit, start)


def main(way: str, name: str) -> None:
    """Serve one way of doing the work of one case."""
    case = CASES[name]
    numbers = problem(case)
    density, weights = log_density(case, numbers, im2col="im2col" in way), native(case, numbers)
    values = jax.jit(lambda w: jax.lax.map(density, w))(weights)
    if case.method != "hmc":
        run = stochastic(case, density, numbers, weights)
    elif way == "numpyro":
        run = numpyro_hmc(case, density, weights)
    else:
        run = blackjax_hmc(case, density, weights, mapped=way.endswith("_map"))
    serve(values.tolist(), run)


if __name__ == "__main__":
    main(*sys.argv[1:])
