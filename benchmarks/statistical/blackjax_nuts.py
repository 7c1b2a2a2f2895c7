"""NUTS of blackjax with its window adaptation, in the environment JAX of benchmarks/peers/setup.sh.

python -m benchmarks.statistical.blackjax_nuts FILE SEED BURN_IN DRAWS CHAINS POSTERIOR ...

FILE (.npz) gets, for each posterior, POSTERIOR/draws (M, S, D), /gradients (M, S) after warm-up and /warmup (M,).
"""
# jax and its libraries are not in the environment that the project is checked in
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.statistical.posteriors import POSTERIORS, starts

jax.config.update("jax_enable_x64", True)


def run(name: str, *, seed: int, burn_in: int, draws: int, chains: int) -> dict[str, np.ndarray]:
    """Return draws and the gradients that they took."""
    posterior = POSTERIORS[name]
    data = {key: jnp.asarray(value) for key, value in posterior.data.items()}

    def log_density(weights: jax.Array) -> jax.Array:
        return posterior.log_density(jnp, data, weights)

    def chain(key: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.8)
        (state, settings), info = warmup.run(first, start, num_steps=burn_in)
        sampler = blackjax.nuts(log_density, **settings)

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, seen = sampler.step(key, state)
            return state, (state.position, seen.num_integration_steps)

        _, (positions, leapfrogs) = jax.lax.scan(step, state, jax.random.split(second, draws))
        return positions, leapfrogs, info.info.num_integration_steps.sum()

    keys = jax.random.split(jax.random.key(seed), chains)
    positions, leapfrogs, warm = jax.jit(jax.vmap(chain))(keys, jnp.asarray(starts(name, chains)))
    return {"draws": np.asarray(positions), "gradients": np.asarray(leapfrogs), "warmup": np.asarray(warm)}


def main(file: str, *words: str) -> None:
    """Run every posterior, and write the file."""
    seed, burn_in, draws, chains = map(int, words[:4])
    results = {}
    for name in words[4:]:
        seen = run(name, seed=seed, burn_in=burn_in, draws=draws, chains=chains)
        results |= {f"{name}/{key}": value for key, value in seen.items()}
    np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
