"""Export to arviz, for its plots and comparisons."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchbayes.diagnostics._blocks import check_draws

Named = Tensor | Mapping[str, Tensor]

# Numbers of a step -> their name in arviz, and whether they are flags.
_IN_ARVIZ = {
    "log_density": ("lp", False),
    "energy": ("energy", False),
    "acceptance": ("acceptance_rate", False),
    "step_size": ("step_size", False),
    "gradients": ("n_steps", False),
    "divergent": ("diverging", True),
    "saturated": ("reached_max_treedepth", True),
}


def in_arviz(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return numbers of the steps of a sampler by the names of arviz, those that have one.

    A trajectory of NUTS of L steps has doubled ⌊log₂ L⌋ + 1 times, the doubling in which it turned included.

    Args:
        numbers: name in the log of a run -> float64, any shape; NaN where it is not known, which is no flag.
    """
    stats = {
        known_as: numbers[name] > 0 if is_flag else numbers[name]
        for name, (known_as, is_flag) in _IN_ARVIZ.items()
        if name in numbers
    }
    if "saturated" in numbers and "gradients" in numbers:
        stats["tree_depth"] = numbers["gradients"].log2().floor() + 1
    return stats


@runtime_checkable
class Sampled(Protocol):
    """Chains with their own names and statistics, such as those of `sample`."""

    def draws(self) -> Mapping[str, Tensor]:
        """Return name -> draws (M, S, ...)."""
        ...

    def sample_stats(self) -> Mapping[str, Tensor]:
        """Return arviz's name -> statistic of the sampler (M, S)."""
        ...


@runtime_checkable
class Chains(Protocol):
    """A posterior that holds draws of chains."""

    @property
    def weights_MSD(self) -> Tensor:
        """Draws of every chain."""
        ...


def to_arviz(
    draws: Named | Sampled | Chains,
    *,
    sample_stats: Mapping[str, Tensor] | None = None,
    log_likelihood: Named | None = None,
    observed_data: Named | None = None,
) -> Any:
    """Return draws for arviz, which must be installed: a DataTree from version 1 on, an InferenceData before.

    Tensors are copied to the CPU as arrays; arviz reads the first two axes as chain and draw. Only groups that are
    given are in the result.

    Args:
        draws: The chains of `sample`, with their statistics; a posterior of chains; or draws, shape (M, S, ...), or
            a mapping from names to such; a tensor is named "weights". For a large network pass a few weights, or
            draws of functions.
        sample_stats: Statistics of the sampler, shape (M, S, ...), by arviz's names: "energy", "acceptance_rate",
            "diverging", "n_steps", "step_size", "lp" and others.
        log_likelihood: Log-probability of each datum under each draw, shape (M, S, N), or a mapping from names of
            observed variables to such; a tensor is named "targets". arviz compares models by it.
        observed_data: Targets, any shape, or a mapping from the same names to such.

    Raises:
        ImportError: If arviz is not installed.
        TypeError: If draws are not floating tensors, or anything else is not a tensor.
        ValueError: If the numbers of chains or draws differ between tensors.
    """
    if isinstance(draws, Sampled):
        draws, sample_stats = draws.draws(), {**draws.sample_stats(), **_named("sample_stats", sample_stats, "stat")}
    if isinstance(draws, Chains):
        draws = draws.weights_MSD
    if not isinstance(draws, Mapping | Tensor):
        raise TypeError(
            f"`draws` must be draws of chains, (M, S, ...), by name or not, or a posterior that holds such; got an "
            f"object of type {type(draws).__name__}. Of another posterior draw them: posterior.sample(1000)[None]."
        )
    posterior = _named("draws", draws, "weights")
    if not posterior:
        raise ValueError("`draws` must name at least one quantity; got an empty mapping.")
    for values in posterior.values():
        check_draws(values, min_draws=1)
    likelihood = _named("log_likelihood", log_likelihood, "targets")
    statistics = _named("sample_stats", sample_stats, "stat")
    _check_chains({"draws": posterior, "sample_stats": statistics, "log_likelihood": likelihood})
    groups = {
        "posterior": posterior,
        "sample_stats": statistics,
        "log_likelihood": likelihood,
        "observed_data": _named("observed_data", observed_data, "targets"),
    }
    return from_groups(groups)


def from_groups(groups: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """Return groups of named tensors as arviz holds them, without those that are empty.

    Raises:
        ImportError: If arviz is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError("`to_arviz` needs arviz, which is not installed. Run: pip install arviz") from error
    arrays = {
        group: {name: _array(values) for name, values in tensors.items()}
        for group, tensors in groups.items()
        if tensors
    }
    # Version 1 removed InferenceData and made the mapping of groups the first argument.
    make: Any = arviz.from_dict
    return make(**arrays) if hasattr(arviz, "InferenceData") else make(arrays)


def _named(argument: str, values: Named | None, name: str) -> dict[str, Tensor]:
    if values is None:
        return {}
    tensors = dict(values) if isinstance(values, Mapping) else {name: values}
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"`{argument}`: {key!r} must be a torch tensor; got {type(tensor).__name__}. Use torch.as_tensor."
            )
    return tensors


def _check_chains(groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Require one number of chains and of draws in every tensor; the draws come first."""
    first = next(iter(groups["draws"].values()))
    expected = tuple(first.shape[:2])
    for group, tensors in groups.items():
        for name, values in tensors.items():
            if tuple(values.shape[:2]) != expected:
                raise ValueError(
                    f"`{group}` must have {expected[0]} chains of {expected[1]} draws, like the first of the draws; "
                    f"got shape {tuple(values.shape)} for {name!r}."
                )


def _array(values: Tensor) -> Any:
    values = values.detach().cpu()
    # numpy has no bfloat16.
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy().copy()
