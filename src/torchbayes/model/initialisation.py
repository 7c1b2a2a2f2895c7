"""Fresh weights for a network given as a module, by the initialisers of its parts.

They are called bottom up, as constructors do, and those of adapters last:

- `reset_parameters` or `_reset_parameters` of a part, as in PyTorch;
- `init_weights`, `_init_weights`, `initialize_weights` or `_initialize_weights` of a whole: without arguments (Hugging
  Face, timm), or with one, a module, for every module below, as `nn.Module.apply` calls it;
- `reset_…_parameters(adapter)` of PEFT, with the initialisation that the adapter's configuration asks for.

Anything else that a constructor does cannot be seen, but it leaves two marks. Parameters whose elements are all equal
keep their values: heads and biases at zero, B of LoRA, scales at one; so does a scalar that no initialiser writes. And
a matrix whose magnitude in the module differs from what its initialisers give was drawn in another way, or trained; the
two cannot be told apart. Members then start at what the initialisers give, with a warning if root mean squares differ
by more than chance; a matrix four times smaller or eight times larger is refused.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.checks import SettingError
from torchbayes.model.borrowed import ReadOnly, apart, borrowed
from torchbayes.model.layout import Layout
from torchbayes.model.wrappers import plainly_named, reset_magnitudes
from torchbayes.native.sharding import is_sharded, plainly_copied

_OF_PARTS = ("reset_parameters", "_reset_parameters")
_OF_WHOLES = ("init_weights", "_init_weights", "initialize_weights", "_initialize_weights")
_OF_ADAPTERS = re.compile(r"reset_\w+_parameters")
_HF_MARK = "_is_hf_initialized"  # on a module: initialised, so skip it; on a parameter: loaded
_PACKS = "support_avx512bf16_for_cpu"  # of layers of bitsandbytes: whether calls in evaluation may pack their weights
_UNSET = 0.1234567  # value of random parameters until an initialiser writes them
_SMALLER, _LARGER, _FEWEST = 1 / 4, 8.0, 64  # bounds on ratios of root mean squares, and least number of elements
_ERRORS = 6  # standard errors by which root mean squares may differ by chance
_ERRORS_ONCE = 4  # the same of a network just made: taking it for another costs time alone, as its factory is at hand
_ADVICE = "Give Model a function that makes the network, or pass `start=` to fit."


class _Adapter(NamedTuple):
    """A PEFT layer wrapped around a layer of the network."""

    name: str
    module: nn.Module
    own: frozenset[int]  # identities of the parameters of its adapters
    resets: tuple[Callable[[], Any], ...]


class _Sizes(NamedTuple):
    """Root mean squares of a parameter."""

    name: str
    held: float  # in the network as it was given
    drawn: float  # after its initialisers

    def __str__(self) -> str:
        return (
            f"`{self.name}` has a root mean square of {self.held:.2g} in the network and {self.drawn:.2g} after its "
            f"initialisers, so its constructor initialises it in another way, or it was trained"
        )


def copied(module: nn.Module, instead: Mapping[int, Tensor] | None = None) -> nn.Module:
    """Return a copy of a module, which holds `instead[id(t)]` in the place of a tensor t.

    Its layers gather parameters that are split over processes, by FSDP or not, when they are called. Sparse buffers are
    cloned here, because torch cannot copy all of them in the usual way.
    """
    sparse = {id(b): b.clone() for b in module.buffers() if b.layout != torch.strided}
    return plainly_copied(module, {**sparse, **_settled(module), **(instead or {})})


def _settled(module: nn.Module) -> dict[int, Tensor]:
    """Return tensors, by identity, that quantised layers of bitsandbytes hold beside their parameters.

    Copies share these parameters, which their layers would change in a call. A layer of 8 bits takes numbers and scales
    from its parameter in its first call, and another copy would find none. So it takes them here. A layer of 4 bits
    may pack its parameter for a kernel of CPUs that passes no gradients. It may not do so any more.

    Raises SettingError if it has.
    """
    tables = {}
    for name, layer in module.named_modules():
        if callable(take := getattr(type(layer), "init_8bit_state", None)):
            if getattr(layer.weight, "CB", None) is not None:
                take(layer)
            tables |= {id(t): t for t in vars(layer.state).values() if isinstance(t, Tensor)}
        elif hasattr(layer, _PACKS):
            if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
                raise SettingError(
                    f"`{name}` was called in evaluation mode on a CPU, and bitsandbytes has packed its weights for a "
                    f"kernel without gradients. Load the network again, and give it to Model before it is called."
                )
            setattr(layer, _PACKS, False)
    return tables


def without_values(tensor: Tensor) -> bool:
    """Return whether a tensor has no values, on the meta device; subclasses of Tensor there may have some."""
    return tensor.is_meta and (type(tensor) in {Tensor, nn.Parameter} or is_sharded(tensor))


class Fresh(NamedTuple):
    """A network with fresh random parameters, and those whose magnitudes in the given module are others."""

    module: nn.Module
    odd_sizes: list[_Sizes]

    def warn(self) -> None:
        """Warn where magnitudes in the module differ from those that its initialisers give."""
        if self.odd_sizes:
            more = f" {len(self.odd_sizes)} parameters are like that." if len(self.odd_sizes) > 1 else ""
            warnings.warn(
                f"members start at what initialisers give: {self.odd_sizes[0]}.{more} {_ADVICE}", stacklevel=2
            )


def reinitialised(module: nn.Module, layout: Layout, loaded: Sequence[str] = (), *, device: torch.device) -> Fresh:
    """Return a copy of a module with fresh random parameters, drawn from the global generators.

    Parameters that are not random stay in the memory that they have. Initialisers may read them; what they would write
    to them is left out, and draws no numbers. Tensors on the meta device get memory on `device`, and values from
    initialisers alone. The magnitude of parameters in `loaded`, which come from a checkpoint, is not compared: it says
    nothing about initialisation.

    It raises ValueError if nothing initialises a random parameter or a buffer without values, an initialiser fails, or
    the magnitude of a parameter in the module is far from what its initialisers give.
    """
    constants = {identity: apart(same) for identity, same in borrowed(module, random_ids(module, layout)).items()}
    made = copied(module, {**_memory(module, device), **constants})
    for submodule in made.modules():
        submodule.__dict__.pop(_HF_MARK, None)
    random = random_ids(made, layout)
    with torch.no_grad(), ReadOnly({str(identity): tensor for identity, tensor in constants.items()}):
        for parameter in made.parameters():
            if id(parameter) in random:
                parameter.fill_(_UNSET)
        blank = _marked(module, made)
        adapters = [adapter for adapter in _adapters(made) if adapter.own & random]
        adapted = frozenset[int]().union(*(adapter.own for adapter in adapters))
        _initialise(made, random, random - adapted)
        for adapter in adapters:
            with _explained(adapter.name, adapter.module):
                for reset in adapter.resets:
                    reset()
        original, fresh = dict(module.named_parameters()), dict(made.named_parameters())
        compared = list[str]()
        if never := _still_marked(made, blank):
            raise ValueError(_unwritten(made, never[0]))
        for name in layout.names:
            if without_values(original[name]):
                continue
            if _is_constant(original[name]):
                fresh[name].copy_(original[name])
            elif (fresh[name] == fresh[name].new_tensor(_UNSET)).all():
                if original[name].numel() > 1:
                    raise ValueError(_unwritten(made, name))
                fresh[name].copy_(original[name])
            elif id(fresh[name]) not in adapted and name not in loaded:
                compared.append(name)
    differing = (_compared(name, original[name], fresh[name]) for name in compared)
    return Fresh(made, [sizes for sizes in differing if sizes is not None])


def drawn_alike(module: nn.Module, layout: Layout, *, device: torch.device) -> bool:
    """Return whether initialisers give all random parameters as the constructor, which just made the module, did.

    Root mean squares may differ by chance, and what is not constant in the module must not be so when it is drawn.
    """
    try:
        fresh = dict(reinitialised(module, layout, device=device).module.named_parameters())
    except ValueError:  # a parameter has no initialiser, or quite another one
        return False
    held = dict(module.named_parameters())
    return all(_alike(held[name], fresh[name]) for name in layout.names)


def random_ids(module: nn.Module, layout: Layout) -> frozenset[int]:
    """Return the identities of the random parameters, and of those that the module declares as computed from them.

    By identity, because tied parameters have one name and several owners.
    """
    names = {*layout.shapes, *getattr(module, "derived", ())}
    return frozenset(id(p) for n, p in module.named_parameters() if n in names)


def loaded(module: nn.Module, layout: Layout) -> tuple[str, ...]:
    """Return the random parameters that come from a checkpoint, as Hugging Face marks them."""
    named = plainly_named(module.named_parameters())
    return tuple(n for n, p in named.items() if n in layout.shapes and getattr(p, _HF_MARK, False))


def warn_of_loaded(names: Sequence[str]) -> None:
    """Warn that members start at fresh values of these parameters, which were loaded from a checkpoint."""
    if names:
        warnings.warn(
            f"{len(names)} of the random parameters were loaded from a checkpoint, such as `{names[0]}`, and members "
            f"start at fresh ones all the same. Pass `start=` the network to start at what it holds.",
            stacklevel=2,
        )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _memory(module: nn.Module, device: torch.device) -> dict[int, Tensor]:
    """Return tensors with memory for those on the meta device, by identity."""
    replacements = {
        id(t): (t, torch.empty_like(t, device=device)) for t in _tensors(module).values() if without_values(t)
    }
    return {
        i: nn.Parameter(m, requires_grad=False) if isinstance(t, nn.Parameter) else m
        for i, (t, m) in replacements.items()
    }


def _marked(module: nn.Module, made: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Return the tensors without values in `module`, marked in the copy `made`, and their versions, by name."""
    originals = _tensors(module)
    blank = {name: tensor for name, tensor in _tensors(made).items() if without_values(originals[name])}
    return {name: (tensor.fill_(_UNSET), tensor._version) for name, tensor in blank.items()}


