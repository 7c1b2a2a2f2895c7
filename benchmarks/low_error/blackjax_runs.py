"""MCLMC and NUTS of blackjax until the error is low, in the environment JAX of benchmarks/peers/setup.sh.

python -m benchmarks.low_error.blackjax_runs FILE SEED CHAINS LENGTH TARGET SAMPLER

FILE (.npz) gets the fields of `Run`. LENGTH is as for `ours`, or 0 for none. MCLMC is tuned in 20,000 steps, as
sampler-benchmarks does, by blackjax's own three phases; NUTS in 1,000 iterations, blackjax's default.
"""
# jax and its libraries are not in the environment that the project is checked in
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.low_error.crossing import Run, is_done, moments
from benchmarks.low_error.targets import TARGETS

jax.config.update("jax_enable_x64", True)
TUNING = {"mclmc": 20_000, "nuts": 1000}
BLOCK = {"mclmc": 500, "nuts": 50}  # steps that are compiled together


class Sampler(NamedTuple):
    """Tuning and steps of a chain.

    Attributes:
        tune: (key, start) -> state, settings and gradients.
        step: (key, state, settings) -> state and gradients.
    """

    tune: Any
    step: Any


def mclmc(log_density: Any) -> Sampler:
    """Return MCLMC with the minimal norm integrator, two gradients a step."""
    kernel = blackjax.mclmc.build_kernel()

    def tune(key: jax.Array, start: jax.Array) -> Any:
        first, second = jax.random.split(key)
        state = blackjax.mclmc.init(start, log_density, first)
        # a third of `num_steps`: three phases of a tenth each, and a third of the second again
        state, settings, steps = blackjax.mclmc_find_L_and_step_size(
            kernel, 3 * TUNING["mclmc"], state, second, logdensity_fn=log_density
        )
        return state, (settings.step_size, settings.L, settings.inverse_mass_matrix), 2 * steps

    def step(key: jax.Array, state: Any, settings: Any) -> Any:
        step_size, length, inverse_mass = settings
        state, _ = kernel(key, state, log_density, inverse_mass, length, step_size)
        return state, 2

    return Sampler(tune, step)


def nuts(log_density: Any) -> Sampler:
    """Return NUTS with window adaptation."""

    def tune(key: jax.Array, start: jax.Array) -> Any:
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, settings), info = warmup.run(key, start, num_steps=TUNING["nuts"])
        gradients = info.info.num_integration_steps.sum()
        return state, (settings["step_size"], jnp.nan, settings["inverse_mass_matrix"]), gradients

    def step(key: jax.Array, state: Any, settings: Any) -> Any:
        sampler = blackjax.nuts(log_density, step_size=settings[0], inverse_mass_matrix=settings[2])
        state, info = sampler.step(key, state)
        return state, info.num_integration_steps

    return Sampler(tune, step)


def run(name: str, sampler: str, *, seed: int, chains: int, length: int) -> Run:
    """Return a run of a sampler."""
    target, (expected, variance) = TARGETS[name], moments(name, unknown=length > 0)
    data = {key: jnp.asarray(value) for key, value in target.posterior.data.items()}
    made = {"mclmc": mclmc, "nuts": nuts}[sampler](partial(target.posterior.log_density, jnp, data))

    def step(settings: Any, carry: Any, key: jax.Array) -> Any:
        state, count, means = carry
        state, gradients = made.step(key, state, settings)
        squares = target.values(jnp, state.position) ** 2
        count, seen = count + 1, jnp.concatenate([squares, squares**2])
        means = means + (seen - means) / count
        error = (means[: len(expected)] - expected) ** 2 / variance
        return (state, count, means), (jnp.stack([error.mean(), error.max()]), gradients)

    @jax.jit
    @jax.vmap
    def block(keys: jax.Array, settings: Any, carry: Any) -> Any:
        return jax.lax.scan(partial(step, settings), carry, keys)

    keys = jax.random.split(jax.random.key(seed), chains)
    tuned, settings, tuning = jax.jit(jax.vmap(made.tune))(keys, jnp.asarray(target.starts(chains)))
    carry = tuned, jnp.zeros(chains), jnp.zeros((chains, 2 * target.posterior.size))
    blocks, costs = [], []
    while not blocks or not is_done(blocks, float(np.mean(costs)), target, length=length or None):
        keys = jax.random.split(jax.random.key(1_000_000 * seed + len(blocks)), (chains, BLOCK[sampler]))
        carry, (errors_MTC, cost_MT) = block(keys, settings, carry)
        blocks.append(np.moveaxis(np.asarray(errors_MTC), -1, 0))
        costs.append(float(np.mean(np.asarray(cost_MT))))
    step_size, length_scale = (float(np.median(np.asarray(setting))) for setting in settings[:2])
    errors = np.concatenate(blocks, -1)
    return Run(
        errors, float(np.mean(costs)), float(np.mean(np.asarray(tuning))), step_size, length_scale, np.asarray(carry[2])
    )


def main(file: str, seed: str, chains: str, length: str, *words: str) -> None:
    """Run, and write the file."""
    results = run(*words, seed=int(seed), chains=int(chains), length=int(length))
    np.savez(file, **results._asdict())


if __name__ == "__main__":
    main(*sys.argv[1:])
