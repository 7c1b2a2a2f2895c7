"""Plain modules that predict: their base class, and the average of drawn networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from torchbayes.model.description import describe_model
from torchbayes.model.dropout import DropoutError, Mask, dropping, under
from torchbayes.model.functional_call import Held, without_memory
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods import Likelihood
from torchbayes.model.likelihoods.quantiles import check_level, mark_constants
from torchbayes.model.likelihoods.weighted import fixed_noise
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, outputs_of
from torchbayes.posteriors.files import write_tensors
from torchbayes.posteriors.modules.summary import summary

Parts = Mapping[str, Mapping[str, Tensor]]
"""The tensors of a module: part -> name in that part -> tensor."""

MODULES: dict[str, Any] = {}
"""Every kind of module, by its name in files."""

_Kind = TypeVar("_Kind", bound=Any)

_MASKED = (
    "a network with dropout can be exported if its masks are a part of the weights, and here they are not: "
    "an nn.Sequential whose nn.Dropout layers stand right beside linear layers. Use the module as it is."
)


def readable(kind: _Kind) -> _Kind:
    """Register a kind of module so that its files can be read, and return it: a class decorator."""
    MODULES[kind.kind] = kind
    return kind


class PredictiveModule(nn.Module, ABC):
    """A posterior as a plain module: all its tensors are buffers, and its outputs are named tensors.

    For classes a call returns `probs` (B, ..., K), `entropy`, `mutual_information` (its epistemic part) and
    `expected_entropy` (its aleatoric part), (B, ...) in nats. For numbers it returns `mean`, `variance`, its parts
    `epistemic` and `aleatoric`, and `lower` and `upper`, the ends of the central interval, (B, ...). A distribution
    without `cdf`, such as Student's, has no interval.

    The network inside has no tensors: those of a call are put into it, in each thread into a copy. It runs in
    evaluation mode, and inputs must have the module's device and dtype.
    """

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, model: Model, parts: Parts, settings: Mapping[str, Any]) -> None:
        """Hold tensors, and a network without tensors; `posterior.module` makes one."""
        super().__init__()
        model.network.borrowed.check()
        mark_constants()  # before a graph is made of the module
        for name, tensors in parts.items():
            self.add_module(name, _tree(tensors))
        self._class_axis, self._likelihood, self._settings = model.network.class_axis, model.likelihood, dict(settings)
        with dropping(model.network) if settings.get("masks") else nullcontext():  # the copy keeps these modes
            hollow = _hollow(model.network.module)
        self._network = Held(self.prepared(hollow), ())
        self._header = header_of(model, kind=self.kind, settings=self._settings)
        self.requires_grad_(False).eval()

    @abstractmethod
    def prepared(self, network: nn.Module) -> nn.Module:
        """Return the network that is run, given a copy of the model's without memory."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a part by their names in it."""
        return dict(self.get_submodule(name).named_buffers(remove_duplicate=False))

    def summed_up(self, outputs_SBK: Tensor, spread: Tensor | None = None) -> dict[str, Tensor]:
        """Return the summary of outputs, with their variances in closed form if given."""
        distribution = self._likelihood.distribution(outputs_SBK, broadcasting(self.part("learned"), outputs_SBK))
        return summary(distribution, spread=spread, level=self._settings["level"])

    def save(self, path: str | Path) -> Path:
        """Write the module to a safetensors file with a JSON header, completely or not at all; `load_module` reads it.

        Args:
            path: where to write, such as `run/module.safetensors`.

        Returns:
            The path.
        """
        return write_tensors(path, self.state_dict(), self._header)