def _still_marked(made: nn.Module, blank: Mapping[str, tuple[Tensor, int]]) -> list[str]:
    """Return the names of tensors that no initialiser wrote in place or through `.data`, or replaced by another."""
    now = _tensors(made)
    return [
        name
        for name, (tensor, version) in blank.items()
        if now[name] is tensor and tensor._version == version and (tensor == tensor.new_tensor(_UNSET)).all()
    ]


def _initialise(made: nn.Module, random: frozenset[int], plain: frozenset[int]) -> None:
    """Call the initialisers of parts and wholes; `plain` are the random parameters that no adapter owns."""
    for name, module in _bottom_up(made):
        below = frozenset(id(p) for p in module.parameters())
        reset, initialise = _method(module, _OF_PARTS, most=0), _method(module, _OF_WHOLES, most=1)
        with _explained(name, module):
            if reset is not None and below & random:
                reset()
            if initialise is not None and below & plain:
                module.apply(initialise) if _required(initialise) else initialise()


def _adapters(made: nn.Module) -> Iterator[_Adapter]:
    """Yield the layers of PEFT whose adapters have initialisers."""
    configurations = (getattr(module, "peft_config", None) for module in made.modules())
    settings: Mapping[str, Any] = next((config for config in configurations if isinstance(config, Mapping)), {})
    for name, module in made.named_modules():
        if hasattr(type(module), "adapter_layer_names"):
            base = getattr(module, "base_layer", None)
            wrapped = {id(p) for p in base.parameters()} if isinstance(base, nn.Module) else set[int]()
            of_adapters = frozenset(id(p) for p in module.parameters() if id(p) not in wrapped)
            if resets := tuple(_resets(module, settings)):
                yield _Adapter(name, module, of_adapters, resets)


