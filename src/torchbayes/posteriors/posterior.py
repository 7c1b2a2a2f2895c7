"""Posterior: the result of inference, from which functions can be drawn.

Every posterior is an equal mixture over its member axis M. Draw s comes from member s mod M, so any multiple of M
draws weighs the members equally, and the first M draws are one per member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_memory, is_whole, seen
from torchbayes.display import Overview, shown
from torchbayes.model.description import CONSTANTS, describe_model, fingerprint
from torchbayes.model.dropout import Mask
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.native.noise import fill_normal_rows
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.files import write_tensors
from torchbayes.posteriors.functions import Calibration, Functions, passes, recalibrate_
from torchbayes.posteriors.modules.module import ModelAverage
from torchbayes.posteriors.problems import warn_of
from torchbayes.randomness.seeds import Purpose, numbered

BUFFERS, SAMPLE_STATS = "buffers.", "sample_stats."


KINDS: dict[str, Any] = {}
"""Every kind of posterior, by its name in files."""

_Kind = TypeVar("_Kind", bound=Any)


def readable(kind: _Kind) -> _Kind:
    """Register a kind of posterior so that its files can be read, and return it: a class decorator."""
    KINDS[kind.kind] = kind
    return kind


class Beside(NamedTuple):
    """What S draws have beside their weights."""

    buffers_S: Buffers | None = None  # each (S, ...), in the place of the buffers that belong to the weights
    masks_S: tuple[Mask, ...] | None = None


def _overview(posterior: Posterior) -> Overview:
    """Return what is displayed of the posterior."""
    facts = {"members": posterior.members, "draws": posterior.default_draws, "model": posterior.model}
    return Overview(type(posterior).__name__, facts, problems=posterior.problems)


@undisturbed_methods
@shown(_overview)
@dataclass(frozen=True, repr=False)
class Posterior(ABC):
    """Base of the posteriors: M members of equal weight over one model's weights.

    Attributes:
        model: the model whose weights these are.
        buffers_M: the members' buffers, each (M, ...); the network's own if None.
        statistics_known: whether batch-norm statistics in `buffers_M` belong to the draws; if not, each draw of a
            network with batch norm is recalibrated on training data.
        calibration: training inputs for batch-norm statistics; set by `fit`, not saved.
        problems: known problems, one clause each, such as "chain 2 never moved". They are saved, and functions that
            use the posterior warn of them.
        sample_stats: what a sampler reported with each draw of its chains, by the names of ArviZ, each (M, S), and
            `step`, after which the draw was taken. Samplers on minibatches report means over epochs. None of others.
    """

    model: Model
    buffers_M: Buffers | None = field(default=None, kw_only=True, repr=False, compare=False)
    statistics_known: bool = field(default=False, kw_only=True)
    calibration: Calibration | None = field(default=None, kw_only=True, repr=False, compare=False)
    problems: tuple[str, ...] = field(default=(), kw_only=True)
    sample_stats: Mapping[str, Tensor] | None = field(default=None, kw_only=True, repr=False, compare=False)

    kind = "abstract"
    linear = False  # whether outputs are linear in all weights that vary
    of_linearised = False  # whether the network is linearised, so that prior and noise can be tuned after the fit
    prior_chosen = noise_chosen = False  # whether prior and noise were tuned
    still = False  # whether no chain ever moved

    def __init_subclass__(cls) -> None:
        undisturbed_methods(cls)

    @property
    @abstractmethod
    def members(self) -> int:
        """M, the number of mixture members."""

    @property
    def default_draws(self) -> int:
        """The number of draws that `predict` takes by default: the smallest multiple of M that is at least 30."""
        return -(-30 // self.members) * self.members

    @property
    def centre(self) -> Any:
        """The networks around which draws are spread, as a `Point` (itself if it is one); None without such."""
        return None

    @property
    def chain_length(self) -> int | None:
        """S, the draws of each chain, in the order in which they were visited; None where there are no chains."""
        return None

    @abstractmethod
    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights (S, D), one draw per row; draw s is from member s mod M.

        Raises:
            ValueError: if S is not a multiple of M, or the weights do not fit in memory.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that define the posterior, by name, for saving."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the JSON-serialisable settings that define the posterior, for saving."""

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return the posterior rebuilt from what `tensors` and `settings` gave, among other entries of a file."""
        raise NotImplementedError(f"{cls.__name__} is not read from files.")

    def calibrated(self, calibration: Calibration | Any) -> Self:
        """Return the posterior with these training inputs, as `load` takes them; what it has cached stays."""
        return _having(self, calibration=passes(self.model, calibration))

    def with_problems(self, problems: Iterable[str]) -> Self:
        """Return the posterior with these problems added; what it has cached stays."""
        return _having(self, problems=tuple(dict.fromkeys((*self.problems, *problems))))

    def with_learned(self, learned: Sequence[float] | Tensor) -> Any:
        """Return the posterior around other learned parameters of the likelihood; itself if it has no centre."""
        del learned
        return self

    # Not abstract, because most posteriors draw nothing but weights.
    def beside(self, draws: int, *, seed: int) -> Beside | None:  # noqa: B027
        """Return what S draws have beside their weights; None if nothing."""

    def check_draws(self, draws: int) -> int:
        """Return S if it gives all members equal weight.

        Raises:
            ValueError: if S is not a positive multiple of M.
        """
        members = self.members
        if not is_whole(draws):
            raise ValueError(f"`draws` must be a whole number, a multiple of the {members} members; got {seen(draws)}.")
        draws = int(draws)
        if draws < 1 or draws % members:
            low = max(draws, 0) // members * members
            high = low + members
            advice = f"Try {low} or {high}." if low > 0 else f"Try {high}."
            raise ValueError(f"`draws` must be a multiple of the {members} members; got {draws}. {advice}")
        return draws

    def functions(self, draws: int | None = None, *, seed: int = 0) -> Functions:
        """Return S functions drawn from the posterior: a callable inputs -> outputs (S, B, K).

        They are the same for every batch. For a network with batch norm, statistics are recalibrated on training
        data for each draw of weights.

        Args:
            draws: S, a multiple of M; the posterior's default if None.
            seed: seed of the draws.

        Raises:
            ValueError: if S is not a multiple of M, the weights do not fit in memory, or batch-norm statistics are
                needed and there are no training inputs.
        """
        draws = self.check_draws(self.default_draws if draws is None else draws)
        warn_of(self.problems)
        seed = as_seed(seed)
        weights_SD, beside = self.sample(draws, seed=seed), self.beside(draws, seed=seed) or Beside()
        buffers_S = _buffers_of(self, weights_SD) if beside.buffers_S is None else beside.buffers_S
        return Functions(self.model, weights_SD, buffers_S, beside.masks_S)

    def module(self, draws: int | None = None, *, seed: int = 0, level: float | None = 0.95) -> ModelAverage:
        """Return the model average, what `predict` gives, as a plain `nn.Module`: inputs -> tensors by name.

        It can be exported.

        Args:
            draws: S, a multiple of M; the posterior's default if None. A call takes S passes through the network.
            seed: seed of the draws, as for `predict`.
            level: of the central intervals of numbers; no intervals if None.

        Raises:
            ValueError: as `functions` does, or if the level is not between 0 and 1.
        """
        return self.functions(draws, seed=seed).module(level=level)

    def save(self, path: str | Path) -> Path:
        """Write the posterior to a safetensors file with a JSON header, completely or not at all.

        Args:
            path: where to write, such as `run/posterior.safetensors`.

        Returns:
            The path.
        """
        return write_tensors(path, *packed(self), once=True)


@cache
def own_fields(kind: type[Posterior]) -> tuple[str, ...]:
    """Return the names of the fields that a kind of posterior adds to those of every posterior."""
    return tuple(each.name for each in fields(kind)[len(fields(Posterior)) :])


class ByFields(Posterior):
    """A posterior that its own fields define, tensors and settings, and whose file holds them by their names.

    The first of them is a tensor with the axis M.
    """

    @property
    def members(self) -> int:
        return len(getattr(self, own_fields(type(self))[0]))

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name in own_fields(type(self)) if isinstance(value := getattr(self, name), Tensor)}

    def settings(self) -> dict[str, Any]:
        return {name: value for name in own_fields(type(self)) if not isinstance(value := getattr(self, name), Tensor)}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        stored = {**settings, **tensors}
        return cls(model, **{name: stored[name] for name in own_fields(cls)})


def on_trial(posterior: _Kind) -> _Kind:
    """Return a posterior without its problems, because a user need not be warned of one that is only tried."""
    return _having(posterior, problems=())


def _having(posterior: _Kind, **fields: Any) -> _Kind:
    """Return a posterior with other fields."""
    changed = copy(posterior)  # `replace` would drop what is cached
    for name, value in fields.items():
        object.__setattr__(changed, name, value)
    return changed


def _buffers_of(posterior: Posterior, weights_SD: Tensor) -> Buffers | None:
    """Return the buffers of each draw, (S, ...); None if there are none.

    A ValueError if batch-norm statistics are needed and there are no training inputs.
    """
    network, members = posterior.model.network, posterior.members
    buffers_M = posterior.buffers_M or network.stacked_buffers(members)
    buffers_S = {n: b[torch.arange(len(weights_SD)) % members] for n, b in buffers_M.items()}
    if not network.batch_norms or posterior.statistics_known:
        return buffers_S or None
    if posterior.calibration is None:
        raise ValueError(
            f"`{network.batch_norms[0]}` is a batch norm whose statistics belong to the weights, so each draw must "
            f"be recalibrated on training data, and none is at hand. Load the posterior with `calibration=inputs`."
        )
    recalibrate_(posterior.model, weights_SD, buffers_S, calibration=posterior.calibration)
    return buffers_S


def packed(posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a posterior's file."""
    buffers = {BUFFERS + n: b for n, b in (posterior.buffers_M or {}).items()}
    stats = {SAMPLE_STATS + n: s for n, s in (posterior.sample_stats or {}).items()}
    return {**posterior.tensors(), **buffers, **stats}, header_of(posterior, posterior.settings())


