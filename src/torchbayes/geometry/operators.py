"""Products of the Hessian and of the Gauss-Newton matrix of all the data with several vectors.

The Hessian of ℓ(w) = −Σ_n log p(y_n|f_w(x_n)) times v is the derivative of ∇ℓ(w)ᵀ v (Pearlmutter 1994). The
Gauss-Newton matrix is G = Σ_n JᵀΛJ, where J v is the derivative of Jᵀu in u. Either is a backward pass through the
graph of a gradient.

The graphs do not depend on the vectors. They are made once and kept as long as they fit in 1 GiB; the others are
made again for every stack of vectors. A product costs about 1.4 gradients (an MLP 784-400-400-10, one thread) to
2.5 (LeNet). Forward mode over reverse mode, which cannot keep graphs, costs 3 to 5. Vectors go through small graphs
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.roots import check_curved, parameter_information, root
from torchbayes.density.autograd import leaves_of
from torchbayes.density.precision import full_precision
from torchbayes.geometry.networks import Place
from torchbayes.model.model import PREFIX, Batch
from torchbayes.native.process import differentiable, plain_attention

Matrix = Literal["hessian", "ggn", "hessian+prior", "ggn+prior"]
MATRICES: tuple[Matrix, ...] = ("hessian", "ggn", "hessian+prior", "ggn+prior")
_KEPT = 2**30  # bytes of graphs that are kept
_TOGETHER = 2**24  # bytes of graph, times vectors, up to which vectors go through it together
_SECOND = ("derivative", "differentiable", "does not require grad")  # words in messages of autograd


class Gradient(NamedTuple):
    """The graph of a gradient, whose derivative is the Hessian."""

    first: Sequence[Tensor]  # the gradients of the leaves
    leaves: Sequence[Tensor]

    def times(self, vectors: Sequence[Tensor], together: bool) -> list[Tensor]:
        """Return H v of vectors in the shapes of the leaves, each (P, ...) if together."""
        return _back(self.first, self.leaves, vectors, together)


class Outputs(NamedTuple):
    """The graphs of outputs and of their derivative."""

    outputs: Tensor  # (B, ...)
    dummy: Tensor  # u, in which the gradients are linear
    first: Sequence[Tensor]  # Jᵀu
    columns: Tensor  # (R, B, ...), with Σ r rᵀ = Λ
    leaves: Sequence[Tensor]  # weights of the network
    information: Sequence[Tensor]  # diagonal information of learned parameters of the likelihood

    def times(self, vectors: Sequence[Tensor], together: bool) -> list[Tensor]:
        """Return G v, as `Gradient.times` does H v."""
        count = len(self.leaves)
        (pushed,) = _back(self.first, [self.dummy], vectors[:count], together)
        lead = pushed.shape[:1] if together else ()
        columns = self.columns.flatten(2)
        shares = torch.einsum("rbk,...bk->r...b", columns, pushed.reshape(*lead, *columns.shape[1:]))
        weighted = torch.einsum("rbk,r...b->...bk", columns, shares).reshape(pushed.shape)
        products = _back([self.outputs], self.leaves, [weighted], together)
        return products + [i * v for i, v in zip(self.information, vectors[count:], strict=True)]


Graph = Gradient | Outputs
"""A graph of some rows, computed once, through which products with vectors are taken."""


def _back(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], vectors: Sequence[Tensor], together: bool
) -> list[Tensor]:
    """Return vector-Jacobian products of outputs with respect to leaves; the graph is kept."""
    pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o.requires_grad]
    if not pairs:
        lead = vectors[0].shape[:1] if together else ()
        return [torch.zeros(*lead, *leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
    of, by = zip(*pairs, strict=True)
    return list(
        torch.autograd.grad(of, leaves, by, retain_graph=True, materialize_grads=True, is_grads_batched=together)
    )


class Products:
    """The matrix of all the data as a function, vectors (P, D) -> (P, D), for weights of `size` D.

    `together` says whether vectors go through small graphs together. A ValueError is raised if the network cannot
    be differentiated twice, the likelihood has no Gauss-Newton matrix, or a product is not finite.
    """

    def __init__(self, place: Place, matrix: Matrix, chunk_size: int) -> None:
        """Make the graphs that are kept; each has at most `chunk_size` rows."""
        self.size, self._layout, self._place = place.weights_D.numel(), place.model.layout, place
        curve = _gradient if matrix.startswith("hessian") else _outputs
        parts: list[Callable[[], Graph]] = []
        for start in range(0, place.rows.size, chunk_size):
            where = slice(start, start + chunk_size)
            parts.append(lambda where=where: curve(place, place.rows.map(lambda t: t[where])))
        with _twice(place):
            self._bytes = _held_by(parts[0])
            count = int(_KEPT // max(self._bytes, 1))
            self._kept = [make() for make in parts[:count]]
            self._made = parts[count:]
            if not (matrix.startswith("hessian") or self._made):
                largest = max(float(graph.columns.abs().max()) for graph in self._kept if isinstance(graph, Outputs))
                check_curved(place.model.likelihood, largest, advice="Use matrix='hessian'.")
            if matrix.endswith("prior"):
                self._kept.append(_prior(place))
        self.together = True

    def __call__(self, vectors_PD: Tensor) -> Tensor:
        together = self.together and 1 < len(vectors_PD) <= _TOGETHER // max(self._bytes, 1)
        with _twice(self._place):
            try:
                found_PD = self._summed(vectors_PD, together)
            except RuntimeError:
                if not together:
                    raise
                self.together = False  # an operation that torch cannot vectorise
                found_PD = self._summed(vectors_PD, False)
        if not torch.isfinite(found_PD).all():
            raise ValueError(
                f"the product of the matrix with a vector is not finite in "
                f"{int((~torch.isfinite(found_PD)).any(0).sum())} of {self.size} weights. Look for extreme values in "
                f"the data, or for a function of the network with an infinite derivative, such as a root at zero."
            )
        return found_PD

    def _summed(self, vectors_PD: Tensor, together: bool) -> Tensor:
        total_PD = torch.zeros_like(vectors_PD)
        stacks = [vectors_PD] if together else list(vectors_PD)
        views = [list(self._layout.split(stack).values()) for stack in stacks]
        into = [list(self._layout.split(stack).values()) for stack in ([total_PD] if together else total_PD)]
        for make in [*(lambda graph=graph: graph for graph in self._kept), *self._made]:
            graph = make()
            for parts, sums in zip(views, into, strict=True):
                for sum_, share in zip(sums, graph.times(parts, together), strict=True):
                    sum_.add_(share)
        return total_PD


@contextmanager
def _twice(place: Place) -> Iterator[None]:
    """Run code that differentiates twice, in full precision; a ValueError if the network cannot be."""
    device = place.model.network.device
    with differentiable(), plain_attention(), full_precision(device):
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError) or not any(word in str(error) for word in _SECOND):
                raise
            first = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"the network cannot be differentiated twice: {first}. Use layers made of plain operations of torch."
            ) from error


def _gradient(place: Place, rows: Batch) -> Graph:
    """Return the graph of the gradient of −Σ log p(y|f)."""
    leaves = leaves_of(place.model.layout, place.weights_D)
    rows = rows._replace(inputs=place.model.network.arrange(rows.inputs))
    loss = -place.model.log_likelihood(leaves, rows, place.buffers or None).sum()
    return _differentiated(loss, list(leaves.values()))


def _prior(place: Place) -> Graph:
    """Return the graph of the gradient of −log p(w)."""
    leaves = leaves_of(place.model.layout, place.weights_D)
    return _differentiated(-place.model.log_prior(place.model.layout.join(leaves)).sum(), list(leaves.values()))


def _differentiated(loss: Tensor, leaves: list[Tensor]) -> Graph:
    if not loss.requires_grad:
        return Gradient([torch.zeros_like(leaf) for leaf in leaves], leaves)
    return Gradient(torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True), leaves)


def _outputs(place: Place, rows: Batch) -> Graph:
    """Return the graphs that the Gauss-Newton matrix of rows needs."""
    model, network = place.model, place.model.network
    views, learned = model.split(place.weights_D)
    leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
    outputs = network(leaves, network.arrange(rows.inputs), place.buffers or None)
    fixed = outputs.detach()
    columns = root("ggn", model.likelihood, fixed, targets=rows.targets, parameters=learned)
    known = parameter_information(model.likelihood, fixed, rows.targets, parameters=learned) if learned else {}
    information = [known[name.removeprefix(PREFIX)].to(fixed) for name in model.layout.names if name.startswith(PREFIX)]
    dummy, tensors = torch.zeros_like(outputs, requires_grad=True), list(leaves.values())
    first: Sequence[Tensor] = [torch.zeros_like(leaf) for leaf in tensors]
    if outputs.requires_grad:
        first = torch.autograd.grad(outputs, tensors, dummy, create_graph=True, materialize_grads=True)
    return Outputs(outputs, dummy, first, columns, tensors, information)


def _held_by(make: Callable[[], Graph]) -> int:
    """Return the bytes that a graph keeps.

    Raises a ValueError for a function with a first derivative only, because autograd would silently omit the
    second.
    """
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        graph = make()
    pending, known = [t.grad_fn for t in graph.first if t.grad_fn is not None], set()
    while pending:
        node = pending.pop()
        if node.name().endswith("Error"):
            raise ValueError(
                "the network cannot be differentiated twice: a `torch.autograd.Function` in it is marked "
                "once_differentiable. Write it in plain operations of torch."
            )
        nodes = {before for before, _ in node.next_functions if before is not None} - known
        known |= nodes
        pending += nodes
    return sum(seen.values())
