"""Weights that were trained elsewhere, read from a module, a state dict or a checkpoint, which are never written to.

Wrappers change the names of parameters: `module.` of data parallelism, `_orig_mod.` of torch.compile, an attribute
such as `model.` of a LightningModule. Names are compared first as they are, then without the parts that wrappers
add, both times below any common prefix.
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
from torchbayes.native.sharding import whole as gathered
from torchbayes.posteriors.problems import note

Trained = nn.Module | Mapping[str, Any] | str | PathLike[str]
"""A network trained elsewhere: the module, its state dict, or the path of a checkpoint."""

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_HOLDERS = ("state_dict", "model_state_dict", "model", "module")  # where checkpoints keep the state dict
_SAVE = "Save `net.state_dict()`, by torch.save or safetensors."


class Weights(NamedTuple):
    """What a trained network holds, as copies on the model's device and in its dtype."""

    # all random weights; learned likelihood parameters that it does not hold are at their initial values
    weights_D: Tensor
    buffers: Buffers  # those that training may change
    learned: bool  # whether it holds the likelihood's learned parameters


def named(argument: str, trained: Trained | Sequence[Trained]) -> list[tuple[str, Trained]]:
    """Return (name in messages, network) of one trained network or each of a list; a ValueError if it is empty."""
    if isinstance(trained, str) or not isinstance(trained, Sequence):
        return [(argument, trained)]
    if not trained:
        raise ValueError(f"`{argument}` is an empty list: it holds no network. Check the pattern of the paths.")
    return [(f"{argument}[{number}]", network) for number, network in enumerate(trained)]


def weights_of(model: Model, trained: Trained, source: str) -> Weights:
    """Return weights and buffers of a trained network: a module, a state dict, or the path of a checkpoint.

    A checkpoint is in safetensors or what torch.save wrote. `source` names the argument in messages. A ValueError if
    parameters are missing, have other shapes or are not finite, one that is not random differs from the model's, or
    a file is damaged or holds no state dict.
    """
    if isinstance(trained, str | PathLike):
        source, tensors = str(trained), _read(full_path(trained))
    elif isinstance(trained, nn.Module):
        source, tensors = (
            f"`{source}`",
            {
                **dict(trained.named_parameters(remove_duplicate=False)),
                **dict(trained.named_buffers(remove_duplicate=False)),
            },
        )
    elif isinstance(trained, Mapping):
        source, tensors = f"`{source}`", _state_of(trained)
    else:
        raise TypeError(f"`{source}` must be a module, a state dict or the path of a checkpoint; got {seen(trained)}.")
    if not tensors:
        raise ValueError(f"{source} holds no tensors by name, as a state dict does. {_SAVE}")
    network, tensors = model.network, renamed(model, {n: t.detach() for n, t in tensors.items()}, source)
    _check_shapes(network.shapes + Layout.of(network.buffers), tensors, source)
    check_values(tensors, source)
    _check_constants(model, tensors, source)
    random = {n: t.to(network.device, network.dtype) for n, t in only(network.layout.names, tensors).items()}
    _check_finite(random, source)
    weights_D = with_learned(model, network.layout.join(network.mask.select(random)).unsqueeze(0))[0]
    learned_names = model.layout.shapes.keys() - network.layout.shapes.keys()
    learned = bool(learned_names) and learned_names <= tensors.keys()
    if learned:
        views = only(learned_names, model.layout.split(weights_D))
        _check_shapes(Layout.of(views), tensors, source)
        _check_finite(only(learned_names, tensors), source)
        for name, view in views.items():
            view.copy_(tensors[name])
    buffers = {n: tensors.get(n, b).to(b.device, b.dtype, copy=True) for n, b in network.buffers.items()}
    return Weights(weights_D, buffers, learned)


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, without running code in it.

    A ValueError if it is damaged, or holds objects other than tensors and plain values.
    """
    if as_file(path).suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or not a safetensors file ({error}). {_SAVE}") from error
    try:
        return _state_of(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # pickles of unknown content may raise anything
        foreign = (
            re.search(r"GLOBAL (\w+(?:\.\w+)+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        )
        if foreign:
            reason = f"holds objects of {foreign[1]}, which are not loaded, as that may run code"
        else:
            reason = f"is damaged, or was not written by torch.save ({type(error).__name__})"
        raise ValueError(f"{path} {reason}. {_SAVE}") from error


def _state_of(content: Any) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of the one that a checkpoint holds among other things."""
    if not isinstance(content, Mapping):
        return {}
    inner = next((content[key] for key in _HOLDERS if isinstance(content.get(key), Mapping)), content)
    return {name: t for name, t in inner.items() if isinstance(name, str) and isinstance(t, Tensor)}


