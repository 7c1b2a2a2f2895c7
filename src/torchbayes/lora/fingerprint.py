"""What a base is recognised by, so that an adapter is never put on another one.

Hashed are the configuration (without the folder it was read from and the version that wrote it), the names, shapes and
dtypes of all parameters, and the bytes of eight of these, spread evenly from the first to the last in their order. A
base that differs in none of these, and yet in another tensor, is noticed when its posterior is read: the file has the
checksums of all tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from torchbayes.checksum import checksum, crc

_TENSORS = 8
_NOT_OF_BASE = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"})


def fingerprint(network: nn.Module) -> dict[str, Any]:
    """Return what identifies a network of Hugging Face, JSON-serialisable: see the module."""
    pretrained: Any = network.config
    config = {k: v for k, v in pretrained.to_dict().items() if k not in _NOT_OF_BASE}
    named = dict(network.named_parameters())
    layout = [f"{name} {list(each.shape)} {each.dtype}" for name, each in named.items()]
    names = [*named]
    places = sorted({round(k * (len(names) - 1) / (_TENSORS - 1)) for k in range(_TENSORS)})
    return {
        "architecture": type(network).__name__,
        "weights": sum(each.numel() for each in named.values()),
        "dtypes": sorted({str(each.dtype).removeprefix("torch.") for each in named.values()}),
        "config": crc(json.dumps(config, sort_keys=True, default=str).encode()),
        "layout": crc("\n".join(layout).encode()),
        "tensors": {names[k]: checksum(named[names[k]].detach().cpu()) for k in places},
    }


def described(recorded: Mapping[str, Any]) -> str:
    """Return a base in words."""
    return f"{recorded['architecture']} of {recorded['weights']:,} weights in {' and '.join(recorded['dtypes'])}"


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how a base differs from the one that was recorded, in clauses; none if it is the same."""
    if described(recorded) != described(now):
        return [f"it is {described(now)}"]
    if recorded["layout"] != now["layout"]:
        return ["names or shapes of its weights are others"]
    names = [name for name, text in recorded["tensors"].items() if now["tensors"].get(name) != text]
    if names:
        return [f"its `{names[0]}` has other numbers"]
    return [] if recorded["config"] == now["config"] else ["its configuration is another"]
