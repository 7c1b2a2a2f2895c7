"""Whether a network in evaluation mode is a function of its weights and of each row alone.

It is not if it draws random numbers in evaluation mode, or if outputs of a row change with the rows beside it. The
first rows of the data show both: the first pass moves a generator, and one pass over two of the rows alone gives other
outputs. Only a suspicion costs more passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchbayes.checks import SettingError
from torchbayes.model.batches.batch import Batch, all_equal, arguments, copied, rows_of, tensors_of
from torchbayes.model.model import Model
from torchbayes.model.network import Network, module_at, refuse_by_batch

_FEW, _ALONE = 8, 2  # rows that are tried, and those of them that go through a network by themselves
_SUSPECT = 1e-4  # share of the largest output; rounding may explain smaller differences
_CERTAIN = 0.05  # rounding explains no larger difference, whatever the precision
_SAME = 1e-6  # the order of sums on a GPU may change outputs by this much
_LOOKED: WeakKeyDictionary[Network, str] = WeakKeyDictionary()  # of networks looked at, the clause about randomness
_TRIES = 16  # equal passes after which a network that drew numbers counts as a function


class Faults(NamedTuple):
    """Why a network is no function, or a likelihood no product over rows: a clause each, empty if it is one."""

    random: str = ""  # it draws random numbers in evaluation mode
    coupled: str = ""  # outputs of a row change with the rows beside it
    # likewise, by a batch norm without running statistics, which methods themselves refuse where necessary
    norm: str = ""
    likelihood: str = ""  # the log probability of a row at the same outputs changes with the rows beside it

    def judged(self, *, training: bool) -> tuple[str, ...]:
        """Return the problems of the network in a method that is trained on these rows.

        With `training`, random numbers and batches belong to the method, which needs a function only for predictions.
        It raises SettingError if the likelihood is no product over rows, or, without `training`, the network is no
        function.
        """
        if wrong := self.likelihood or ("" if training else self.random or self.coupled):
            raise SettingError(f"{wrong}.")
        return tuple(clause for clause in (self.random, self.coupled, self.norm) if clause)


@dataclass
class Drawn:
    """Whether a global generator was moved, because random numbers were drawn from it."""

    moved: bool = False


@contextmanager
def watched(device: torch.device) -> Iterator[Drawn]:
    """Watch the global generators of torch and Python inside the `with`; numpy's takes too long to read.

    The result is known once the `with` has ended.
    """
    drawn, before = Drawn(), _states(device)
    yield drawn
    drawn.moved = any(not _equal(first, second) for first, second in zip(before, _states(device), strict=True))


def faults_of(model: Model, batch: Batch, outputs: Tensor, *, drew: bool) -> Faults:
    """Return why the network is no function on the B rows of a batch, or the likelihood no product over them.

    `outputs` are the network's for these rows, and `drew` says whether a generator was moved when they were computed.
    """
    run, outputs = partial(_outputs, model.network), outputs.detach()
    alone = slice(batch.size - min(_ALONE, max(batch.size // 2, 1)), batch.size)
    apart = _tried(lambda: run(rows_of(batch.inputs, alone)))
    suspect = apart is not None and _distance(apart, outputs[alone]) > _SUSPECT
    noise = _noise(run, batch.inputs, outputs, tries=_TRIES if drew else 1) if drew or suspect else 0.0
    clause = _LOOKED[model.network] = random_clause(model.network, batch.inputs, noise) if noise else ""
    if clause:
        return Faults(random=clause)
    if model.coupled:
        return Faults()
    coupled = norm = ""
    if apart is not None and suspect:
        indices = torch.arange(alone.start, alone.start + batch.size).clamp(max=batch.size - 1).to(outputs.device)
        same = run(rows_of(batch.inputs, indices))[: len(apart)]  # as many rows as before, so that rounding is the same
        most = max(_distance(same, outputs[alone]), (change := _distance(apart, outputs[alone])) - _CERTAIN)
        clause = _COUPLED.format(max(change, most)) if most > _SAME * 10 else ""
        first = "".join(f"`{name}` is a batch norm without running statistics: " for name in model.network.by_batch[:1])
        coupled, norm = ("", first + clause) if first and clause else (clause, "")
    return Faults(coupled=coupled, norm=norm, likelihood=_of_likelihood(model, batch, outputs, alone))


def refuse_faults(model: Model, data: Batch, *, training: bool) -> None:
    """Raise SettingError, as of `Faults.judged`, if rows of the data may not go through a model in chunks."""
    few = data.map(lambda t: t[:_FEW])
    with watched(model.network.device) as drawn:
        outputs = _outputs(model.network, few.inputs)
    faults_of(model, few, outputs, drew=drawn.moved).judged(training=training)


_COUPLED = (
    "outputs of a row change with the rows beside it, here by up to {:.2g} of the largest output, so that they depend "
    "on batches and on `chunk_size` (compute each row alone, as with batch_first=True, filter response norm or group "
    "norm, or let all rows go through at once: Model(..., coupled=True))"
)


def random_clause(network: Network, inputs: Any, noise: float) -> str:
    """Return in words that a network is random, and which of its modules is.

    Two passes differ by `noise`, a share of the largest output.
    """
    where = _tried(lambda: _random_module(network, inputs)) or "the network"
    return (
        f"{where} draws random numbers in evaluation mode too, so that the same weights give other outputs at every "
        f"pass, here by up to {noise:.2g} of the largest (draw only where `self.training`, as F.dropout(x, p, "
        f"training=self.training) does)"
    )


def random_at(network: Network, inputs: Any, *, drew: bool) -> str:
    """Return the clause of `random_clause` if a network is random at inputs, else an empty string.

    `drew` says whether these inputs have moved a generator when they went through the network. Numbers of numpy, and of
    the network's own generators, show in the outputs alone: in two passes over a few rows, once for every network.
    """
    if not drew:
        if network not in _LOOKED:
            _LOOKED[network] = _tried(lambda: _random_at(network, inputs, tries=1)) or ""
        return _LOOKED[network]
    return _random_at(network, inputs, tries=_TRIES)


def _random_at(network: Network, inputs: Any, *, tries: int) -> str:
    run, few = partial(_outputs, network), rows_of(inputs, slice(0, _FEW))
    noise = _noise(run, few, run(few), tries=tries)
    return random_clause(network, few, noise) if noise else ""


def refuse_coupled(model: Model) -> None:
    """Raise an error if a row depends on those beside it, so that sums over rows computed one by one would be wrong."""
    if model.coupled:
        raise SettingError(
            "the rows of this model are coupled (`Model(coupled=True)`), and this takes each row alone, or a part of "
            "them. Take a method on all rows at once, such as HMC() or MAP(batch_size=N)."
        )
    refuse_by_batch(model.network)


def _outputs(network: Network, inputs: Any) -> Tensor:
    """Return the outputs of a network as it was given."""
    with torch.no_grad():
        return network(network.initial, inputs).detach()  # it may turn gradients on itself


def _of_likelihood(model: Model, batch: Batch, outputs: Tensor, alone: slice) -> str:
    """Return a clause if the log probabilities of some rows change with the rows beside them."""
    learned = {name: parameter.start().to(outputs) for name, parameter in model.likelihood.parameters().items()}

    def log_prob(where: slice) -> Tensor:
        return model.likelihood.log_prob(outputs[where], rows_of(batch.targets, where), learned)

    pair = _tried(lambda: (log_prob(slice(None))[alone], log_prob(alone)))
    if pair is None or not bool(torch.isfinite(torch.stack(pair)).all()) or _distance(*pair) <= _SUSPECT:
        return ""
    return (
        f"the log probability of a row changes with the rows beside it under {type(model.likelihood).__name__}, here "
        f"from {pair[1][0].item():.4g} alone to {pair[0][0].item():.4g}, so that a sum over minibatches or chunks is "
        f"not that over all rows. Let all rows go through at once: Model(..., coupled=True)"
    )


def _noise(run: Callable[[Any], Tensor], inputs: Any, outputs: Tensor, *, tries: int) -> float:
    """Return by how much of the largest output passes over the same rows differ; 0 if none does."""
    for _ in range(tries):
        if (distance := _distance(run(inputs), outputs)) > _SAME:
            return distance
    return 0.0


def _distance(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of two tensors as a share of their largest element; infinite for other shapes."""
    if first.shape != second.shape:
        return float("inf")
    scale = torch.stack([first.abs().amax(), second.abs().amax()]).amax().double().clamp_min(1e-300)
    return float(((first - second).abs().amax() / scale).nan_to_num(0.0)) if first.numel() else 0.0