def renamed(model: Model, held: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return the tensors of a trained network, under the model's names where it has them, else under their own.

    A ValueError if a random parameter is missing, or all are found below several prefixes.
    """
    network = model.network
    own_names = [*network.layout.names, *network.constants, *(n for n, _ in network.module.named_buffers())]
    random = network.layout.names
    for rename in (str, _plain):
        names, plain = {rename(n): n for n in held}, {n: rename(n) for n in own_names}
        if len(names) < len(held):  # without the wrappers' parts two names coincide
            continue
        prefixes = _prefixes([plain[n] for n in random], names)
        if len(prefixes) > 1:
            raise ValueError(
                f"{source} holds the model's parameters more than once, below {', '.join(f'`{p}`' for p in prefixes)}. "
                f"Pass the part that is meant."
            )
        if prefixes:
            below = {n: prefixes[0] + plain[n] for n in own_names}
            matched = {n: held[names[full]] for n, full in below.items() if full in names}
            return {**{n: t for n, t in held.items() if n not in own_names}, **matched}
    likely = Counter(h.removesuffix(n) for n in random for h in held if h == n or h.endswith(f".{n}"))
    prefix = likely.most_common(1)[0][0] if likely else ""
    missing = [n for n in random if prefix + n not in held]
    raise ValueError(
        f"{source} does not fit the model's network: {len(missing)} of its {len(random)} random parameters are "
        f"missing, {_listed(missing)}; it holds {_listed(list(held))}. Pass the network that the model was made of."
    )


def _prefixes(wanted: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the prefixes below which all wanted names are found: [""] if they are found as they are, else all."""
    names = set(names)
    if names.issuperset(wanted):
        return [""]
    ends = [n.removesuffix(wanted[0]) for n in sorted(names) if n.endswith(f".{wanted[0]}")]
    return [prefix for prefix in ends if all(prefix + n in names for n in wanted)]


def _plain(name: str) -> str:
    return ".".join(piece for piece in name.split(".") if piece not in _WRAPPERS)


def check_values(held: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError if a tensor is on the meta device and so has no values; `source` names what holds them."""
    absent = [name for name, tensor in held.items() if without_values(tensor)]
    if absent:
        raise ValueError(
            f"{source} has no values for {_listed(absent)}, as on the meta device. Load its weights first."
        )


def _check_shapes(wanted: Layout, held: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError if the shape of a parameter or buffer differs."""
    shared = Layout({n: shape for n, shape in wanted.shapes.items() if n in held})
    faults = shared.differences(Layout.of(only(shared.names, held)))
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ValueError(
            f"{source} does not fit the model's network: {'; '.join(faults[:5])}{more}. Pass the network that the "
            f"model was made of."
        )


def _check_constants(model: Model, held: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError if a parameter that is not random differs from the model's; warn of such buffers."""
    network = model.network
    network.borrowed.check()  # the model's may be those of the trained network itself
    _check_shapes(Layout.of(network.constants), held, source)
    changed = [n for n, t in network.constants.items() if n in held and not _same(t, held[n])]
    for name, whole in network.mask.tensors.items():
        mask = torch.ones(whole.shape, dtype=torch.bool, device=whole.device).flatten()
        mask[network.mask.indices[name]] = False
        if not _same(whole.flatten()[mask], held[name].to(whole.device).flatten()[mask]):
            changed.append(name)
    if changed:
        raise ValueError(
            f"{source} has other values than the model where it is not random: {_listed(changed)}. The posterior would "
            f"put the collected weights into another network. Make the Model from the network as it is trained, or "
            f"widen `random`."
        )
    frozen = {n: b for n, b in network.module.named_buffers() if n not in network.buffers and b.layout == torch.strided}
    moved = [n for n, b in frozen.items() if n in held and not _same(b, held[n])]
    if moved:
        note(
            f"{source} has other buffers than the model in its frozen part: {_listed(moved)}. The posterior uses the "
            f"model's. Keep that part in evaluation mode, and make the Model from the network as it is trained."
        )


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether a tensor equals the model's, to the precision of `second`."""
    first, second = gathered(first), gathered(second)
    return first.shape == second.shape and torch.equal(first.to(second.device, second.dtype), second)


def _check_finite(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError if a weight is NaN or infinite."""
    for name, tensor in tensors.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"{source} is not finite: {bad} of the {tensor.numel()} values of `{name}` are NaN or infinite, so its "
                f"training has diverged. Lower the learning rate, and go on from an earlier point."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
