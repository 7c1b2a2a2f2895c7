"""The density of weights that are normal distributions instead of points: each layer uses or draws them.

Weights w = μ + σ ∘ ε are independent. For a linear or convolutional layer with inputs x, the distribution of its
outputs is known. Every example can then have noise of its own, so the gradient of a minibatch is less noisy (Kingma,
Salimans and Welling 2015):

    local      a = x μᵀ + √(x² (σ²)ᵀ) ∘ ζ,    ζ standard normal: the outputs' own distribution
    flipout    a = x μᵀ + s ∘ ((r ∘ x)(σ ∘ ε)ᵀ),    r, s = ±1 for each example (Wen et al. 2018)

`local` is exact where the weights serve one position of an example. Where they serve several (convolutions, tokens),
it draws these independently although they share weights. Each has the right distribution, but later sums over them
vary too little, so the objective is a different one. Signs of `flipout` are the same for all positions of an example,
and keep their covariance. With "auto", layers of one position are local, others flipped.

Every parameter that is not weight or bias of exactly one such layer is drawn once: tied weights, those of norms and
embeddings, and learned likelihood parameters. Layers are found by the functions that a network calls, not by the
classes of its modules, so layers of other libraries are found too. `nn.MultiheadAttention`, which hands its weights
to one function, is taken apart for self-attention; its weights for attention between two sequences are drawn. So are
all weights of a network that takes derivatives itself, as physics-informed ones do, because the noise cannot be
differentiated again. So are the weights of layers in which the rows have no axis of their own: those on a table that
all rows share, or with rows and positions in one axis. `uses.uses` finds that axis once for rows of one shape; if
weights are then used otherwise, all are drawn.
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
from torchbayes.native.noise import perturb, perturb_by
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, mix


class Gradients(NamedTuple):
    """The result of a pass for a step."""

    nll_M: Tensor  # mean negative log likelihood per observation, float64
    mean_MD: Tensor  # its gradient by μ
    scale_MD: Tensor  # its gradient by σ
    health_M: Tensor  # finite where both gradients are


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
    """Return the mean negative log likelihood per observation under weights N(μ, σ²), and its gradient.

    `batch` holds one minibatch per member, (M, B, ...). `buffers`, (M, ...), are changed in place in training mode.
    All random numbers follow from one seed per member and the number `step` of the pass.
    """
    ways, (place, batch) = taken(density, batch, estimator), _here(density, batch)
    gradients = torch.empty(2, *mean_MD.shape, dtype=mean_MD.dtype, device=mean_MD.device)
    into = tuple(gradients.unbind())
    pass_ = Pass(*ways, place, [Randomness(seed, step) for seed in seeds])
    kernel = kernel_for(density, mean_MD, batch, hows=pass_.hows)
    check_pass(density, rows=place.total, native=kernel is not None)
    if kernel is None:
        total_M = _one_by_one(density, (mean_MD, scale_MD), batch, buffers=buffers, about=pass_, into=into)
        health_M = torch.linalg.vector_norm(gradients, dim=-1).sum(0)
    else:
        total_M, health_M = by_kernel(kernel, density, (mean_MD, scale_MD), batch=batch, about=pass_, into=into)
    density.ranks.sum_(gradients, total_M, health_M)
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
    """Return the result of S passes, numbered `steps`, whose rows are combined by `torchbayes.density.backend.Mixing`.

    Each row has its own noise, which is valid because the objective is an expectation for each row. The graphs of all
    passes are held at once. `parameters` are μ and σ, `power` is α; the other arguments are as for `by_layers`.
    """
    ways, (place, batch) = taken(density, batch, estimator), _here(density, batch)
    check_pass(density, rows=place.total, native=False, mixing=Mixing(len(steps), power))
    passes = [Pass(*ways, place, [Randomness(seed, step) for seed in seeds]) for step in steps]
    total_M, gradients = _mixed(density, parameters, batch, buffers=buffers, passes=passes, power=power)
    health_M = torch.linalg.vector_norm(gradients, dim=-1).sum(0)
    density.ranks.sum_(gradients, total_M, health_M)
    return Gradients(total_M * (-1 / place.total), gradients[0], gradients[1], health_M)


def _here(density: LogDensity, batch: Batch) -> tuple[Place, Batch]:
    """Return which rows of a minibatch this process takes, and these rows."""
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
            rows = batch.map(lambda t, m=m: t[m])
            rows = rows._replace(inputs=model.network.arrange(rows.inputs))
            own_buffers = {name: buffer[m] for name, buffer in buffers.items()}
            leaves = tuple(leaves_of(model.layout, part_MD[m]) for part_MD in parameters)
            views = [model.layout.split(part_MD[m]) for part_MD in into]
            log_prob_B = _log_prob(density, rows, leaves, kept=own_buffers, about=about, random=random, into=views)
            total = log_prob_B.sum(dtype=torch.float64)
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
    """Return sums over rows of the log likelihoods of S passes combined, (M,), and −1/B of their gradients, (2, M, D).

    Every pass has leaves, and memory for their gradients, of its own, because layers write there directly.
    """
    model, totals, gradients = density.model, [], parameters[0].new_zeros(2, *parameters[0].shape)
    mixing, place = Mixing(len(passes), power), passes[0].place
    with differentiable(), model.network.training():
        for m in range(len(parameters[0])):
            member_rows = batch.map(lambda t, m=m: t[m])
            member_rows = member_rows._replace(inputs=model.network.arrange(member_rows.inputs))
            held = {name: buffer[m] for name, buffer in buffers.items()}
            into_SD = gradients.new_empty(len(passes), *gradients.shape[::2])
            leaves, views, rows = [], [], []
            for about, own in zip(passes, into_SD, strict=True):
                leaves.append(tuple(leaves_of(model.layout, part_MD[m]) for part_MD in parameters))
                views.append([model.layout.split(part_D) for part_D in own])
                how: dict[str, Any] = {"kept": held, "about": about, "random": about.random[m], "into": views[-1]}
                rows.append(_log_prob(density, member_rows, leaves[-1], **how, single=True))
            counts_B = apart(model.likelihood, member_rows.targets)[2]
            total = mixed(torch.stack(rows).unsqueeze(0), mixing, counts_MB=counts_B).squeeze(0)
            _write(
                total * (-1 / place.total),
                [part for pair in leaves for part in pair],
                [view for pair in views for view in pair],
            )
            gradients[:, m] = into_SD.sum(0)
            totals.append(total.detach())
    return torch.stack(totals), gradients


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

    Where `single`, each row counts once, whatever its weight. If the network uses a weight in another way than when
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
        elif gradient.data_ptr() != view.data_ptr():  # otherwise the layer has written it there
            view.copy_(gradient)


class _UsedOtherwiseError(Exception):
    """The network uses a weight in another way than when it was watched."""


@dataclass
class _Places:
    """The random tensors of layers, by the identity of the tensor that the network holds instead."""

    mean: dict[int, Tensor] = field(default_factory=dict)
    scale: dict[int, Tensor] = field(default_factory=dict)
    how: dict[int, How] = field(default_factory=dict)
    use: dict[int, Use] = field(default_factory=dict)
    into: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


class _Layers(TorchFunctionMode):
    """While active, layers take their weights as distributions.

    `held` are the network's parameters by name: means for layers to take, draws of all others.
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
        """Return the result of a call, with noise if it is that of a layer with random weights."""
        attention = taken_apart(self, func, args, kwargs=kwargs or {})
        if attention is not None:
            return attention
        call = layer_call(func, args, kwargs or {})
        if call is None or not (self._is_random(call.weight) or self._is_random(call.bias)):
            is_used = any(self._is_random(parameter) for parameter in _flat(args, kwargs or {})) and not describes(func)
            if is_used or (func is torch.autograd.grad and self._places.taken):
                raise _UsedOtherwiseError
            return func(*args, **(kwargs or {}))
        self._calls += 1
        for parameter in filter(self._is_random, (call.weight, call.bias)):
            if id(parameter) in self._places.taken:  # two calls of a layer must share one draw of its weights
                raise _UsedOtherwiseError
            self._places.taken.add(id(parameter))
        key = id(call.weight if self._is_random(call.weight) else call.bias)
        (_, ndim, axis, _), inputs = self._places.use[key], call.inputs
        if inputs.ndim != ndim or inputs.shape[axis] != self._place.rows:
            raise _UsedOtherwiseError
        by = self._local if self._places.how[key] == "local" else self._flipped
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
        """Add noise to outputs, and replace the variances by its ratio to their standard deviations."""
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
        full_shape = self._place.whole(like)
        shape = [size if at in {0, axis % like.ndim} else 1 for at, size in enumerate(full_shape)]
        return self._random.signs(self._calls, shape, like, outputs=bool(number))[self._place.own]


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments of a function one by one, also those in lists."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, list | tuple):
            yield from cast("Sequence[Any]", argument)
        else:
            yield argument


def _plain(call: Call) -> bool:
    """Return whether inputs, weight and bias have one dtype, which autocast does not change."""
    same = call.inputs.dtype == call.weight.dtype and (call.bias is None or call.bias.dtype == call.weight.dtype)
    kind = call.inputs.device.type
    return same and not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind))
