"""Weights that were trained elsewhere, read from a module, a state dict or a checkpoint; nothing is written to it.

Wrappers change the names of parameters: `module.` of data parallelism, `_orig_mod.` of torch.compile, an attribute such
as `model.` of a LightningModule. Names are compared as they are, then without the parts that wrappers add, both below
any common prefix.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torchbayes.checks import as_file, seen
from torchbayes.model.initialisation import without_values
from torchbayes.model.layout import Layout, only
from torchbayes.model.model import Model, with_learned
from torchbayes.model.network import Buffers
from torchbayes.native.process import full_path
from torchbayes.posteriors.problems import note

Trained = nn.Module | Mapping[str, Any] | str | PathLike[str]
"""A network trained elsewhere: the module, its state dict, or the path of a checkpoint."""

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_HOLDERS = ("state_dict", "model_state_dict", "model", "module")  # where checkpoints keep the state dict
_SAVE = "Save `net.state_dict()`, by torch.save or safetensors."


class Weights(NamedTuple):
    """What a trained network holds, as copies on the model's device and in its dtype.

    Attributes:
        weights_D: all random weights; learned likelihood parameters that it does not hold are at their initial values.
        buffers: name -> tensor of the buffers that training may change.
        learned: whether it holds the likelihood's learned parameters.
    """

    weights_D: Tensor
    buffers: Buffers
    learned: bool


def named(what: str, trained: Trained | Sequence[Trained]) -> list[tuple[str, Trained]]:
    """Return trained networks, one or a list of them, with what each is called in messages.

    Args:
        what: the name of the argument.
        trained: the networks.

    Returns:
        (name, network) of each.

    Raises:
        ValueError: if the list is empty.
    """
    if isinstance(trained, str) or not isinstance(trained, Sequence):
        return [(what, trained)]
    if not trained:
        raise ValueError(f"`{what}` is an empty list: it holds no network. Check the pattern of the paths.")
    return [(f"{what}[{number}]", each) for number, each in enumerate(trained)]


def weights_of(model: Model, trained: Trained, what: str) -> Weights:
    """Return the weights of a trained network.

    Args:
        model: the model of this network.
        trained: the module, a state dict, or the path of a checkpoint: safetensors, or what torch.save wrote.
        what: the name of the argument, for messages.

    Returns:
        Weights and buffers.

    Raises:
        ValueError: if parameters are missing, have other shapes or are not finite, one that is not random differs from
            the model's, or a file is damaged or holds no state dict.
        FileNotFoundError: if there is no such file.
        TypeError: if it is none of these.
    """
    if isinstance(trained, str | PathLike):
        what, held = str(trained), _read(full_path(trained))
    elif isinstance(trained, nn.Module):
        what, held = (
            f"`{what}`",
            {
                **dict(trained.named_parameters(remove_duplicate=False)),
                **dict(trained.named_buffers(remove_duplicate=False)),
            },
        )
    elif isinstance(trained, Mapping):
        what, held = f"`{what}`", _state_of(trained)
    else:
        raise TypeError(f"`{what}` must be a module, a state dict or the path of a checkpoint; got {seen(trained)}.")
    if not held:
        raise ValueError(f"{what} holds no tensors by name, as a state dict does. {_SAVE}")
    network, held = model.network, _renamed(model, {n: t.detach() for n, t in held.items()}, what)
    _check_shapes(network.shapes + Layout.of(network.buffers), held, what)
    check_values(held, what)
    _check_constants(model, held, what)
    mine = {n: t.to(network.device, network.dtype) for n, t in only(network.layout.names, held).items()}
    _check_finite(mine, what)
    weights_D = with_learned(model, network.layout.join(network.mask.select(mine)).unsqueeze(0))[0]
    own = model.layout.shapes.keys() - network.layout.shapes.keys()
    learned = bool(own) and own <= held.keys()
    if learned:
        views = only(own, model.layout.split(weights_D))
        _check_shapes(Layout.of(views), held, what)
        _check_finite(only(own, held), what)
        for name, view in views.items():
            view.copy_(held[name])
    buffers = {n: held.get(n, b).to(b.device, b.dtype, copy=True) for n, b in network.buffers.items()}
    return Weights(weights_D, buffers, learned)


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name; no code in it is run.

    Raises:
        ValueError: if it is damaged, or holds objects other than tensors and plain values.
    """
    if as_file(path).suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or not a safetensors file ({error}). {_SAVE}") from error
    try:
        return _state_of(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # whatever pickles of unknown content raise
        foreign = (
            re.search(r"GLOBAL (\w+(?:\.\w+)+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        )
        if foreign:
            reason = f"holds objects of {foreign[1]}, which are not loaded, as that may run code"
        else:
            reason = f"is damaged, or was not written by torch.save ({type(error).__name__})"
        raise ValueError(f"{path} {reason}. {_SAVE}") from error


def _state_of(content: Any) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of the one that a checkpoint holds beside other things."""
    if not isinstance(content, Mapping):
        return {}
    inner = next((content[key] for key in _HOLDERS if isinstance(content.get(key), Mapping)), content)
    return {name: t for name, t in inner.items() if isinstance(name, str) and isinstance(t, Tensor)}


def _renamed(model: Model, held: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Return what a trained network holds under the model's names, and the rest under its own.

    Raises:
        ValueError: if a random parameter is missing, or they are found below several prefixes.
    """
    network = model.network
    wanted = [*network.layout.names, *network.constants, *(n for n, _ in network.module.named_buffers())]
    random = network.layout.names
    for rename in (str, _plain):
        names, plain = {rename(n): n for n in held}, {n: rename(n) for n in wanted}
        if len(names) < len(held):  # without the wrappers' parts two names are one
            continue
        prefixes = _prefixes([plain[n] for n in random], names)
        if len(prefixes) > 1:
            raise ValueError(
                f"{what} holds the model's parameters more than once, below {', '.join(f'`{p}`' for p in prefixes)}. "
                f"Pass the part that is meant."
            )
        if prefixes:
            below = {n: prefixes[0] + plain[n] for n in wanted}
            mine = {n: held[names[full]] for n, full in below.items() if full in names}
            return {**{n: t for n, t in held.items() if n not in wanted}, **mine}
    likely = Counter(h.removesuffix(n) for n in random for h in held if h == n or h.endswith(f".{n}"))
    prefix = likely.most_common(1)[0][0] if likely else ""
    missing = [n for n in random if prefix + n not in held]
    raise ValueError(
        f"{what} does not fit the model's network: {len(missing)} of its {len(random)} random parameters are missing, "
        f"{_listed(missing)}; it holds {_listed(list(held))}. Pass the network that the model was made of."
    )


def _prefixes(wanted: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the prefixes below which all wanted names are found: none at all, or else all that there are."""
    names = set(names)
    if names.issuperset(wanted):
        return [""]
    ends = [n.removesuffix(wanted[0]) for n in sorted(names) if n.endswith(f".{wanted[0]}")]
    return [prefix for prefix in ends if all(prefix + n in names for n in wanted)]


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def check_values(held: Mapping[str, Tensor], what: str) -> None:
    """Check that tensors hold values.

    Args:
        held: tensors by name.
        what: what holds them, for messages.

    Raises:
        ValueError: if one is on the meta device.
    """
    absent = [name for name, tensor in held.items() if without_values(tensor)]
    if absent:
        raise ValueError(f"{what} has no values for {_listed(absent)}, as on the meta device. Load its weights first.")


def _check_shapes(wanted: Layout, held: Mapping[str, Tensor], what: str) -> None:
    """Check the shapes of parameters and buffers.

    Raises:
        ValueError: if one differs.
    """
    there = Layout({n: shape for n, shape in wanted.shapes.items() if n in held})
    said = there.differences(Layout.of(only(there.names, held)))
    if said:
        more = f" and {len(said) - 5} more" if len(said) > 5 else ""
        raise ValueError(
            f"{what} does not fit the model's network: {'; '.join(said[:5])}{more}. Pass the network that the model "
            f"was made of."
        )


def _check_constants(model: Model, held: Mapping[str, Tensor], what: str) -> None:
    """Check that what is not random is as it was when the model was made; warn of buffers that are not.

    Raises:
        ValueError: if a parameter differs.
    """
    network = model.network
    _check_shapes(Layout.of(network.constants), held, what)
    changed = [n for n, t in network.constants.items() if n in held and not _same(t, held[n])]
    for name, whole in network.mask.tensors.items():
        mask = torch.ones(whole.shape, dtype=torch.bool, device=whole.device).flatten()
        mask[network.mask.indices[name]] = False
        if not _same(whole.flatten()[mask], held[name].to(whole.device).flatten()[mask]):
            changed.append(name)
    if changed:
        raise ValueError(
            f"{what} has other values than the model where it is not random: {_listed(changed)}. The posterior would "
            f"put the collected weights into another network. Make the Model from the network as it is trained, or "
            f"widen `random`."
        )
    frozen = {n: b for n, b in network.module.named_buffers() if n not in network.buffers and b.layout == torch.strided}
    moved = [n for n, b in frozen.items() if n in held and not _same(b, held[n])]
    if moved:
        note(
            f"{what} has other buffers than the model in its frozen part: {_listed(moved)}. The posterior uses the "
            f"model's. Keep that part in evaluation mode, and make the Model from the network as it is trained."
        )


def _same(own: Tensor, other: Tensor) -> bool:
    """Return whether a tensor is the model's, to the precision of the other."""
    return own.shape == other.shape and torch.equal(own.to(other.device, other.dtype), other)


def _check_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Check weights.

    Raises:
        ValueError: if one is NaN or infinite.
    """
    for name, tensor in tensors.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"{what} is not finite: {bad} of the {tensor.numel()} values of `{name}` are NaN or infinite, so its "
                f"training has diverged. Lower the learning rate, and go on from an earlier point."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
