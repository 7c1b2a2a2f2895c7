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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchbayes.density.autograd import Chunk, by_chunks, leaves_of, log_prob, mixed
from torchbayes.density.backend import Mixing
from torchbayes.density.density import LogDensity, seeds_here
from torchbayes.density.layers import noisy
from torchbayes.density.layers.kernel import by_kernel, check_pass, kernel_for
from torchbayes.density.layers.randomness import Pass, Place, Randomness
from torchbayes.density.layers.uses import Call, Estimator, How, Use, describes, layer_call, taken, taken_apart
from torchbayes.density.loop import drawing
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.model.precision import lowered
from torchbayes.native.noise import perturb, perturb_by
from torchbayes.native.process import differentiable, outside_autocast
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
    parameters, pass_ = (mean_MD, scale_MD), Pass(*ways, place, [Randomness(seed, step) for seed in seeds])
    kernel = kernel_for(density, mean_MD, batch, hows=pass_.hows)
    check_pass(density, rows=place.total, native=kernel is not None)
    if kernel is None:
        total_M = _in_chunks(density, parameters, batch, buffers=buffers, passes=[pass_], into=gradients)
        return _summed(density, place, total_M, gradients)
    into = tuple(gradients.unbind())
    total_M, health_M = by_kernel(kernel, density, parameters, batch=batch, pass_=pass_, into=into)
    return _summed(density, place, total_M, gradients, health_M)


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
    passes over a chunk of rows are held at once. `parameters` are μ and σ, `power` is α; the other arguments are as for
    `by_layers`.
    """
    ways, (place, batch) = taken(density, batch, estimator), _here(density, batch)
    check_pass(density, rows=place.total, native=False, mixing=Mixing(len(steps), power))
    passes = [Pass(*ways, place, [Randomness(seed, step) for seed in seeds]) for step in steps]
    gradients = parameters[0].new_zeros(2, *parameters[0].shape)
    total_M = _in_chunks(density, parameters, batch, buffers=buffers, passes=passes, into=gradients, power=power)
    return _summed(density, place, total_M, gradients)


def _summed(
    density: LogDensity, place: Place, total_M: Tensor, gradients: Tensor, health_M: Tensor | None = None
) -> Gradients:
    """Return the result over the rows of all processes."""
    health_M = torch.linalg.vector_norm(gradients, dim=-1).sum(0) if health_M is None else health_M
    density.ranks.sum_(gradients, total_M, health_M)
    return Gradients(total_M * (-1 / place.total), gradients[0], gradients[1], health_M)


def _here(density: LogDensity, batch: Batch) -> tuple[Place, Batch]:
    """Return which rows of a minibatch this process takes, and these rows."""
    rows = batch_size(batch.inputs, 1)
    if density.ranks.data <= 1:
        return Place(slice(0, rows), rows), batch
    place = Place(density.ranks.rows(rows), rows)
    return place, batch.map(lambda t: t[:, place.local_rows])


def _in_chunks(
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    batch: Batch,
    *,
    buffers: Buffers,
    passes: Sequence[Pass],
    into: Tensor,
    power: float | None = None,
) -> Tensor:
    """Return sums over rows of log likelihoods, (M,), and write −1/B of their gradients by means and scales, (2, M, D).

    They are those of a single pass, or with `power` of S passes combined.
    """
    local_rows, total = passes[0].place

    def of(chunk: Chunk) -> Tensor:
        first = local_rows.start + chunk.start
        place = Place(slice(first, first + batch_size(chunk.rows.inputs, 1)), total)
        chunk_passes = [pass_._replace(place=place) for pass_ in passes]
        added = torch.empty_like(into) if chunk.adds else into  # layers write to the memory they are given
        total_M = _by_autograd(density, parameters, chunk, passes=chunk_passes, into=added, power=power)
        if chunk.scale != 1:
            added.mul_(1 / chunk.scale)
        if chunk.adds:
            into.add_(added)
        return total_M

    with differentiable(), density.model.network.training(), lowered():
        return by_chunks(
            batch,
            of,
            size=density.model.chunk_size,
            axis=1,
            gradient=into,
            factor=1 / total,
            scaled=density.model.network.precision.is_half,
            buffers=buffers,
        )


def _by_autograd(
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    chunk: Chunk,
    *,
    passes: Sequence[Pass],
    into: Tensor,
    power: float | None = None,
) -> Tensor:
    """Return and write for the rows of a chunk what `_in_chunks` does, with the gradient times its scale.

    Where passes are combined, each has leaves, and memory for their gradients, of its own, because layers write there
    directly.
    """
    model, place, totals, batch = density.model, passes[0].place, [], chunk.rows
    for m in range(len(parameters[0])):
        rows = batch.map(lambda t, m=m: t[m])
        rows = rows._replace(inputs=model.network.arrange(rows.inputs))
        kept = {name: buffer[m] for name, buffer in (chunk.buffers or {}).items()}
        into_S2D = into[:, m].unsqueeze(0) if power is None else into.new_empty(len(passes), *into.shape[::2])
        leaves, views, log_probs = [], [], []
        for pass_, into_2D in zip(passes, into_S2D, strict=True):
            pass_leaves = tuple(leaves_of(model.layout, part_MD[m]) for part_MD in parameters)
            pass_views = [model.layout.split(part_D) for part_D in into_2D]
            run = _Run(pass_, pass_.random[m], pass_leaves, pass_views)
            log_probs.append(_log_prob(density, rows, run, kept=kept, single=power is not None, chunk=chunk))
            leaves += pass_leaves
            views += pass_views
        if power is None:
            total = log_probs[0].sum(dtype=torch.float64)
        else:
            counts_B = apart(model.likelihood, rows.targets)[2]
            mixing = Mixing(len(passes), power)
            total = mixed(torch.stack(log_probs).unsqueeze(0), mixing, counts_MB=counts_B).squeeze(0)
        _write(total * (-chunk.scale / place.total), leaves, views)
        if power is not None:
            into[:, m] = into_S2D.sum(0)
        totals.append(total.detach())
    return torch.stack(totals)


class _Run(NamedTuple):
    """A pass of one member."""

    pass_: Pass
    random: Randomness
    leaves: tuple[Mapping[str, Tensor], ...]  # means and scales by name
    into: Sequence[Mapping[str, Tensor]]  # memory for their gradients


def _log_prob(density: LogDensity, rows: Batch, member: _Run, *, kept: Buffers, single: bool, chunk: Chunk) -> Tensor:
    """Return the log likelihood of each row under one member, whose buffers are changed in place.

    Where `single`, each row counts once, whatever its weight. If the network uses a weight in another way than when
    it was watched, all weights are drawn.
    """
    before = {name: buffer.clone() for name, buffer in kept.items()}
    (masks,) = chunk.seeds(seeds_here(density.ranks, [mix(Purpose.LAYER_MASKS, *member.random)]))

    def run(hows: Mapping[str, How]) -> Tensor:
        layers = _Layers(member, hows, low=density.model.autocast is not None)
        with drawing(density.model.network, masks), layers:
            if single:
                return log_prob(density.model, layers.held, rows, buffers=kept or None)
            return density.model.log_likelihood(layers.held, rows, kept or None)

    try:
        return run(member.pass_.hows)
    except _UsedOtherwiseError:
        for name, buffer in before.items():
            kept[name].copy_(buffer)
        return run(dict.fromkeys(member.pass_.hows, "drawn"))


def _write(total: Tensor, leaves: Sequence[Mapping[str, Tensor]], into: Sequence[Mapping[str, Tensor]]) -> None:
    """Differentiate a total into named views of the gradients by means and scales."""
    flat = [leaf for group in leaves for leaf in group.values()]
    views = [group[name] for group, named in zip(into, leaves, strict=True) for name in named]
    for view, gradient in zip(views, torch.autograd.grad(total, flat, allow_unused=True), strict=True):
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr():  # otherwise the layer has written it there
            view.copy_(gradient)


class _UsedOtherwiseError(Exception):
    """The network uses a weight in another way than when it was watched."""


class _Held(NamedTuple):
    """A random tensor of a layer, for which the network holds its means."""

    scale: Tensor
    how: How
    use: Use
    into: tuple[Tensor, Tensor]  # memory for the gradients by means and scales


class _Layers(TorchFunctionMode):
    """While active, layers take their weights as distributions.

    `held` are the network's parameters by name: means for layers to take, draws of all others.
    """

    def __init__(self, member: _Run, hows: Mapping[str, How], *, low: bool) -> None:
        super().__init__()
        self._low = low  # whether the network runs under autocast
        self._place, self._random, self._calls = member.pass_.place, member.random, 0
        self.held = dict[str, Tensor]()
        self._tensors, self._taken = dict[int, _Held](), set[int]()  # by the identity of the means
        means, scales = member.leaves
        for number, (name, mean) in enumerate(means.items()):
            if hows[name] == "drawn":
                self.held[name] = torch.addcmul(mean, scales[name], member.random.drawn(number, mean))
                continue
            into = member.into[0][name], member.into[1][name]
            self.held[name] = mean
            self._tensors[id(mean)] = _Held(scales[name], hows[name], member.pass_.uses[name], into)

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
            if is_used or (func is torch.autograd.grad and self._taken):
                raise _UsedOtherwiseError
            return func(*args, **(kwargs or {}))
        self._calls += 1
        for parameter in filter(self._is_random, (call.weight, call.bias)):
            if id(parameter) in self._taken:  # two calls of a layer must share one draw of its weights
                raise _UsedOtherwiseError
            self._taken.add(id(parameter))
        held, inputs = self._tensors[id(call.weight if self._is_random(call.weight) else call.bias)], call.inputs
        _, ndim, axis, _ = held.use
        if inputs.ndim != ndim or inputs.shape[axis] != self._place.rows:
            raise _UsedOtherwiseError
        by = self._local if held.how == "local" else self._flipped
        call = call if axis == 0 else call._replace(inputs=inputs.movedim(axis, 0))
        if self._low:  # variances σ² have no room in 16 bits
            with outside_autocast():
                outputs = by(func, call._replace(inputs=call.inputs.to(call.weight.dtype)))
        else:
            outputs = by(func, call)
        return outputs if axis == 0 else outputs.movedim(0, axis)

    def _is_random(self, tensor: Any) -> bool:
        return id(tensor) in self._tensors

    def _scale(self, tensor: Tensor | None) -> Tensor | None:
        return self._tensors[id(tensor)].scale if self._is_random(tensor) else None

    def _local(self, func: Callable[..., Tensor], call: Call) -> Tensor:
        """Return outputs drawn from their own distribution."""
        weight, bias = self._scale(call.weight), self._scale(call.bias)
        if call.linear and weight is not None and _plain(call):
            into = self._tensors[id(call.weight)].into
            return noisy.linear(call.inputs, (call.weight, call.bias), (weight, bias), noise=self._perturb, into=into)
        mean = call.of(func, call.inputs, call.weight, bias=call.bias)
        bias = None if bias is None else bias.square()
        weight = torch.zeros_like(call.weight) if weight is None else weight.square()
        variance = call.of(func, call.inputs.square(), weight, bias=bias)
        return noisy.spread(mean, variance, self._perturb)

    def _perturb(self, mean: Tensor, variance: Tensor) -> None:
        """Add noise to outputs, and replace the variances by its ratio to their standard deviations."""
        if self._place.total == len(mean):
            perturb(mean, variance, seed=self._random.seed, stream=self._random.outputs(self._calls))
        else:
            noise = self._random.noise_of(self._calls, mean, self._place.whole(mean))[self._place.local_rows]
            perturb_by(mean, variance, noise)

    def _flipped(self, func: Callable[..., Tensor], call: Call) -> Tensor:
        """Return outputs under one draw of the weights, whose deviation has signs of its own for each example."""
        weight, bias = self._scale(call.weight), self._scale(call.bias)
        noise, bias_noise = (
            None if scale is None else self._random.change(self._calls, scale, bias=is_bias)
            for is_bias, scale in ((False, weight), (True, bias))
        )
        if call.linear and _plain(call) and weight is not None and noise is not None:
            into = self._tensors[id(call.weight)].into
            after = call.inputs.new_empty(()).expand(*call.inputs.shape[:-1], len(call.weight))
            flips = noisy.Flips(noise, bias_noise, self._signs(call.inputs, -1, 0), self._signs(after, -1, 1))
            return noisy.linear(call.inputs, (call.weight, call.bias), (weight, bias), noise=flips, into=into)
        mean = call.of(func, call.inputs, call.weight, bias=call.bias)
        change = torch.zeros_like(call.weight) if weight is None or noise is None else weight * noise
        bias_change = None if bias is None or bias_noise is None else bias * bias_noise
        axis = -1 if call.linear else 1
        before, after = (self._signs(tensor, axis, n) for n, tensor in enumerate((call.inputs, mean)))
        return mean + after * call.of(func, call.inputs * before, change, bias=bias_change)

    def _signs(self, like: Tensor, axis: int, number: int) -> Tensor:
        """Return ±1 for each example and channel, the same at all its positions."""
        full_shape = self._place.whole(like)
        shape = [size if at in {0, axis % like.ndim} else 1 for at, size in enumerate(full_shape)]
        return self._random.signs(self._calls, shape, like, outputs=bool(number))[self._place.local_rows]


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments of a function one by one, also those in lists."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, list | tuple):
            yield from cast("Sequence[Any]", argument)
        else:
            yield argument


def _plain(call: Call) -> bool:
    """Return whether inputs, weight and bias have one dtype."""
    return call.inputs.dtype == call.weight.dtype and (call.bias is None or call.bias.dtype == call.weight.dtype)
