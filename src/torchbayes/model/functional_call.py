"""A module that holds other tensors instead of its own during a call, and which tensors it writes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # no public function says whether a transform is active
from torch.func import functional_call

from torchbayes.checks import SettingError
from torchbayes.model.initialisation import copied as module_copy
from torchbayes.model.rows.batch import arguments, copied, tensors_of
from torchbayes.model.wrappers import unwrapped
from torchbayes.native.heap import trim
from torchbayes.native.seeds import Purpose, seeded

Places = dict[str, list[tuple[dict[str, Any], str]]]


class Held:
    """A module whose parameters and buffers are swapped for a call: `functional_call` without its checks.

    Names are checked once, in the layout; this saves a tenth of a millisecond per call in a network of 65 tensors.
    """

    def __init__(self, module: nn.Module, random: Collection[str]) -> None:
        """Note where everything is held.

        Args:
            module: the module.
            random: names of the parameters that are random, which no call may change.
        """
        self._module, self._random = module, random
        self._own: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._places = _places(module, self._own)
        self._writes: dict[bool, bool] = {}  # in training or not -> whether it changes its inputs in place

    @contextmanager
    def _holding(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the module hold the tensors of `state` inside the `with`."""
        try:
            for name, tensor in state.items():
                for table, key in self._places[name]:
                    table[key] = tensor
            yield
        finally:
            for name in state:
                for table, key in self._places[name]:
                    table[key] = self._own[name]

    def run(self, state: Mapping[str, Tensor], inputs: Any) -> Any:
        """Return the module's outputs while it holds the tensors of `state`.

        Where it changes its inputs in place, as a first `nn.ReLU(inplace=True)` does, or where that is not known, it is
        given copies: the inputs belong to the user, and the next call must see the same values.
        """
        args, kwargs = arguments(copied(inputs) if self._writes.get(self._module.training, True) else inputs)
        if torch.compiler.is_compiling():
            return functional_call(self._module, dict(state), args, kwargs)
        with self._holding(state):
            return self._module(*args, **kwargs)

    def ask(self, state: Mapping[str, Tensor], inputs: Any, *, device: torch.device) -> None:
        """Find out which tensors the module writes to: once in each mode, and on copies.

        Under a transform, which hides writes, this is postponed.

        Args:
            state: what it holds.
            inputs: what it is given.
            device: of the network.

        Raises:
            SettingError: if it writes to random weights.
        """
        training = self._module.training
        if training in self._writes or torch.compiler.is_compiling() or peek_interpreter_stack():
            return
        # tensors created in inference mode have no version counter
        with torch.inference_mode(False), seeded(Purpose.WRITING, device=device):
            own, given = {n: t.detach().clone() for n, t in state.items()}, copied(inputs)
            weights, tensors = {n: t for n, t in own.items() if n in self._random}, tensors_of(given)
            before, (args, kwargs) = (_counts(weights.values()), _counts(tensors)), arguments(given)
            with self._holding(own):
                self._module(*args, **kwargs)
            written = [n for n, a, b in zip(weights, before[0], _counts(weights.values()), strict=True) if a != b]
            if written:
                raise SettingError(
                    f"the network changes its weights `{written[0]}` in place whenever it is called, as "
                    f"nn.Embedding(max_norm=...) does, so that no density belongs to them. Let it use a changed copy "
                    f"instead."
                )
            self._writes[training] = before[1] != _counts(tensors)
        del own, weights
        trim()  # of these copies, and of those that were made of the network before


def functional_copy(module: nn.Module, instead: Mapping[int, Tensor]) -> nn.Module:
    """Return a copy of a module that can be run with other weights, without wrappers.

    Its gradients are dense: all go into one vector, which cannot hold sparse ones.

    Args:
        module: the module.
        instead: identity of a parameter -> what the copy holds in its place.

    Raises:
        TypeError: if there is none.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("a compiled `network` of torch.jit keeps its own weights. Pass the module that it was made of.")
    try:
        made = unwrapped(module_copy(module, instead))
    except (RuntimeError, TypeError) as error:
        raise TypeError(
            f"the `network` cannot be copied: {str(error).rstrip('.')}. It may hold a tensor made from parameters, "
            f"as the old torch.nn.utils.weight_norm does. Use one of torch.nn.utils.parametrizations, or make the "
            f"tensor in `forward`."
        ) from error
    for part in made.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
    return made


def without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device like another one; a parameter stays one."""
    bare = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(bare, requires_grad=False) if isinstance(tensor, nn.Parameter) else bare


def _counts(tensors: Iterable[Tensor]) -> list[int]:
    """Return the version counter of each tensor."""
    return [tensor._version for tensor in tensors]


def _places(module: nn.Module, own: Mapping[str, Tensor]) -> Places:
    """Return where each parameter and buffer is held: name -> (table of a module, key); tied ones have several."""
    names = {id(tensor): name for name, tensor in own.items()}
    places: Places = {name: [] for name in own}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    places[names[id(tensor)]].append((table, key))
    return places
