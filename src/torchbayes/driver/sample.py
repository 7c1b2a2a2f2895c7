"""sample: run a sampler on any density, in memory; `fit` does the same for a model, with files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.density.dynamics import Density
from torchbayes.density.functions import density_of, density_of_named
from torchbayes.driver.chains import Chains, Interrupted
from torchbayes.driver.checks import check_continues, check_draws, check_same_density, check_sample
from torchbayes.driver.loop import steps
from torchbayes.driver.progress import Callback, Event, listeners
from torchbayes.health.chains import diverged, problems
from torchbayes.methods.faults import dispersed
from torchbayes.methods.protocol import Chain
from torchbayes.methods.sgmcmc.restarts import MOST, mended
from torchbayes.model.parameters import Parameters
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.start import check_finite_start
from torchbayes.randomness.seeds import member_seeds


@undisturbed
@explained()
def sample(
    density: Density | Callable[..., Tensor],
    method: Chain,
    start_MD: Tensor | Mapping[str, Any] | None = None,
    *,
    parameters: Parameters | None = None,
    seed: int | None = None,
    callbacks: Sequence[Callback] | None = None,
    resume: Chains | None = None,
) -> Chains:
    """Draw from a density, which need not be that of a network.

    A chain has `method.steps` steps, of which the first `method.burn_in` are not retained: each chain gives (steps −
    burn_in) / thin draws.
    A proposal at which the density raises an exception, such as a ValueError or one of linear algebra, is rejected.
    Samplers on minibatches have no proposals, and stop there. Ctrl-C during burn-in ends the program as usual; later,
    the draws so far are returned, with a problem that says so. Chains of an interrupted or a finished run are
    continued by

        more = sample(density, NUTS(steps=5000), resume=chains)

    and are then, bit for bit, those of one run of as many steps. They are only kept in memory; `fit` of a model
    writes checkpoints.

    Args:
        density: the target. A function of one vector (D,) that returns its log density, a tensor of shape (),
            with gradients by autograd. It is called with the start of the first chain; if it returns anything but
            one number there, it must be a function of the vectors of all chains, (M, D) -> (M,). With
            `parameters`, a function of these by keyword. Functions of one chain are run for all by
            `torch.func.vmap` where possible, else in turn. Or a `LogDensity` with data, or a `FunctionDensity`.
        method: the sampler, such as `NUTS(chains=4)`.
        start_MD: where the chains start, (chains, D); or (D,), where all of them do. With `parameters` also a
            mapping from names to numbers on their own scale; or None: uniform on (−2, 2) on the unconstrained
            scale, drawn again where the density is not finite.
        parameters: names, shapes and constraints of the arguments of the function.
        seed: seed of the chains, and of where they start; None is 0, or that of `resume`.
        callbacks: called with an `Event` after each step, where an epoch is one step; one that returns True ends
            the run. None shows a progress bar on a terminal, elsewhere a line after 5 s and then after ever
            longer waits, on standard error; an empty tuple shows nothing, and
            a list shows the bar if it holds `tb.Progress()`.
        resume: the result of an earlier call, continued up to the steps of the method: with the same density,
            parameters and settings, and without a start.

    Returns:
        Retained draws, what every step reported, and known problems, which are also given as a warning.

    Raises:
        ValueError: if `start_MD` does not have one row per chain, or the density there cannot be computed, is not
            finite, has the wrong shape or no gradient, or no start with a finite density is found; or if `resume`
            holds chains of another method, other settings but `steps`, other parameters or another density.
        DivergedError: if a sampler on minibatches reaches a point where the density is not finite, or cannot be
            computed.
        TypeError: if an argument is of another kind, or the function returns no floating tensor.
        Interrupted: if Ctrl-C is pressed during burn-in: a KeyboardInterrupt, whose attribute `chains` can be
            resumed.
    """
    check_sample(density, method, parameters=parameters, callbacks=callbacks, resume=resume)
    if not hasattr(density, "prior_stds"):
        method = method.without_prior or method
    if resume is not None:
        names = parameters or _names(density, resume.state.weights_MD)
        check_continues(resume, method, start_MD, names=names, seed=seed)
        start_MD = resume.state.weights_MD
    seed = 0 if seed is None else seed
    density, parameters, start_MD = _target(density, method, start_MD, parameters=parameters, seed=seed)
    begun = resume.state.step if resume is not None else 0
    with listeners(callbacks, method, (begun, method.length(1)), unit="steps") as notified:
        chains = run_chains(
            density, method, start_MD, seed=seed, parameters=parameters, callbacks=notified, resume=resume
        )
    exact = "acceptance" in chains.numbers
    columns = {name: seen[:, method.burn_in :] for name, seen in chains.numbers.items()} if exact else {}
    identified = not hasattr(density, "model")  # the hidden units of a network can be exchanged
    judge = partial(problems, fault=chains.fault, identified=identified, layout=parameters and parameters.layout)
    ending, divergences = method.ending(None, chains.state), [] if exact else chains.lost()
    chains = replace(chains, weights_MSD=mended(chains.weights_MSD, chains.steps_S.tolist(), divergences))
    more_problems, raised = checked(lambda: judge(chains.weights_MSD, columns))
    chains = replace(chains, problems=(*chains.problems, *ending.said, *diverged(divergences, MOST), *more_problems))
    warn_of(chains.problems, "these chains")
    warn_unchecked(raised, "the sample")
    return chains


def run_chains(
    density: Density,
    method: Chain,
    start_MD: Tensor,
    *,
    seed: int,
    parameters: Parameters | None = None,
    callbacks: Sequence[Callback] = (),
    resume: Chains | None = None,
) -> Chains:
    """Return what `sample` does, for chains that are not judged together because each has its own target.

    Raises a ValueError if the start does not fit, or a callback ends the run before a draw is retained; Interrupted
    if Ctrl-C is pressed before a draw is retained, or the KeyboardInterrupt itself if no step was taken.
    """
    start_MD = _start(start_MD, method.members)
    check_draws(method, start_MD[0], start_MD.device)
    if resume is None:
        first = method.init(density, start_MD, {}, seeds=member_seeds(seed, method.members), steps_per_epoch=1)
    else:
        check_same_density(resume, density)
        first = resume.state
    if resume is not None and method.visit(first) is None:
        return replace(resume, method=method, problems=())
    taken: list[_Taken] = []
    stopped: KeyboardInterrupt | None = None
    try:
        _iterate(density, method, first, taken=taken, callbacks=callbacks)
    except KeyboardInterrupt as error:
        if not taken:
            raise
        stopped = error
    chains = _found(method, taken, start_MD, parameters=parameters or _names(density, start_MD), begun=first.step)
    chains, total = chains if resume is None else resume.continued(chains), method.length(1)
    if stopped is not None:
        chains = replace(chains, problems=(f"interrupted after {chains.state.step:,} of {total:,} steps",))
    if not chains.weights_MSD.shape[1]:
        if stopped is not None:
            raise Interrupted(chains, total) from stopped
        raise ValueError(f"the run ended after {chains.state.step} steps, before a draw was retained. Sample longer.")
    return chains


def _found(method: Chain, taken: Sequence[_Taken], start_MD: Tensor, *, parameters: Parameters, begun: int) -> Chains:
    """Return the chains of the steps taken after the first `begun`; there is at least one."""
    numbered = list(enumerate(taken, begun + 1))
    drawn = [(number, step.drawn_MD) for number, step in numbered if step.drawn_MD is not None]
    return Chains(
        torch.stack([drawn_MD for _, drawn_MD in drawn], dim=1) if drawn else start_MD[:, None][:, :0],
        {name: torch.stack([step.means[name] for step in taken], dim=1).double() for name in taken[0].means},
        taken[-1].state,
        next((step.fault for number, step in numbered if step.fault and number > method.burn_in), ""),
        parameters=parameters,
        steps_S=torch.tensor([number for number, _ in drawn], dtype=torch.int64),
        burn_in=method.burn_in,
        method=method,
    )


class _Taken(NamedTuple):
    """A step that was taken: the state after it, its report, its exception, and the weights it retains."""

    state: Any
    means: Mapping[str, Tensor]
    fault: str
    drawn_MD: Tensor | None


def _iterate(
    density: Density, method: Chain, state: Any, *, taken: list[_Taken], callbacks: Sequence[Callback]
) -> None:
    """Take the steps; each is appended to `taken` at once, so that an interrupt loses only its own."""
    total = method.length(1)
    for now, info in steps(method, density, state):  # the density holds its data, so no rows are read
        drawn_MD, means = method.draw(now), info.means()
        if taken:
            taken[-1] = taken[-1]._replace(state=None)
        taken.append(_Taken(now, means, info.now().get("fault", ""), None if drawn_MD is None else drawn_MD.clone()))
        if callbacks:
            numbers = {name: values_M.tolist() for name, values_M in means.items()}
            event = Event(now.step, total, now.step, now, info, {"step": now.step, **numbers})
            if any([callback(event) is True for callback in callbacks]):  # a list, so that every callback is called
                break


def _target(
    density: Any, method: Chain, start: Any, *, parameters: Parameters | None, seed: int
) -> tuple[Density, Parameters | None, Tensor]:
    """Return the density of a call of `sample`, its named parameters, and where the chains start."""
    if parameters is None:
        if not hasattr(density, "leapfrog"):
            density = density_of(density, _start(start, method.members))
        return density, None, start
    named, size = density_of_named(density, parameters), parameters.layout.size
    if start is None:
        return named, parameters, dispersed(named, size, member_seeds(seed, method.members))
    start = parameters.unconstrained(start) if isinstance(start, Mapping) else start
    if isinstance(start, Tensor) and start.shape[-1:] != (size,):
        raise ValueError(
            f"`start_MD` must hold the {size} numbers of the parameters without constraints; got shape "
            f"{tuple(start.shape)}. Give a mapping from names to numbers on their own scale."
        )
    return named, parameters, start


def _names(density: Any, start_MD: Tensor) -> Parameters:
    """Return the names of weights: those of a network, or "w" for the whole vector."""
    return Parameters(**(density.model.layout.shapes if hasattr(density, "model") else {"w": start_MD.shape[1:]}))


def _start(start_MD: Tensor, chains: int) -> Tensor:
    """Return where each chain starts, after checking that these are finite weights in float32 or float64."""
    if not isinstance(start_MD, Tensor) or start_MD.dtype not in {torch.float32, torch.float64}:
        seen = start_MD.dtype if isinstance(start_MD, Tensor) else type(start_MD).__name__
        advice = " Only for named `parameters` are starts found." if start_MD is None else ""
        raise TypeError(f"`start_MD` must be a tensor of weights in float32 or float64; got {seen}.{advice}")
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
