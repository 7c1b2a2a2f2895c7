"""Tensors that a model borrows from the given module: what is not random keeps its memory, and is read alone.

A copy would double the memory of a large frozen body. The module belongs to the user, who may go on to train it, so the
two ways in which a borrowed tensor could change are watched:

- The user writes to it. Version counters tell, and some elements of each tensor, because fused optimisers and writes
  through `.data`, as of adapters that are merged, do not move the counters. The model then refuses to go on.
- The network itself does, in its initialisers or its forward pass. `ReadOnly` leaves such writes out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchbayes.checks import SettingError
from torchbayes.native.sharding import is_sharded, local
from torchbayes.randomness.generators import DispatchMode

_SOME = 16  # elements of each tensor that are compared


def borrowed(module: nn.Module, kept: Container[int]) -> dict[int, Tensor]:
    """Return what takes the place of tensors of a module in a copy of it, by identity: tensors in the same memory.

    They are the parameters without those in `kept`, by identity, and tables of whole numbers. They have the same
    version counters too.
    """
    constants = [parameter for parameter in module.parameters() if id(parameter) not in kept]
    tables = [buffer for buffer in module.buffers() if _is_table(buffer)]
    pairs = ((id(tensor), _lent(tensor)) for tensor in [*constants, *tables])
    return {identity: tensor for identity, tensor in pairs if tensor is not None}


def _is_table(buffer: Tensor) -> bool:
    """Return whether a buffer is a table of whole numbers, such as quantised weights or a mask.

    Other buffers are copied, because a call of the user's own may move them: statistics of batch norm, counts, caches.
    """
    whole = not (buffer.is_floating_point() or buffer.is_complex())
    return whole and buffer.ndim > 1 and buffer.layout == torch.strided


def _lent(tensor: Tensor) -> Tensor | None:
    """Return a tensor that does not require gradients, in the same memory.

    The result is None if the memory cannot be shared: there is none, on the meta device; the tensor was made in
    inference mode, so that it takes no part in differentiation; or it is of another class, and to be trained.
    """
    if tensor.is_meta or tensor.is_inference():
        return None
    if type(tensor) in {Tensor, nn.Parameter} or (tensor.requires_grad and is_sharded(tensor)):
        return _like(tensor, tensor.detach())
    return None if tensor.requires_grad else tensor  # quantised weights hold more than their elements


def apart(tensor: Tensor) -> Tensor:
    """Return a tensor in the same memory whose version counter is its own, so that writes left out do not count."""
    return _like(tensor, tensor.data) if type(tensor) in {Tensor, nn.Parameter} else tensor


def _like(tensor: Tensor, same: Tensor) -> Tensor:
    return nn.Parameter(same, requires_grad=False) if isinstance(tensor, nn.Parameter) else same


class Borrowed:
    """Borrowed tensors, and what they held when this was made."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Note the version counter of each tensor, and some of its elements."""
        self.tensors = dict(tensors)
        self._watch()
        self._noted = [_bytes(parts) for parts in self._parts]

    @classmethod
    def of(cls, module: nn.Module, lent: Iterable[Tensor]) -> Borrowed:
        """Return those tensors of a copy of a module that were lent to it."""
        identities = {id(tensor) for tensor in lent}
        named = [*module.named_parameters(), *module.named_buffers()]
        return cls({name: tensor for name, tensor in named if id(tensor) in identities})

    def _watch(self) -> None:
        self._held = [*map(local, self.tensors.values())]  # by this process
        self._versions = _versions(self._held)
        self._names, self._parts = list[list[str]](), list[list[Tensor]]()
        groups: dict[Any, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in zip(self.tensors, self._held, strict=True):
            if type(tensor) in {Tensor, nn.Parameter} and tensor.layout == torch.strided and tensor.numel():
                groups[tensor.device, tensor.dtype][name] = _diagonal(tensor.detach())
        for parts in groups.values():
            self._names.append([*parts])
            self._parts.append([*parts.values()])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling and copying, without what belongs to these tensors and not to their copies."""
        return {"tensors": self.tensors, "_noted": self._noted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()

    def check_versions(self) -> None:
        """Raise SettingError if the version counter of a tensor has moved: for every call, as it takes microseconds."""
        if (now := _versions(self._held)) != self._versions:
            changed = (name for name, a, b in zip(self.tensors, now, self._versions, strict=True) if a != b)
            raise SettingError(_said([*changed]))

    def check(self) -> None:
        """Raise SettingError if a tensor has changed: its version counter, or one of the elements that were noted."""
        self.check_versions()
        for names, parts, noted in zip(self._names, self._parts, self._noted, strict=True):
            if not torch.equal(_bytes(parts), noted.to(parts[0].device)):
                then = noted.split([len(tensor) * tensor.element_size() for tensor in parts])
                pairs = zip(names, parts, then, strict=True)
                raise SettingError(
                    _said([name for name, tensor, was in pairs if _bytes([tensor]).ne(was.to(tensor.device)).any()])
                )


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _diagonal(tensor: Tensor) -> Tensor:
    """Return a view of some elements, (n,), evenly spaced along a diagonal of the tensor."""
    count = min(_SOME, max(tensor.shape, default=1))
    step = sum((n - 1) // max(count - 1, 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((count,), (step,))


def _bytes(parts: list[Tensor]) -> Tensor:
    """Return the elements of parts as bytes, so that NaN equals itself."""
    return torch.cat(parts).view(torch.uint8)


def _said(names: list[str]) -> str:
    more = f" and {len(names) - 1} more, which are" if len(names) > 1 else ", which is"
    return (
        f"the network that Model was made of was changed later: `{names[0]}`{more} not random. Model reads such "
        f"tensors where they are, and what was inferred holds for their old values. Make the Model anew, widen "
        f"`random` if they are to be inferred, or give it a network of its own, `Model(copy.deepcopy(network), ...)`."
    )


class ReadOnly(DispatchMode):
    """While active, no operation writes to the memory of these tensors: such a write is left out.

    `written` are the names of those that were to be written to.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.written: set[str] = set()
        self._names = {place: name for name, tensor in tensors.items() if (place := _place(tensor))}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return an operation's result; one that writes to these tensors alone returns the first, as it is."""
        kwargs, schema = kwargs or {}, getattr(func, "_schema", None)  # operations of higher order have none
        if schema is None or not schema.is_mutable:
            return func(*args, **kwargs)
        targets = [*written_to(schema, args, kwargs)]
        lent = {id(t): name for t in targets if (name := self._names.get(_place(t)))}
        if not lent:
            return func(*args, **kwargs)
        self.written |= {*lent.values()}
        if len(targets) == 1 and len(schema.returns) == 1:
            return targets[0]
        return func(*_without(lent, args), **_without(lent, kwargs))


def _place(tensor: Tensor) -> int:
    """Return the address of the memory that a tensor is in; 0 if it has none of the usual kind."""
    try:
        return local(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, and classes that hold others
        return 0


def written_to(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that an operation writes to."""
    for number, argument in enumerate(schema.arguments):
        if argument.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (t for t in (value if isinstance(value, list | tuple) else [value]) if isinstance(t, Tensor))


def _without(lent: Mapping[int, str], values: Any) -> Any:
    """Return arguments with copies in the place of tensors that must not be written to."""
    return pytree.tree_map_only(Tensor, lambda t: t.clone() if id(t) in lent else t, values)
