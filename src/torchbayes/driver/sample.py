"""sample: run a sampler on any density, in memory; `fit` does the same for a model, with files and resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.driver.checks import check_draws, check_sample
from torchbayes.driver.processes import Shard
from torchbayes.driver.shelf import MemoryShelf
from torchbayes.methods.mcmc.health import problems
from torchbayes.methods.protocol import Method
from torchbayes.native.seeds import member_seeds
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.start import check_finite_start


@dataclass(frozen=True)
class Chains:
    """The result of `sample`.

    Attributes:
        weights_MSD: retained draws of each chain.
        numbers: name -> float64 (M, steps), what every step reported, burn-in included.
        state: the last state.
        fault: the first exception that the density raised after burn-in; empty if there was none.
        problems: what is known to be wrong with the chains, one clause each.
    """

    weights_MSD: Tensor
    numbers: dict[str, Tensor]
    state: Any
    fault: str = ""
    problems: tuple[str, ...] = ()


def sample(density: Density, method: Method, start_MD: Tensor, *, seed: int = 0) -> Chains:
    """Draw from a density, which need not be that of a network.

    A proposal at which the density raises an exception, such as a ValueError or one of linear algebra, is rejected.
    Samplers on minibatches have no proposals, and stop there.

    Args:
        density: the target: a `LogDensity` with data, or a `FunctionDensity`.
        method: the sampler, such as `HMC(chains=4)`.
        start_MD: where the chains start, (chains, D); or (D,), where all of them do.
        seed: seed of the chains.

    Returns:
        Retained draws, what every step reported, and known problems, which are also given as a warning.

    Raises:
        ValueError: if `start_MD` does not have one row per chain, or the density there cannot be computed, is not
            finite, or has the wrong shape.
        DivergedError: if a sampler on minibatches reaches a point where the density is not finite, or cannot be
            computed.
        TypeError: if density, method or start are of another kind.
    """
    check_sample(density, method)
    found = run_chains(density, method, start_MD, seed=seed)
    exact = "acceptance" in found.numbers
    columns = {name: seen[:, method.needs.burn_in :] for name, seen in found.numbers.items()} if exact else {}
    identified = not hasattr(density, "model")  # the hidden units of a network can be exchanged
    wrong, raised = checked(lambda: problems(found.weights_MSD, columns, fault=found.fault, identified=identified))
    found = replace(found, problems=tuple(wrong))
    warn_of(found.problems, "these chains")
    warn_unchecked(raised, "the sample")
    return found


def run_chains(density: Density, method: Method, start_MD: Tensor, *, seed: int) -> Chains:
    """Return what `sample` does, for chains that are not judged together because each has its own target."""
    start_MD = _start(start_MD, method.members)
    check_draws(method, start_MD[0], start_MD.device)
    state = method.init(density, start_MD, {}, seeds=member_seeds(seed, method.members), steps_per_epoch=1)
    shelf, seen, fault = MemoryShelf(Shard(method.members)), [], ""
    while method.visit(state) is not None:  # a density without a model has no rows to read
        state, info = method.step(density, state, None)
        shelf.add(method.draw(state))
        seen.append(info.means())
        if state.step > method.needs.burn_in:
            fault = fault or info.now().get("fault", "")
    stacked = {name: torch.stack([means[name] for means in seen], dim=1).double() for name in seen[0]}
    return Chains(shelf.weights_MSD(), stacked, state, fault)


def _start(start_MD: Tensor, chains: int) -> Tensor:
    """Return where each chain starts.

    Raises:
        TypeError: if these are not weights in float32 or float64.
        ValueError: if they are empty, not finite, or for another number of chains.
    """
    if not isinstance(start_MD, Tensor) or start_MD.dtype not in {torch.float32, torch.float64}:
        seen = start_MD.dtype if isinstance(start_MD, Tensor) else type(start_MD).__name__
        raise TypeError(f"`start_MD` must be a tensor of weights in float32 or float64; got {seen}.")
    check_finite_start(start_MD=start_MD)
    if not start_MD.numel():
        raise ValueError(f"`start_MD` must hold weights; got shape {tuple(start_MD.shape)}, of none.")
    if start_MD.ndim == 1:
        return start_MD.expand(chains, -1).clone()
    if start_MD.ndim != 2 or len(start_MD) != chains:
        advice = f" Set `chains={len(start_MD)}`, or give {chains} rows." if start_MD.ndim == 2 else ""
        raise ValueError(
            f"`start_MD` must hold weights (D,), or one row for each of the {chains} `chains` of the method; got shape "
            f"{tuple(start_MD.shape)}.{advice}"
        )
    return start_MD
