"""Load any saved module."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_kind
from torchbayes.model.description import check_layout, check_model, describe_model
from torchbayes.model.likelihoods.weighted import having_scales
from torchbayes.model.model import Model, having
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_tensors
from torchbayes.posteriors.modules.module import MODULES, PredictiveModule


@explained()
def load_module(path: str | Path, model: Model) -> PredictiveModule:
    """Read a module that `save` wrote.

    Args:
        path: the file.
        model: the model of the posterior of which it was made; only its network and likelihood are used, and a
            tuned noise scale is in the file.

    Returns:
        The module, on the model's device.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, holds no module, or has another layout or likelihood than the model.
    """
    check_kind(Model, "the `Model` that it was fitted with", model=model)
    path = full_path(path)
    tensors, header = read_tensors(path, model.network.device)
    if header.get("kind") not in MODULES:
        kinds = ", ".join(sorted(MODULES))
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a module; known are {kinds}. Read it by `load`.")
    check_layout(path, header["layout"], model)
    settings = header["settings"]
    if scales := tuple(settings["scales"]):
        model = having(model, likelihood=having_scales(model.likelihood, scales))
    check_model(path, {"model": {**describe_model(model), "likelihood": header["likelihood"]}}, model)
    kind, parts = MODULES[header["kind"]], defaultdict[str, dict[str, Tensor]](dict)
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    return kind(model, {part: parts[part] for part in kind.parts}, settings)
