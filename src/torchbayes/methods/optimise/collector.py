"""SWA and SWAG of the points that your own training loop visits: Lightning, Hugging Face, or plain PyTorch.

    collector = tb.SWAG(rank=20).collector(model)
    for epoch in range(epochs):
        ...                                     # any training of `net`
        collector.collect(net)
    posterior = collector.posterior(train)

What `fit` knows and a collector cannot is asked for: the training data, where statistics of batch norm or a learned
noise scale depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from torchbayes.checks import check_kind, check_memory, is_whole, optional, seen
from torchbayes.health.descent import Descended
from torchbayes.health.ending import judged
from torchbayes.methods.moments import Moments
from torchbayes.methods.optimise.learned import learned_at
from torchbayes.model.description import CONSTANTS, check_layout, check_model, describe_model, fingerprint
from torchbayes.model.model import PREFIX, Model
from torchbayes.model.network import Buffers
from torchbayes.model.sources.informed import informed_by
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import BUFFERS
from torchbayes.posteriors.problems import note
from torchbayes.posteriors.trained import Trained, Weights, named, weights_of

_Result = TypeVar("_Result", Point, Gaussian)

_MOMENTS = ("mean_MD", "squares_MD", "deviations_MKD")


@dataclass(frozen=True)
class _Last:
    """Where the members were when they were last collected."""

    weights_MD: Tensor
    buffers: Buffers


class Collector(Generic[_Result]):
    """Collects weights from any training loop, and makes the posterior of SWA or SWAG from them.

    Made by `SWA(...).collector(model)` and `SWAG(...).collector(model)`. It keeps the moments, not the points: 2 D
    numbers for each member, and `rank` · D for the deviations of SWAG.

    Attributes:
        model: the model of the network that is trained; it is not changed.
        method: SWA or SWAG.
    """

    def __init__(
        self,
        model: Model,
        method: Any,
        *,
        rank: int,
        least: int,
        resume: str | PathLike[str] | None = None,
    ) -> None:
        """Prepare for the first point.

        Args:
            model: network, likelihood and prior.
            method: SWA or SWAG, which makes the posterior.
            rank: K, deviations that are kept for each member.
            least: points that each member needs.
            resume: file that `save` wrote, to go on from; starts afresh if there is none yet.

        Raises:
            TypeError: if the model is not a Model.
            ValueError: if memory is too small for the deviations, or the file is damaged or of another model or
                method.
        """
        check_kind(Model, "a Model", model=model)
        optional(check_kind, (str, PathLike), "the path of a file", resume=resume)
        empty_MD = torch.zeros(1, model.layout.size, dtype=model.network.dtype, device=model.network.device)
        needed = (rank + 2) * method.members * empty_MD.nbytes
        check_memory(needed, "the moments of all members", model.network.device, members=method.members)
        self.model, self.method = model, method
        self._rank, self._least = rank, least
        self._moments = [Moments.empty(empty_MD, rank) for _ in range(method.members)]
        self._last = [Weights(empty_MD[0], dict(model.network.buffers), False) for _ in range(method.members)]
        if resume is not None and full_path(resume).exists():
            self.load(resume)

    @property
    def points(self) -> tuple[int, ...]:
        """Number of points collected for each member."""
        return tuple(each.snapshots for each in self._moments)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.method).__name__}, points={self.points})"

    @torch.inference_mode(False)  # otherwise the tensors that it keeps could not be changed outside of inference mode
    @torch.no_grad()
    def collect(self, trained: Trained | Sequence[Trained], *, member: int = 0) -> None:
        """Take the weights that a network has now. Nothing is written to it.

        Names may have the prefixes of wrappers (`module.`, `_orig_mod.`, an attribute of a LightningModule). What is
        not random must be as it was when the model was made. Learned likelihood parameters, such as
        `likelihood.log_scale`, are taken where a state dict has them.

        Args:
            trained: the network; its state dict; the path of a checkpoint, safetensors or written by torch.save (with
                the state dict at the top or under `state_dict`, `model_state_dict`, `model` or `module`); or a list of
                these, one point each, in this order.
            member: number of the member from 0; each member is a training run of its own.

        Raises:
            ValueError: if parameters are missing, have other shapes or are not finite, one that is not random has
                changed, or a file is damaged or holds no state dict. No point is taken then, not even of a list.
            FileNotFoundError: if there is no such file.
            TypeError: if it is none of these.
        """
        if not is_whole(member) or not 0 <= member < len(self._moments):
            raise ValueError(
                f"`member` must be a whole number from 0 to {len(self._moments) - 1}; got {seen(member)}. Set the "
                f"number of training runs by `members` of {type(self.method).__name__}."
            )
        points = named("trained", trained)
        moments, last = self._moments[member], self._last[member]
        earlier = [last_weights.learned for last_weights, count in zip(self._last, self.points, strict=True) if count]
        for number, (name, point) in enumerate(points):
            weights = weights_of(self.model, point, name)
            earlier.append(weights.learned)
            if len({*earlier}) > 1:
                names = ", ".join(f"`{PREFIX}{n}`" for n in self.model.likelihood.parameters())
                raise ValueError(
                    f"{names} must be given with every point or with none; got them with some. Leave them out."
                )
            if moments.snapshots and torch.equal(weights.weights_D, last.weights_D):
                note(f"the weights are those that were collected last, of member {member}. Is this what is trained?")
            # not in place at the first of a list, because the next may still fail
            moments = moments.collect(weights.weights_D.unsqueeze(0), donate=number > 0 or len(points) == 1)
            last = weights
        self._moments[member], self._last[member] = moments, last

    def posterior(self, data: Any = None) -> _Result:
        """Return the posterior of the points so far; more can be collected afterwards.

        With data, draws of the posterior can be recalibrated if there is batch norm, and the average is checked as
        `fit` checks it. Learned likelihood parameters that were not collected, because a network does not hold them,
        are set to the most probable ones for the data at each member's average: for Gaussian noise the root mean
        square of the residuals there. Their variance is that of Laplace's approximation, times the factor on the
        covariance.

        Args:
            data: the training data, as `fit` takes them; needed by networks with batch norm and likelihoods with
                learned parameters.

        Returns:
            The posterior, of the type that `fit` returns.

        Raises:
            ValueError: if a member has too few points, data are needed and not given, or they do not fit the model.
        """
        _check_points(self, self._least)
        end, moments = self._end(), self._moments
        if data is None:
            _check_needs(self.model, learned=self._learned)
            return self.method.averaged(self.model, moments, end.buffers)
        source = as_source(self.model, data, self.method.batch_size)
        faults = source.check(training=True)
        model = informed_by(self.model, source)
        if model.likelihood.parameters() and not self._learned:
            moments, end = _with_learned(model, moments, end, source=source)
        posterior = self.method.averaged(model, moments, end.buffers).calibrated(source.inputs)
        ending = Descended(weights_MD=end.weights_MD, buffers=end.buffers, averaged=True)
        return judged(posterior, ending, source, known=faults)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write what has been collected to a safetensors file, atomically.

        `collector(model, resume=path)` goes on from it.

        Args:
            path: where to write; folders are made.

        Returns:
            The path.
        """
        end, layout = self._end(), self.model.layout.shapes
        tensors = {n: torch.cat([getattr(each, n) for each in self._moments]) for n in _MOMENTS}
        tensors |= {"last_MD": end.weights_MD, **{BUFFERS + n: b for n, b in end.buffers.items()}}
        header = {
            "kind": "collector",
            "layout": {name: list(shape) for name, shape in layout.items()},
            "model": describe_model(self.model),
            CONSTANTS: fingerprint(self.model.network, without=self.model.network.buffers),
            "settings": self._settings,
            "points": self.points,
            "learned": self._learned,
        }
        return write_tensors(full_path(path), tensors, header)

    def load(self, path: str | PathLike[str]) -> None:
        """Go on from a file that `save` wrote, in the place of what has been collected.

        Args:
            path: where it is.

        Raises:
            ValueError: if it is damaged, not a collector's, or of another model or method; nothing is changed then.
            FileNotFoundError: if there is no such file.
        """
        path = full_path(path)
        tensors, header = read_tensors(path, self.model.network.device)
        if header.get("kind") != "collector":
            raise ValueError(f"{path} holds a {header.get('kind')!r}, not what a collector saved. Name another file.")
        check_layout(path, header["layout"], self.model)
        check_model(path, header, self.model)
        _check_settings(path, header["settings"], self._settings)
        parts = zip(*(tensors[name].clone().split(1) for name in _MOMENTS), header["points"], strict=True)
        self._moments = [Moments(mean, squares, deviations, count) for mean, squares, deviations, count in parts]
        buffers = {n.removeprefix(BUFFERS): t for n, t in tensors.items() if n.startswith(BUFFERS)}
        rows = enumerate(tensors["last_MD"])
        self._last = [Weights(w, {n: b[m] for n, b in buffers.items()}, header["learned"]) for m, w in rows]

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that must be the same when a file is read."""
        name, dtype = type(self.method).__name__, str(self.model.network.dtype)
        return {"method": name, "members": len(self._moments), "rank": self._rank, "dtype": dtype}

    @property
    def _learned(self) -> bool:
        """Whether the points hold learned likelihood parameters."""
        return any(last.learned for last in self._last)

    def _end(self) -> _Last:
        """Return where the members were when they were last collected."""
        names = self.model.network.buffers
        weights_MD = torch.stack([last.weights_D for last in self._last])
        return _Last(weights_MD, {n: torch.stack([last.buffers[n] for last in self._last]) for n in names})


def _check_settings(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError if a file was collected with other settings than those now."""
    differences = [f"`{name}` {saved[name]}, not {now[name]}" for name in now if saved[name] != now[name]]
    if differences:
        raise ValueError(f"{path} was collected with {', '.join(differences)}. Set it as it was, or name another file.")


