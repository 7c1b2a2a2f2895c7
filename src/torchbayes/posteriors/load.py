"""Load any saved posterior."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.files import read_tensors
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import BUFFERS, Calibration, Posterior
from torchbayes.posteriors.store import DrawFile

KINDS: dict[str, Any] = {c.kind: c for c in (Point, Gaussian, Draws, LaplacePosterior)}


def load(path: str | Path, model: Model, *, calibration: Calibration | None = None) -> Posterior:
    """Read a posterior that `save` wrote and attach it to its model.

    Args:
        path: the file.
        model: the model it was fitted with: its layout must be the file's.
        calibration: makes a pass over training inputs; needed by networks with batch norm.

    Returns:
        The posterior, on the model's device.

    Raises:
        ValueError: if the file is damaged, of an unknown kind, or its layout differs from the model's.
    """
    tensors, header = read_tensors(path, model.network.device)
    if header.get("kind") not in KINDS:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a posterior; known are {', '.join(KINDS)}.")
    buffers = {n.removeprefix(BUFFERS): t for n, t in tensors.items() if n.startswith(BUFFERS)}
    try:
        said = model.layout.differences(Layout({n: tuple(shape) for n, shape in header["layout"].items()}))
        if said:
            more = f" and {len(said) - 5} more" if len(said) > 5 else ""
            raise ValueError(
                f"{path} does not fit this model: {'; '.join(said[:5])}{more}. Build the model it was made with."
            )
        if header["settings"].get("beside"):  # a sampler's draws stay in the file they were streamed to
            tensors["weights_MSD"] = DrawFile.open(Path(path).parent).read().to(model.network.device)
        posterior = KINDS[header["kind"]].restore(model, tensors, header["settings"])
        about = {"statistics_known": header["statistics_known"], "problems": tuple(header.get("problems", ()))}
        saved = next(iter(posterior.tensors().values())).dtype
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: its parts do not fit ({error}). Restore it or fit again.") from error
    if saved != model.network.dtype:
        raise ValueError(f"{path} holds {saved} weights; the model's are {model.network.dtype}. Convert the network.")
    return dataclasses.replace(posterior, buffers_M=buffers or None, calibration=calibration, **about)