@readable
class ModelAverage(PredictiveModule):
    """The average of S drawn networks, in one forward pass of each.

    The networks are run one after the other: stacked by `vmap`, convolutions take several times as long, and
    convolutions and attention cannot be exported with a dynamic batch.
    """

    kind = "module"
    parts = ("draws", "shared", "learned")
    _compiled: Callable[..., Any] | None = None  # runs a network

    @classmethod
    def of(
        cls,
        model: Model,
        weights_SD: Tensor,
        buffers_S: Buffers | None,
        *,
        level: float | None,
        masks_S: Sequence[Mask] | None = None,
    ) -> ModelAverage:
        """Return the average of drawn networks.

        Args:
            model: the model.
            weights_SD: the weights of each.
            buffers_S: the buffers of each, (S, ...); the network's own if None.
            level: of the central intervals; no intervals if None.
            masks_S: dropout masks of each; dropout is off if None.

        Raises:
            ValueError: if the level is not between 0 and 1.
        """
        network = model.network
        views, learned = model.split(weights_SD)
        filled = [network.mask.fill({n: v[s] for n, v in views.items()}) for s in range(len(weights_SD))]
        draws = {n: torch.stack([each[n] for each in filled]) for n in views} | (buffers_S or {})
        parts = {"draws": draws, "shared": shared(network.module, draws), "learned": learned}
        settings = settings_of(model.likelihood, level=level)
        masks = {} if masks_S is None else {"masks": [[mask.seed, dict(mask.rates)] for mask in masks_S]}
        return cls(model, parts, {**settings, **masks})

    def prepared(self, network: nn.Module) -> nn.Module:
        return network

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the network in place, once for all draws, by `torch.compile` with these arguments.

        `torch.compile(module)` makes one graph of all S networks instead: it takes longer to compile, for large ones
        too long, and is faster where networks are small.

        Args:
            *args: as of `torch.compile`.
            **kwargs: as of `torch.compile`.

        Raises:
            DropoutError: if the networks have dropout masks beside their weights.
        """
        if "masks" in self._settings:
            raise DropoutError(_MASKED)
        self._compiled = torch.compile(self._network.run, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in {"_compiled", "_compiled_call_impl"}
        }

    def _outputs(self, s: int, state: dict[str, Tensor], inputs: Any) -> Tensor:
        """Return the outputs of one drawn network; a DropoutError if it is exported and has masks."""

        def run(rows: Any) -> Tensor:
            return outputs_of((self._compiled or self._network.run)(state, rows), self._class_axis)

        if "masks" not in self._settings:
            return run(inputs)
        if torch.compiler.is_compiling():
            raise DropoutError(_MASKED)
        return under(Mask(*self._settings["masks"][s]), self, self._network.module, run=run, inputs=inputs)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the average at inputs and its uncertainty, by name.

        Args:
            inputs: tensor (B, ...); a tuple becomes positional arguments of the network, a mapping keyword
                arguments.
        """
        drawn, same = self.part("draws"), self.part("shared")
        first = next(iter(drawn.values()))
        states = [{**same, **{n: t[s] for n, t in drawn.items()}} for s in range(len(first))]
        self._network.ask(states[0], inputs, device=first.device)
        outputs_SBK = torch.stack([self._outputs(s, state, inputs) for s, state in enumerate(states)])
        return self.summed_up(outputs_SBK.to(torch.promote_types(outputs_SBK.dtype, torch.float32)))


def settings_of(likelihood: Likelihood, *, level: float | None) -> dict[str, Any]:
    """Return what is saved as JSON: the level, and the noise, which tuning may have changed.

    A ValueError if the level is not between 0 and 1.
    """
    if level is not None:
        check_level(level)
    return {"level": level, "scales": list(fixed_noise(likelihood))}


def header_of(model: Model, *, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of a module's file."""
    layout = {name: list(shape) for name, shape in model.layout.shapes.items()}
    return {
        "kind": kind,
        "layout": layout,
        "likelihood": describe_model(model)["likelihood"],
        "settings": dict(settings),
    }


def shared(network: nn.Module, own: Container[str]) -> dict[str, Tensor]:
    """Return copies of the parameters and buffers of a network, except those named in `own`."""
    named = [*network.named_parameters(), *network.named_buffers()]
    return {n: t.detach().clone() for n, t in named if n not in own}


def _hollow(network: nn.Module) -> nn.Module:
    """Return a copy of a network without the memory of its tensors."""
    tensors = [*network.parameters(), *network.buffers()]
    return deepcopy(network, {id(t): without_memory(t) for t in tensors})


def _tree(named: Mapping[str, Tensor]) -> nn.Module:
    """Return a module with these tensors as buffers, held by submodules according to their names."""
    root = nn.Module()
    for name, tensor in named.items():
        holder, (*path, last) = root, name.split(".")
        for step in path:
            if step not in holder._modules:
                holder.add_module(step, nn.Module())
            holder = holder.get_submodule(step)
        holder.register_buffer(last, tensor)
    return root
