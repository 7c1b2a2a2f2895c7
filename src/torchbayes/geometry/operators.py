r"""Products of the Hessian and of the Gauss-Newton matrix of all the data with several vectors.

The Hessian of ℓ(w) = −Σ_n log p(y_n|f_w(x_n)) times v is the derivative of ∇ℓ(w)ᵀ v (Pearlmutter 1994). The
Gauss-Newton matrix is G = Σ_n JᵀΛJ with J v by differentiating Jᵀu in u. Either is a backward pass through the graph of
a gradient.

The graphs do not depend on the vectors. They are made once and kept as long as they fit in 1 GiB: the rest are made
again for every stack of vectors. A product then costs about 1.4 gradients (an MLP 784-400-400-10, one thread) to 2.5
(LeNet); forward mode over reverse mode, which cannot keep anything, 3 to 5. Where graphs are small, vectors go
through one together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.curvature.roots import check_curved, parameter_information, root
from torchbayes.density.autograd import leaves_of
from torchbayes.density.precision import full_precision
from torchbayes.geometry.single import Place
from torchbayes.model.model import PREFIX, Batch
from torchbayes.native.process import differentiable, plain_attention

Matrix = Literal["hessian", "ggn", "hessian+prior", "ggn+prior"]
MATRICES: tuple[Matrix, ...] = ("hessian", "ggn", "hessian+prior", "ggn+prior")
_KEPT = 2**30  # bytes of graphs that are kept
_TOGETHER = 2**24  # bytes of graph, times vectors, up to which vectors go through it together
_SECOND = ("derivative", "differentiable", "does not require grad")  # in what autograd says


class Graph(Protocol):
    """What has been computed of some rows once and for all."""

    def times(self, vectors: Sequence[Tensor], together: bool) -> list[Tensor]:
        """Return products with vectors in the shapes of the leaves, each (P, ...) if together."""
        ...

    def derivatives(self) -> Sequence[Tensor]:
        """Return what is differentiated once more."""
        ...


class Gradient(NamedTuple):
    """The graph of a gradient, whose derivative is the Hessian.

    Attributes:
        first: gradients.
        leaves: what they are of.
    """

    first: Sequence[Tensor]
    leaves: Sequence[Tensor]

    def times(self, vectors: Sequence[Tensor], together: bool) -> list[Tensor]:
        """Return H v."""
        return _back(self.first, self.leaves, vectors, together)

    def derivatives(self) -> Sequence[Tensor]:
        """Return the gradients."""
        return self.first


class Outputs(NamedTuple):
    """The graphs of outputs and of their derivative.

    Attributes:
        outputs: (B, ...).
        dummy: u, in which the gradients are linear.
        pulled: Jᵀu.
        columns: (R, B, ...), with Σ r rᵀ = Λ.
        leaves: weights of the network.
        information: diagonal information of learned parameters of the likelihood.
    """

    outputs: Tensor
    dummy: Tensor
    pulled: Sequence[Tensor]
    columns: Tensor
    leaves: Sequence[Tensor]
    information: Sequence[Tensor]

    def times(self, vectors: Sequence[Tensor], together: bool) -> list[Tensor]:
        """Return G v."""
        own = len(self.leaves)
        (pushed,) = _back(self.pulled, [self.dummy], vectors[:own], together)
        lead = pushed.shape[:1] if together else ()
        columns = self.columns.flatten(2)
        shares = torch.einsum("rbk,...bk->r...b", columns, pushed.reshape(*lead, *columns.shape[1:]))
        weighted = torch.einsum("rbk,r...b->...bk", columns, shares).reshape(pushed.shape)
        found = _back([self.outputs], self.leaves, [weighted], together)
        return found + [i * v for i, v in zip(self.information, vectors[own:], strict=True)]

    def derivatives(self) -> Sequence[Tensor]:
        """Return Jᵀu."""
        return self.pulled


def _back(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], vectors: Sequence[Tensor], together: bool
) -> list[Tensor]:
    """Return the products of vectors with the Jacobian of outputs in leaves, from the left; the graph is kept."""
    pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o.requires_grad]
    if not pairs:
        lead = vectors[0].shape[:1] if together else ()
        return [torch.zeros(*lead, *leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
    of, by = zip(*pairs, strict=True)
    options: dict[str, Any] = {"retain_graph": True, "materialize_grads": True, "is_grads_batched": together}
    return list(torch.autograd.grad(of, leaves, by, **options))


class Products:
    """The matrix of all the data as a function of vectors (P, D) -> (P, D).

    Attributes:
        size: D.
        together: whether vectors go through small graphs together.
    """

    def __init__(self, place: Place, matrix: Matrix, chunk_size: int) -> None:
        """Make the graphs that are kept.

        Args:
            place: model, rows and weights.
            matrix: which matrix.
            chunk_size: rows of a graph.

        Raises:
            ValueError: if the network cannot be differentiated twice, or the likelihood has no Gauss-Newton matrix.
        """
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
        """Return the products.

        Raises:
            ValueError: if they are not finite, or the network cannot be differentiated twice.
            RuntimeError: if it fails otherwise.
        """
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
                for sum_, found in zip(sums, graph.times(parts, together), strict=True):
                    sum_.add_(found)
        return total_PD


@contextmanager
def _twice(place: Place) -> Iterator[None]:
    """Run code that differentiates twice, in full precision.

    Yields:
        Nothing.

    Raises:
        ValueError: if the network cannot be differentiated twice.
        RuntimeError: if it fails otherwise.
    """
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
    seen = outputs.detach()
    columns = root("ggn", model.likelihood, seen, targets=rows.targets, parameters=learned)
    found = parameter_information(model.likelihood, seen, rows.targets, parameters=learned) if learned else {}
    information = [found[name.removeprefix(PREFIX)].to(seen) for name in model.layout.names if name.startswith(PREFIX)]
    dummy, tensors = torch.zeros_like(outputs, requires_grad=True), list(leaves.values())
    pulled: Sequence[Tensor] = [torch.zeros_like(leaf) for leaf in tensors]
    if outputs.requires_grad:
        pulled = torch.autograd.grad(outputs, tensors, dummy, create_graph=True, materialize_grads=True)
    return Outputs(outputs, dummy, pulled, columns, tensors, information)


def _held_by(make: Callable[[], Graph]) -> int:
    """Return the bytes that a graph keeps, after checking that it can be differentiated.

    Raises:
        ValueError: if it has a function of which only the first derivative is known: autograd would leave out the
            second without a word.
    """
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        graph = make()
    todo, known = [t.grad_fn for t in graph.derivatives() if t.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node.name().endswith("Error"):
            raise ValueError(
                "the network cannot be differentiated twice: a `torch.autograd.Function` in it is marked "
                "once_differentiable. Write it in plain operations of torch."
            )
        nodes = {before for before, _ in node.next_functions if before is not None} - known
        known |= nodes
        todo += nodes
    return sum(seen.values())
