"""One forward pass that keeps the inputs of every layer, and gradients at its outputs, one column at a time.

No Jacobian of the network is formed: for a column r of the outputs' curvature, one backward pass gives each layer the
gradient g at its outputs. With its inputs a this is all that the layer's curvature needs. Networks are run here, not by
a backend of the density, because no backend exposes the inputs of a layer, or keeps the graph of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchbayes.curvature.layers import Call
from torchbayes.model.batches.batch import batch_size, tensors_of
from torchbayes.model.network import Buffers, Network, taking
from torchbayes.model.precision import widened
from torchbayes.native.process import differentiable, plain_attention
from torchbayes.native.recomputation import activations_kept
from torchbayes.randomness.seeds import Purpose, generator

Calls = dict[str, list[Call]]


@dataclass(frozen=True)
class Captured:
    """A forward pass of one member."""

    outputs: Tensor  # (B, ...), with the graph
    calls: Calls  # module -> its calls, whose `outputs` are graph edges
    leaves: dict[str, Tensor]  # the random weights that took part, by name

    def is_last(self, module: str) -> bool:
        """Return whether the outputs of the module's only call are those of the network."""
        edge = get_gradient_edge(self.outputs)
        (call,) = self.calls[module]
        return call.outputs.node is edge.node and call.outputs.output_nr == edge.output_nr

    def columns(self, root_RB: Tensor | Sequence[Tensor], *, keep: bool = False, last: bool = True) -> Iterator[Calls]:
        """Yield, for each column (B, ...), the calls with gradients of Σ_b Σ_k r_bk f_bk in the place of edges.

        The graph is freed after the last column, unless more columns come (not `last`), or it is kept with the graph of
        the gradients themselves (`keep`).
        """
        edges = [call.outputs for calls in self.calls.values() for call in calls]
        for number, column in enumerate(root_RB):
            retain = keep or not last or number < len(root_RB) - 1
            if keep:
                columns = torch.autograd.grad(self.outputs, edges, column, retain_graph=True, create_graph=True)
            else:
                columns = pulled_back(self.outputs, edges, column, retain_graph=retain)
            gradients = iter(columns)
            at = self.outputs.device  # layers may be on other devices
            yield {
                module: [call._replace(outputs=widened(next(gradients).to(at))) for call in calls]
                for module, calls in self.calls.items()
            }


def pulled_back(outputs: Tensor, at: Sequence[Any], column: Tensor, **options: Any) -> tuple[Any, ...]:
    """Return the gradients of Σ_b Σ_k r_bk f_bk in tensors or edges.

    They are those of `torch.autograd.grad(outputs, at, column)`, bit for bit; but this imports SymPy, which takes a
    second in a process that has no other use of it.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whichever mode the caller is in
        total = (outputs * (column.clone() if column.is_inference() else column)).sum()
    return torch.autograd.grad(total, at, **options)


@contextmanager
def watched(network: Network, modules: Sequence[str], see: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Call `see(name, inputs, outputs)` whenever one of the modules has run, once in a pass: activations are kept."""
    handles = []
    try:
        for name in modules:
            module = network.module.get_submodule(name)

            def hook(_: nn.Module, args: Any, kwargs: Any, outputs: Any, name: str = name) -> Any:
                if isinstance(outputs, Tensor) and outputs._is_view():
                    outputs = outputs.clone()  # writing into a view would detach it from the edge's graph
                see(name, (*args, *kwargs.values()), outputs)
                return outputs

            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        with activations_kept():
            yield
    finally:
        for handle in handles:
            handle.remove()


def watch(
    network: Network,
    views: Mapping[str, Tensor],
    inputs: Any,
    *,
    modules: Sequence[str],
    buffers: Buffers | None = None,
    keep_inputs: bool = False,
) -> Captured:
    """Run a network forward and capture the inputs of the layers.

    `keep_inputs` keeps the graph behind the layers' inputs too, for derivatives in the inputs. Inputs that the network
    cannot take are a ValueError.
    """
    calls: Calls = {}
    rows = batch_size(inputs)

    def see(name: str, args: Any, made: Any) -> None:
        # the edge is taken now, because later in-place operations on the tensor do not belong to the layer
        tensor = widened((args[0] if keep_inputs else args[0].detach()).to(network.device))
        if len(tensor) != rows:
            raise ValueError(
                f"`{name}` was given {len(tensor)} of a batch of {rows} rows, but all of the rows that the network was "
                f"first looked at with. Shuffle the data, or give larger batches, so that the first one shows how the "
                f"network takes rows apart."
            )
        module = network.module.get_submodule(name)
        named = (*module.named_parameters(), *module.named_buffers())
        tensors = {n: widened(t.detach().to(network.device)) for n, t in named}
        calls.setdefault(name, []).append(Call(tensor, get_gradient_edge(made), tensors))

    network.ask(views, inputs, buffers)  # it may run the network, so it comes before calls are captured
    # the other attention kernels have no second derivative
    attention = plain_attention() if keep_inputs else nullcontext()
    with differentiable(), attention, watched(network, modules, see):
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        with taking(inputs):
            outputs = network(leaves, network.arrange(inputs), buffers)
    return Captured(outputs, calls, leaves)


def probe(network: Network, views: Mapping[str, Tensor], inputs: Any, *, modules: Sequence[str]) -> dict[str, str]:
    """Return the modules whose calls cannot be used, and why: not one tensor in and out, or rows that are not separate.

    The inputs have at least two rows.
    """
    reasons: dict[str, str] = {}
    calls: list[tuple[str, GradientEdge]] = []

    def see(name: str, args: Any, made: Any) -> None:
        if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(made, Tensor):
            reasons[name] = "it does not turn one tensor into one tensor"
        elif is_functorch_wrapped_tensor(made):
            reasons[name] = "it is called inside a transform of torch.func"
        elif made.requires_grad:
            calls.append((name, get_gradient_edge(made)))

    network.ask(views, inputs)
    with differentiable(), watched(network, modules, see):
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        outputs = network(leaves, inputs)
    rows = len(outputs)
    column = random_column(outputs, Purpose.CALLS)
    edges = [edge for _, edge in calls]
    numbers = torch.arange(rows, device=outputs.device)
    bits = range((rows - 1).bit_length() if edges else 0)
    for bit, side in product(bits, (0, 1)):
        # any two rows differ in a bit of their indices, so one column has only the first of them, and another only the
        # second: together they reveal a row in the place of another
        chosen = (numbers >> bit) % 2 == side
        half = column * chosen.view(-1, *[1] * (column.ndim - 1))
        edge_gradients = pulled_back(outputs, edges, half, retain_graph=True, allow_unused=True)
        for (name, _), gradient in zip(calls, edge_gradients, strict=True):
            if gradient is None:
                reasons[name] = "the outputs do not depend on every call"
            elif len(gradient) != rows or gradient[~chosen.to(gradient.device)].any():
                reasons[name] = "its first axis is not that of the rows"
    called = {name for name, _ in calls} | reasons.keys()
    return reasons | {name: "its forward is not called" for name in modules if name not in called}


def random_column(outputs: Tensor, purpose: Purpose) -> Tensor:
    """Return standard normals, the same at every call, in the shape of outputs."""
    source = generator(purpose, device=outputs.device)
    return torch.randn(outputs.shape, generator=source, dtype=outputs.dtype, device=outputs.device)


def requires_grad(inputs: Any) -> bool:
    """Return whether any tensor of the inputs requires a gradient."""
    return any(tensor.requires_grad for tensor in tensors_of(inputs))