def header_of(posterior: Posterior, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of a posterior's file with these settings."""
    return {
        "kind": posterior.kind,
        "layout": {name: list(shape) for name, shape in posterior.model.layout.shapes.items()},
        "model": describe_model(posterior.model),
        CONSTANTS: fingerprint(posterior.model.network, without=_replaced(posterior)),
        "settings": dict(settings),
        "statistics_known": posterior.statistics_known,
        "problems": list(posterior.problems),
    }


def _replaced(posterior: Posterior) -> Container[str]:
    """Return the names of unused network buffers: the file holds others, or each draw gets its own statistics."""
    network = posterior.model.network
    if posterior.buffers_M:
        return posterior.buffers_M.keys()
    norms = () if posterior.statistics_known else network.batch_norms
    return {name for name in network.buffers if name.rpartition(".")[0] in norms}


def normals(seed: int, draws: int, size: int, *, like: Tensor) -> Tensor:
    """Return standard normals (draws, size) on the device and of the dtype of `like`, the same on every device.

    Row s depends on (seed, s) alone, so the first draws of a longer request are the draws of a shorter one. A
    ValueError if they do not fit in memory.
    """
    seed = as_seed(seed)
    check_memory(draws * size * like.itemsize, "the noise of the drawn weights", like.device, draws=draws)
    dtype = torch.promote_types(like.dtype, torch.float32)
    noise = torch.empty(draws, size, dtype=dtype, device=like.device)
    return fill_normal_rows(noise, numbered(Purpose.GAUSSIAN, seed, count=draws), 0).to(like.dtype)
