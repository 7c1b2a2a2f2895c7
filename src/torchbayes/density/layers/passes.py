r"""The density of weights that are given as normal distributions instead of points: each layer takes or draws them.

Weights w = μ + σ ∘ ε are independent. A linear or convolutional layer with the inputs x can say what that means for its
outputs, and every example then has noise of its own, so that the gradient of a minibatch is less noisy (Kingma,
Salimans and Welling 2015):

    local      a = x μᵀ + √(x² (σ²)ᵀ) ∘ ζ,    ζ standard normal: the outputs' own distribution
    flipout    a = x μᵀ + s ∘ ((r ∘ x)(σ ∘ ε)ᵀ),    r, s = ±1 for each example (Wen et al. 2018)

`local` is exact where the weights serve one position of an example. Where they serve several (convolutions, tokens), it
draws these independently, although they share their weights: each has the right distribution, but what is summed over
them later varies too little, so the objective itself is another one. Signs of `flipout` are the same for all positions
of an example, and keep their covariance. With "auto" layers of one position are local, others flipped.

All that is not the weight or bias of exactly one such layer is drawn once: tied weights, those of norms and embeddings,
and learned likelihood parameters. Layers are found by the functions that a network calls, not by the classes of its
modules, so that those of other libraries count too. `nn.MultiheadAttention`, which hands its weights to one function as
a whole, is taken apart for self-attention; its weights for attention between two sequences are drawn. So are all
weights of a network that takes derivatives itself, as of physics: noise is no function to differentiate again. So are,
last, the weights of layers in which the rows have no axis of their own: those on a table that all rows share, or on
rows and positions in one axis. `uses.uses` finds that axis once for rows of one shape; other uses draw all weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchbayes.density.autograd import leaves_of, log_prob, mixed
from torchbayes.density.backend import Mixing
from torchbayes.density.density import LogDensity, seeds_here
from torchbayes.density.layers import noisy
from torchbayes.density.layers.attention import taken_apart
from torchbayes.density.layers.kernel import by_kernel, check_pass, kernel_for
from torchbayes.density.layers.randomness import Pass, Place, Randomness
from torchbayes.density.layers.uses import Call, Estimator, How, Use, describes, layer_call, taken
from torchbayes.density.loop import drawing
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.native.perturb import perturb, perturb_by
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, mix


class Gradients(NamedTuple):
    """What a step knows after a pass.

    Attributes:
        nll_M: mean negative log likelihood per observation, float64.
        mean_MD: its gradient by μ.
        scale_MD: its gradient by σ.
        health_M: finite where both are.
    """

    nll_M: Tensor
    mean_MD: Tensor
    scale_MD: Tensor
    health_M: Tensor


def by_layers(
    density: LogDensity,
    mean_MD: Tensor,
    scale_MD: Tensor,
    *,
    batch: Batch,
    estimator: Estimator,
    buffers: Buffers,
    seeds: Sequence[int],
    step: int,
) -> Gradients:
    """Return the mean negative log likelihood per observation under random weights, and its gradient.

    Args:
        density: the density: its model and its ranks.
        mean_MD: μ.
        scale_MD: σ.
        batch: one minibatch per member, (M, B, ...).
        estimator: how layers take their weights.
        buffers: the network's buffers, (M, ...), changed in place in training mode.
        seeds: one per member, for all that is random.
        step: number of the pass; another one has other noise.
    """
    ways, (place, batch) = taken(density, batch, estimator), _here(density, batch)
    found = torch.empty(2, *mean_MD.shape, dtype=mean_MD.dtype, device=mean_MD.device)
    into = tuple(found.unbind())
    about = Pass(*ways, place, [Randomness(seed, step) for seed in seeds])
    kernel = kernel_for(density, mean_MD, batch, hows=about.hows)
    check_pass(density, rows=place.total, native=kernel is not None)
    if kernel is None:
        total_M = _one_by_one(density, (mean_MD, scale_MD), batch, buffers=buffers, about=about, into=into)
        health_M = torch.linalg.vector_norm(found, dim=-1).sum(0)
    else:
        total_M, health_M = by_kernel(kernel, density, (mean_MD, scale_MD), batch=batch, about=about, into=into)
    density.ranks.sum_(found, total_M, health_M)
    return Gradients(total_M * (-1 / place.total), into[0], into[1], health_M)


def mixed_by_layers(
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    *,
    batch: Batch,
    estimator: Estimator,
    buffers: Buffers,
    seeds: Sequence[int],
    steps: Sequence[int],
    power: float,
) -> Gradients:
    """Return what S passes together say, whose rows are combined as of `torchbayes.density.backend.Mixing`.

    Noise of a row is its own, which the expectation of each row allows. The graphs of all passes are held at once.

    Args:
        density: the density: its model and its ranks.
        parameters: μ and σ, each (M, D).
        batch: as of `by_layers`.
        estimator: as of `by_layers`.
        buffers: as of `by_layers`.
        seeds: as of `by_layers`.
        steps: numbers of the passes, S.
        power: α.
    """
    ways, (place, batch) = taken(density, batch, estimator), _here(density, batch)
    check_pass(density, rows=place.total, native=False, mixing=Mixing(len(steps), power))
    passes = [Pass(*ways, place, [Randomness(seed, step) for seed in seeds]) for step in steps]
    total_M, found = _mixed(density, parameters, batch, buffers=buffers, passes=passes, power=power)
    health_M = torch.linalg.vector_norm(found, dim=-1).sum(0)
    density.ranks.sum_(found, total_M, health_M)
    return Gradients(total_M * (-1 / place.total), found[0], found[1], health_M)


def _here(density: LogDensity, batch: Batch) -> tuple[Place, Batch]:
    """Return which rows of a minibatch this process takes, and these."""
    rows = batch_size(batch.inputs, 1)
    if density.ranks.data <= 1:
        return Place(slice(0, rows), rows), batch
    place = Place(density.ranks.rows(rows), rows)
    return place, batch.map(lambda t: t[:, place.own])


def _one_by_one(
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    batch: Batch,
    *,
    buffers: Buffers,
    about: Pass,
    into: tuple[Tensor, ...],
) -> Tensor:
    """Return the sum of the log likelihoods of rows, (M,), and write −1/B of its gradient by means and scales."""
    model, totals = density.model, []
    with differentiable(), model.network.training():
        for m, random in enumerate(about.random):
            alone = batch.map(lambda t, m=m: t[m])
            alone = alone._replace(inputs=model.network.arrange(alone.inputs))
            kept = {name: buffer[m] for name, buffer in buffers.items()}
            leaves = tuple(leaves_of(model.layout, part_MD[m]) for part_MD in parameters)
            views = [model.layout.split(part_MD[m]) for part_MD in into]
            each = _log_prob(density, alone, leaves, kept=kept, about=about, random=random, into=views)
            total = each.sum(dtype=torch.float64)
            _write(total * (-1 / about.place.total), leaves, views)
            totals.append(total.detach())
    return torch.stack(totals)


def _mixed(
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    batch: Batch,
    *,
    buffers: Buffers,
    passes: Sequence[Pass],
    power: float,
) -> tuple[Tensor, Tensor]:
    """Return the sum over rows of the log likelihoods of S passes combined, (M,), and −1/B of its gradients, (2, M, D).

    Every pass has leaves of its own, and memory for their gradients, as layers write there by themselves.
    """
    model, totals, found = density.model, [], parameters[0].new_zeros(2, *parameters[0].shape)
    mixing, place = Mixing(len(passes), power), passes[0].place
    with differentiable(), model.network.training():
        for m in range(len(parameters[0])):
            alone = batch.map(lambda t, m=m: t[m])
            alone = alone._replace(inputs=model.network.arrange(alone.inputs))
            kept = {name: buffer[m] for name, buffer in buffers.items()}
            into_SD = found.new_empty(len(passes), *found.shape[::2])
            leaves, views, rows = [], [], []
            for about, own in zip(passes, into_SD, strict=True):
                leaves.append(tuple(leaves_of(model.layout, part_MD[m]) for part_MD in parameters))
                views.append([model.layout.split(part_D) for part_D in own])
                how: dict[str, Any] = {"kept": kept, "about": about, "random": about.random[m], "into": views[-1]}
                rows.append(_log_prob(density, alone, leaves[-1], **how, single=True))
            counts_B = apart(model.likelihood, alone.targets)[2]
            total = mixed(torch.stack(rows).unsqueeze(0), mixing, counts_MB=counts_B).squeeze(0)
            _write(
                total * (-1 / place.total),
                [part for pair in leaves for part in pair],
                [view for pair in views for view in pair],
            )
            found[:, m] = into_SD.sum(0)
            totals.append(total.detach())
    return torch.stack(totals), found


def _log_prob(
    density: LogDensity,
    rows: Batch,
    leaves: tuple[Mapping[str, Tensor], ...],
    *,
    kept: Buffers,
    about: Pass,
    random: Randomness,
    into: Sequence[Mapping[str, Tensor]],
    single: bool = False,
) -> Tensor:
    """Return the log likelihood of each row under one member, whose buffers are changed in place.

    Where `single`, each row counts once, whatever its weight. Where the network uses a weight in another way than when
    it was watched, all weights are drawn.
    """
    memory = {name: (into[0][name], into[1][name]) for name in leaves[0]}
    before = {name: buffer.clone() for name, buffer in kept.items()}
    (masks,) = seeds_here(density.ranks, [mix(Purpose.LAYER_MASKS, random.seed, random.step)])

    def run(hows: Mapping[str, How]) -> Tensor:
        layers = _Layers(leaves, about._replace(hows=hows), into=memory, random=random)
        with drawing(density.model.network, masks), layers:
            if single:
                return log_prob(density.model, layers.held, rows, buffers=kept or None)
            return density.model.log_likelihood(layers.held, rows, kept or None)

    try:
        return run(about.hows)
    except _UsedOtherwiseError:
        for name, buffer in before.items():
            kept[name].copy_(buffer)
        return run(dict.fromkeys(about.hows, "drawn"))


def _write(total: Tensor, leaves: Sequence[Mapping[str, Tensor]], into: Sequence[Mapping[str, Tensor]]) -> None:
    """Differentiate a total into named views of the gradients by means and scales."""
    flat = [leaf for part in leaves for leaf in part.values()]
    views = [part[name] for part, named in zip(into, leaves, strict=True) for name in named]
    for view, gradient in zip(views, torch.autograd.grad(total, flat, allow_unused=True), strict=True):
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr():  # else it was made there
            view.copy_(gradient)


class _UsedOtherwiseError(Exception):
    """The network uses a weight in another way than when it was watched."""


@dataclass
class _Places:
    """The random tensors of layers, by the identity of what the network holds in their place."""

    mean: dict[int, Tensor] = field(default_factory=dict)
    scale: dict[int, Tensor] = field(default_factory=dict)
    how: dict[int, How] = field(default_factory=dict)
    use: dict[int, Use] = field(default_factory=dict)
    into: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


class _Layers(TorchFunctionMode):
    """While active, layers take their weights as distributions.

    Attributes:
        held: by name what the network holds: means for layers to take, draws of all else.
    """

    def __init__(
        self,
        leaves: tuple[Mapping[str, Tensor], ...],
        about: Pass,
        *,
        into: Mapping[str, tuple[Tensor, Tensor]],
        random: Randomness,
    ) -> None:
        super().__init__()
        self._place, self._random, self._calls = about.place, random, 0
        self._places, self.held = _Places(), dict[str, Tensor]()
        means, scales = leaves
        for number, (name, mean) in enumerate(means.items()):
            if about.hows[name] == "drawn":
                self.held[name] = torch.addcmul(mean, scales[name], random.drawn(number, mean))
                continue
            self.held[name] = mean
            self._places.mean[id(mean)], self._places.scale[id(mean)] = mean, scales[name]
            self._places.how[id(mean)], self._places.use[id(mean)] = about.hows[name], about.uses[name]
            self._places.into[id(mean)] = into[name]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the call gives, with noise where it is that of a layer with random weights.

        Raises:
            _UsedOtherwiseError: if the network uses a weight in another way than when it was watched.
        """
        attention = taken_apart(self, func, args, kwargs=kwargs or {})
        if attention is not None:
            return attention
        call = layer_call(func, args, kwargs or {})
        if call is None or not (self._is_random(call.weight) or self._is_random(call.bias)):
            used = any(self._is_random(given) for given in _flat(args, kwargs or {})) and not describes(func)
            if used or (func is torch.autograd.grad and self._places.taken):
                raise _UsedOtherwiseError
            return func(*args, **(kwargs or {}))
        self._calls += 1
        for given in filter(self._is_random, (call.weight, call.bias)):
            if id(given) in self._places.taken:  # two calls of a layer have one draw of its weights
                raise _UsedOtherwiseError
            self._places.taken.add(id(given))
        of = id(call.weight if self._is_random(call.weight) else call.bias)
        (_, ndim, axis, _), inputs = self._places.use[of], call.inputs
        if inputs.ndim != ndim or inputs.shape[axis] != self._place.rows:
            raise _UsedOtherwiseError
        by = self._local if self._places.how[of] == "local" else self._flipped
        if axis == 0:
            return by(func, call)
        return by(func, call._replace(inputs=inputs.movedim(axis, 0))).movedim(0, axis)

    def _is_random(self, tensor: Any) -> bool:
        return id(tensor) in self._places.mean

    def _scale(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self._places.scale.get(id(tensor))

    def _local(self, func: Callable[..., Tensor], call: Call) -> Tensor:
        """Return outputs drawn from their own distribution."""
        weight, bias = self._scale(call.weight), self._scale(call.bias)
        if call.linear and weight is not None and _plain(call):
            into = self._places.into[id(call.weight)]
            return noisy.local(call.inputs, (call.weight, call.bias), (weight, bias), perturb=self._perturb, into=into)
        mean = func(call.inputs, call.weight, call.bias, *call.rest, **call.named)
        bias = None if bias is None else bias.square()
        weight = torch.zeros_like(call.weight) if weight is None else weight.square()
        variance = func(call.inputs.square(), weight, bias, *call.rest, **call.named)
        return noisy.spread(mean, variance, self._perturb)

    def _perturb(self, mean: Tensor, variance: Tensor) -> None:
        """Add noise to outputs, and put its ratio to their standard deviations in the place of the variances."""
        if self._place.total == len(mean):
            perturb(mean, variance, seed=self._random.seed, stream=self._random.outputs(self._calls))
        else:
            noise = self._random.noise_of(self._calls, mean, self._place.whole(mean))[self._place.own]
            perturb_by(mean, variance, noise)

    def _flipped(self, func: Callable[..., Tensor], call: Call) -> Tensor:
        """Return outputs under one draw of the weights, whose deviation has signs of its own for each example."""
        weight, bias = self._scale(call.weight), self._scale(call.bias)
        noise, bias_noise = (
            None if scale is None else self._random.change(self._calls, scale, bias=is_bias)
            for is_bias, scale in ((False, weight), (True, bias))
        )
        if call.linear and _plain(call) and weight is not None and noise is not None:
            into = self._places.into[id(call.weight)]
            after = call.inputs.new_empty(()).expand(*call.inputs.shape[:-1], len(call.weight))
            flips = noisy.Flips(noise, bias_noise, self._signs(call.inputs, -1, 0), self._signs(after, -1, 1))
            return noisy.flipped(call.inputs, (call.weight, call.bias), (weight, bias), flips=flips, into=into)
        mean = func(call.inputs, call.weight, call.bias, *call.rest, **call.named)
        change = torch.zeros_like(call.weight) if weight is None or noise is None else weight * noise
        bias_change = None if bias is None or bias_noise is None else bias * bias_noise
        axis = -1 if call.linear else 1
        before, after = (self._signs(tensor, axis, n) for n, tensor in enumerate((call.inputs, mean)))
        return mean + after * func(call.inputs * before, change, bias_change, *call.rest, **call.named)

    def _signs(self, like: Tensor, axis: int, number: int) -> Tensor:
        """Return ±1 for each example and channel, the same at all its positions."""
        whole = self._place.whole(like)
        shape = [size if at in {0, axis % like.ndim} else 1 for at, size in enumerate(whole)]
        return self._random.signs(self._calls, shape, like, outputs=bool(number))[self._place.own]


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a function is given, one by one, also from lists of tensors."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, list | tuple):
            yield from cast("Sequence[Any]", given)
        else:
            yield given


def _plain(call: Call) -> bool:
    """Return whether a product is of tensors of one dtype, and stays so."""
    same = call.inputs.dtype == call.weight.dtype and (call.bias is None or call.bias.dtype == call.weight.dtype)
    kind = call.inputs.device.type
    return same and not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind))