def _check_points(collector: Collector[Any], least: int) -> None:
    """Raise ValueError if a member has too few points; note it if some have fewer than others."""
    points, name = collector.points, type(collector.method).__name__
    few = [m for m, count in enumerate(points) if count < least]
    if few:
        needed = "1 point" if least == 1 else f"{least} points, to have a spread"
        raise ValueError(
            f"{name} needs at least {needed}; member {few[0]} has {points[few[0]]}. Collect more of it"
            + (f", or set `members` of {name} to the number of training runs." if len(points) > 1 else ".")
        )
    if min(points) < max(points):
        fewer = ", ".join(f"member {m} has {count}" for m, count in enumerate(points) if count < max(points))
        note(f"members have different numbers of points, {max(points)} at most: {fewer}. All weigh the same.")


def _check_needs(model: Model, *, learned: bool) -> None:
    """Raise ValueError if training data are needed."""
    advice = "Pass the training data: `collector.posterior(data)`."
    if model.network.batch_norms:
        raise ValueError(
            f"`{model.network.batch_norms[0]}` is a batch norm whose statistics belong to the weights, and those "
            f"of the average are not those of any point. {advice}"
        )
    if model.likelihood.parameters() and not learned:
        names = ", ".join(f"`{name}`" for name in model.likelihood.parameters())
        raise ValueError(
            f"{names} of the likelihood is learned, and the collected networks do not hold it, so it has to be "
            f"estimated. {advice}"
        )


def _with_learned(
    model: Model, moments: Sequence[Moments], end: _Last, *, source: Source
) -> tuple[list[Moments], _Last]:
    """Return the moments and last weights with learned likelihood parameters, estimated at the averages.

    Raises ValueError if they cannot be estimated.
    """
    average = Point(model, torch.cat([each.mean_MD for each in moments]), buffers_M=end.buffers or None)
    value_MP, variance_MP = learned_at(average.calibrated(source.inputs), source)
    size, with_learned = model.network.layout.size, list[Moments]()
    for each, value_P, variance_P in zip(moments, value_MP, variance_MP, strict=True):
        mean_MD, squares_MD = each.mean_MD.clone(), each.squares_MD.clone()
        mean_MD[:, size:], squares_MD[:, size:] = value_P, each.snapshots * variance_P
        with_learned.append(replace(each, mean_MD=mean_MD, squares_MD=squares_MD))
    return with_learned, replace(end, weights_MD=torch.cat([end.weights_MD[:, :size], value_MP], 1))