def _resets(layer: Any, settings: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield a function for each adapter of a layer that initialises it as its configuration asks."""
    holders = (getattr(layer, name, None) for name in layer.adapter_layer_names)
    keys = {
        key: None for holder in holders if isinstance(holder, nn.ModuleDict | nn.ParameterDict) for key in [*holder]
    }
    for name in filter(_OF_ADAPTERS.fullmatch, dir(type(layer))):
        method = getattr(layer, name)
        first, *option_names = inspect.signature(method).parameters
        for key in keys:
            config = settings.get(key)
            options = {option: getattr(config, option) for option in option_names if hasattr(config, option)}
            if first == "adapter_name" and set(_required(method)) <= {first, *options}:
                yield partial(method, key, **options)
    for key in getattr(layer, "lora_magnitude_vector", ()):
        yield partial(reset_magnitudes, layer, key)  # last, as they follow from the factors


def _method(module: nn.Module, names: Sequence[str], *, most: int) -> Callable[..., Any] | None:
    """Return the first method of these names that needs `most` arguments or fewer.

    It is looked up on the class, because wrappers such as PEFT's pass on what they lack to the module inside.
    """
    for name in names:
        if callable(getattr(type(module), name, None)) and len(_required(getattr(module, name))) <= most:
            return getattr(module, name)
    return None


def _required(method: Callable[..., Any]) -> list[str]:
    """Return the names of a method's required arguments."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(method).parameters.items()
    return [
        name
        for name, parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in kinds
    ]


@contextmanager
def _explained(name: str, module: nn.Module) -> Iterator[None]:
    """Name the module whose initialiser fails inside the `with`."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"members cannot be initialised: the initialiser of `{name or 'the network'}` ({type(module).__name__}) "
            f"failed: {error}. {_ADVICE}"
        ) from error


def _is_constant(tensor: Tensor) -> bool:
    """Return whether all elements are equal; a single element counts only if it is 0."""
    return bool((tensor == tensor.flatten()[:1]).all()) if tensor.numel() != 1 else tensor.item() == 0


def _unwritten(made: nn.Module, name: str) -> str:
    """Return the message about a parameter that no initialiser has written."""
    owner, _, parameter = name.rpartition(".")
    return (
        f"members cannot be initialised: `{owner or 'the network'}` ({type(made.get_submodule(owner)).__name__}) owns "
        f"{parameter}, and no `reset_parameters` or `init_weights` writes it. {_ADVICE}"
    )


def _compared(name: str, held_tensor: Tensor, fresh: Tensor) -> _Sizes | None:
    """Return the magnitudes of a parameter in the module and freshly drawn, if they differ by more than chance.

    It raises ValueError if the parameter in the module is much larger or much smaller.
    """
    if held_tensor.ndim < 2 or held_tensor.numel() < _FEWEST:
        return None
    (held, held_error), (drawn, drawn_error) = _size(held_tensor), _size(fresh)
    if drawn == 0:
        return None
    sizes = _Sizes(name, held, drawn)
    if not _SMALLER <= held / drawn <= _LARGER:
        raise ValueError(f"members cannot be initialised: {sizes}. {_ADVICE}")
    return sizes if abs(math.log(held / drawn)) > _ERRORS * math.hypot(held_error, drawn_error) else None


def _alike(held_tensor: Tensor, fresh: Tensor) -> bool:
    """Return whether a parameter in the module is constant if its fresh values are, and as large but for chance."""
    if torch.equal(held_tensor, fresh):
        return True
    (held, held_error), (drawn, drawn_error) = _size(held_tensor), _size(fresh)
    if not held or not drawn or bool((fresh == fresh.flatten()[:1]).all()):
        return False
    return abs(math.log(held / drawn)) <= _ERRORS_ONCE * math.hypot(held_error, drawn_error)


def _size(tensor: Tensor) -> tuple[float, float]:
    """Return the root mean square of independent numbers, and the standard error of its logarithm.

    With kurtosis κ = E x⁴ / (E x²)² the error is √((κ − 1) / 4n), which is 1/√(2n) for normal numbers; a smaller κ
    counts as theirs, 3.
    """
    squares = tensor.double().square()
    mean = float(squares.mean())
    kurtosis = max(3.0, float(squares.square().mean()) / mean**2) if mean else 3.0
    return math.sqrt(mean), math.sqrt((kurtosis - 1) / (4 * tensor.numel()))


def _bottom_up(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    for child, inner in module.named_children():
        yield from _bottom_up(inner, f"{name}.{child}".lstrip("."))
    yield name, module
