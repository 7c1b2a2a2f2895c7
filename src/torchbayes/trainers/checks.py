"""Checks of an optimiser in a foreign loop: what would silently make its steps others than those of the method."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchbayes.checks import SettingError, holds
from torchbayes.methods.protocol import name_of_members
from torchbayes.model.functional_call import drops
from torchbayes.model.model import Model
from torchbayes.model.wrappers import without_norms
from torchbayes.posteriors.trained import renamed


def check_single(method: Any) -> None:
    """Raise SettingError unless a method takes one gradient in a step, and has one member."""
    name = type(method).__name__
    if not method.single_gradient:
        raise SettingError(
            f"`method` must take one gradient of a minibatch in each step, as another program computes no more; got "
            f"{name}. Take SGLD, SGHMC, SGNHT, or IVON with one draw; SWA and SWAG collect points of any training "
            f"(`tb.trainers.Collecting`), and Laplace begins at a trained network (`tb.fit(..., start=network)`)."
        )
    if method.members != 1:
        members = name_of_members(method)
        raise SettingError(
            f"`method` must have one member, as the loop trains one network; got {name} with {method.members} "
            f"{members}. Set `{members}=1`; give each run of several a network, an optimiser and a seed of its own."
        )


def held_by(network: nn.Module, model: Model) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """Return the network's random parameters and its buffers that training may change, by the model's names.

    A SettingError if they are not the model's, cannot be trained, or have a backward pass that is not exact.
    """
    parameters, buffers = (
        network.named_parameters(remove_duplicate=False),
        network.named_buffers(remove_duplicate=False),
    )
    held: Any = renamed(model, {**dict(parameters), **dict(buffers)}, "`network`")
    wanted = model.network.shapes.shapes
    for name, shape in wanted.items():
        if held[name].shape != shape or holds(held[name], "device_mesh"):
            raise SettingError(
                f"`{name}` of the network has shape {tuple(held[name].shape)}, not {tuple(shape)} as in the model. If "
                f"it is split over processes, as by FSDP or DeepSpeed, train it whole, as under data parallelism."
            )
        if not held[name].requires_grad:
            raise SettingError(f"`{name}` is random in the model and frozen in the network. Set its `requires_grad`.")
    if dora := [*without_norms(network)]:
        raise SettingError(
            f"the backward pass of `{dora[0]}`, an adapter of DoRA, leaves out the norms that it divides by, so that "
            f"the loop would not compute the gradient of the loss. Set `use_dora=False` of PEFT, or take `tb.fit`."
        )
    return {name: held[name] for name in wanted}, {name: held[name] for name in model.network.buffers}


def versions(optimizer: Any) -> list[int]:
    """Return how often each parameter was changed in place."""
    return [p._version for p in (*optimizer._parameters.values(), *optimizer.learned.values())]


def check_untouched(optimizer: Any) -> None:
    """Raise SettingError if something else has changed the parameters since the optimiser wrote them."""
    if versions(optimizer) != optimizer._versions:
        raise SettingError(
            f"the parameters were changed by something else since step {optimizer.steps}, such as another optimiser, "
            f"a weight decay or a moving average that is swapped in. They are not the weights of {name_of(optimizer)} "
            f"any more. Leave the parameters to it, or make a new optimiser after the change."
        )


def check_step(optimizer: Any) -> None:
    """Raise SettingError if a step would not be the method's."""
    name, groups = name_of(optimizer), optimizer.param_groups
    if optimizer.method.visit(optimizer._state) is None:
        raise SettingError(
            f"the run of {name} is over after {optimizer.total_steps:,} steps. Make it longer (`steps` of samplers, "
            f"`epochs` of IVON, `steps_per_epoch`), or end the loop and take `optimizer.posterior()`."
        )
    if len(groups) > 1 or groups[0]["lr"] != 1.0:
        got = f"got {len(groups)} groups of parameters" if len(groups) > 1 else f"got {groups[0]['lr']:g}"
        raise SettingError(
            f"`lr` of the optimiser must stay 1, of its one group; {got}. {name} has a learning rate or step size "
            f"and a schedule of its own: set those, and leave out the scheduler, or make it constant."
        )
    check_untouched(optimizer)
    if all(p.grad is None for p in optimizer._parameters.values()):
        raise SettingError("no random parameter has a gradient. Call `loss.backward()` before `optimizer.step()`.")
    if absent := [n for n, p in optimizer.learned.items() if p.grad is None]:
        raise SettingError(
            f"`{absent[0]}` of the likelihood is learned, and the loss does not depend on it. Compute the loss by "
            f"`-model.likelihood.log_prob(outputs, targets, optimizer.learned).mean()`, or give a fixed one."
        )
    if optimizer.steps == 0 and optimizer.method.needs.network == "eval":
        on = [n for n, m in optimizer.network.named_modules() if m.training and drops(m)]
        if on:
            raise SettingError(
                f"dropout is on in `{on[0]}`" + (f" and {len(on) - 1} more" if len(on) > 1 else "") + f", so that the "
                f"weights have no fixed density for {name} to sample. Set its probability to 0 (`lora_dropout` of "
                f"PEFT, the dropouts in the `config` of Hugging Face), or take IVON."
            )


def name_of(optimizer: Any) -> str:
    """Return the name of the method."""
    return type(optimizer.method).__name__