def _tried(call: Callable[[], Any]) -> Any:
    """Return the result of a call; None if it fails, as of a network that takes no other number of rows."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
        return None


def _states(device: torch.device) -> list[Any]:
    """Return the states of the global generators."""
    torch_states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        torch_states.append(torch.cuda.get_rng_state(device))
    return [*torch_states, random.getstate()]


def _equal(first: Any, second: Any) -> bool:
    return torch.equal(first, second) if isinstance(first, Tensor) else first == second


@dataclass
class _Call:
    """A call of a module, with the calls within it."""

    name: str
    kind: str
    given: list[Tensor]
    made: list[Tensor] = field(default_factory=list)
    within: list[_Call] = field(default_factory=list)


def _random_module(network: Network, inputs: Any) -> str:
    """Return in words the innermost module that gives other outputs for the same inputs."""
    module = module_at(network, network.weights()).eval()
    first = _calls(module, inputs)
    for _ in range(_TRIES):
        if (call := _innermost(first, _calls(module, inputs))) is not None:
            return f"`{call.name}` ({call.kind})" if call.name else f"the forward pass of {call.kind}"
    return "the network"


def _innermost(first: _Call, second: _Call) -> _Call | None:
    """Return the innermost call that differs although its inputs were the same."""
    if not all_equal(first.given, second.given) or all_equal(first.made, second.made):
        return None
    pairs = zip(first.within, second.within, strict=False)
    inner = (_innermost(a, b) for a, b in pairs if a.name == b.name)
    return next((call for call in inner if call is not None), first)


def _calls(module: nn.Module, inputs: Any) -> _Call:
    """Return the calls that a pass makes, as a tree."""
    root = _Call("", "", [])
    stack, hooks = [root], []

    def begin(name: str) -> Callable[..., None]:
        def hook(inner: nn.Module, args: Any, kwargs: Any) -> None:
            stack[-1].within.append(call := _Call(name, type(inner).__name__, _copies((args, kwargs))))
            stack.append(call)

        return hook

    def end(inner: nn.Module, args: Any, made: Any) -> None:
        stack.pop().made = _copies(made)

    for name, inner in module.named_modules():
        hooks.append(inner.register_forward_pre_hook(begin(name), with_kwargs=True))
        hooks.append(inner.register_forward_hook(end))
    try:
        args, kwargs = arguments(copied(inputs))
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return root.within[0]


def _copies(tree: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_of(tree)]
