"""An nn.Module as a pure function of flat weights: buffers, fresh initialisation and batch-norm policy.

The user's module is never written to. Parameters that are random (matched by the glob and with `requires_grad`) are
copied, and live in the flat vector; the others are constants, which stay in the module's memory. Modules without random
parameters below them always run in evaluation mode, so a frozen backbone keeps its batch-norm statistics and its
dropout stays off.

The random weights of a given module are kept, and so are those of a factory's network that is mostly constant. Weights
that another factory draws, or the initialisers of a module on the meta device, are drawn again on demand, so that a
large network takes no memory beside the members' weights.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # no public base class covers every batch norm

from torchbayes.checks import SettingError
from torchbayes.model.batches.batch import batch_size, on_rows, sent, tensors_of, unshared
from torchbayes.model.borrowed import Borrowed, borrowed
from torchbayes.model.functional_call import Held, functional_copy
from torchbayes.model.initialisation import copied, loaded, random_ids, warn_of_loaded, without_values
from torchbayes.model.layout import Layout, Random, RandomMask, is_random, names_of, only
from torchbayes.model.origin import Given, Origin, away, check_known, device_of, made_by, outweighed, places
from torchbayes.model.precision import Precision, widened
from torchbayes.model.wrappers import plainly_named
from torchbayes.native.process import as_the_program
from torchbayes.native.processes import LostRankError
from torchbayes.native.sharding import sharded, whole

Buffers = dict[str, Tensor]
"""name -> tensor; with a leading axis M or S where a function says so."""


class OutputsError(TypeError):
    """A network returns something that cannot be read as outputs."""


class Network:
    """A network as a function (weights, inputs, buffers) -> outputs.

    Attributes:
        layout: names and shapes of the random weights.
        shapes: names and shapes of the parameters that are random, in part or wholly.
        random: the globs or masks of random parameters, as given by the user.
        class_axis: which axis of the module's result becomes the last one of the outputs.
        precision: the dtypes of weights, inputs and parameters.
        mask: parameters of which only some elements are random.
        constants: name -> tensor of the parameters that are not random, in the memory of the given module.
        sharded: whether they are split over processes, which then must make the same calls in the same order.
        borrowed: what else is in its memory too, and whether it has changed since.
        buffers: name -> tensor of the buffers that training may change, as the given module holds them; none is sparse.
        batch_norms: names of the batch-norm layers whose statistics depend on random weights.
        by_batch: names of batch-norm layers without running statistics: they depend on the batch in evaluation too.
        convolutional: whether it convolves images.
        entry: the device of the first parameter, where inputs go; they are kept where the weights are.
        held: runs the module with other weights.
    """

    @torch.inference_mode(False)  # tensors made in that mode cannot be differentiated later
    def __init__(self, module: Given, random: Random = "*", *, class_axis: int = -1) -> None:
        """Copy what is random in the module, and lay it out.

        Args:
            module: a network, or a function without arguments that makes a freshly initialised one. All random
                parameters of a network may be on the meta device.
            random: glob or globs of the random parameters; or parameter -> bool mask of its random elements.
            class_axis: which axis of the module's result becomes the last one of the outputs.

        Raises:
            TypeError: if it is no module or factory of modules, cannot be copied, or has weights of unlike dtypes.
            ValueError: if no parameter is random, a parameter is not initialised yet, a mask does not fit, a constant
                has no values, or the network is split over processes in a way that is not supported.
        """
        factory = None if isinstance(module, nn.Module) else module
        self.class_axis, made = class_axis, made_by(module)
        named = _parameters(made)
        self.random, self.mask = random, RandomMask.of(named, random)
        chosen = _chosen(named, random)
        self.device = device_of(made, chosen, factory)
        self.entry = next((p.device for p in named.values() if not without_values(p)), self.device)
        self.precision = Precision.of(named, chosen, away(chosen, self.device))
        self.layout = Layout.of(chosen := self.mask.select(chosen))
        self.shapes = Layout.of(only(self.layout.names, named))
        kept = factory is None or outweighed(chosen, made)
        has_values = kept and not any(map(without_values, chosen.values()))
        self._held_D = self.layout.join({n: t.to(self.device) for n, t in chosen.items()}) if has_values else None
        random_parameters = random_ids(made, self.layout) | {id(named[name]) for name in self.layout.names}
        lent = borrowed(made, random_parameters)  # constants, which build no graph
        template = functional_copy(made, {**places(named, self.layout, self.mask, held_D=self._held_D), **lent})
        self.constants = {n: p for n, p in template.requires_grad_(False).named_parameters() if n not in chosen}
        self.sharded = bool(sharded(self.constants.items()))
        known = () if factory else loaded(made, self.layout)
        self._origin = Origin(factory, template, self.layout, self.mask, device=self.device, loaded=known, held=kept)
        live = _live_modules(template, self.layout)
        moving = [(n, b) for n, b in template.named_buffers() if b.layout == torch.strided]  # sparse ones stay
        self.buffers = {n: b.clone() for n, b in moving if n.rpartition(".")[0] in live}
        check_known(template, {*self.layout.names, *self.buffers} - self.mask.indices.keys())
        if any(map(without_values, self.buffers.values())):
            self.buffers = only([*self.buffers], self._origin.drawn()[1])
        self.batch_norms, self.by_batch = _norms(template, live)
        self.convolutional = any(isinstance(m, nn.Conv2d) for m in template.modules())
        self.borrowed = Borrowed.of(template, lent.values())
        self.held = Held(template.eval(), self.layout.names, live, shared=self.borrowed.tensors)

    @property
    def module(self) -> nn.Module:
        """A copy of the given module, one in each thread, read-only; its random parameters may be without memory."""
        return self.held.module

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.precision.weights

    @property
    def initial(self) -> dict[str, Tensor]:
        """Name -> random weights as the given module holds them, or as they are drawn again: not to be changed."""
        return self._origin.drawn()[0] if self._held_D is None else self.layout.split(self._held_D)

    def arrange(self, inputs: Any) -> Any:
        """Return equal inputs in the memory layout that is fastest: channels last where images are convolved."""
        return on_rows(_channels_last, inputs) if self.convolutional else inputs

    def weights(self) -> Tensor:
        """Return the random weights that the given module holds, or freshly drawn ones, as a new tensor (D,)."""
        weights_D = self.layout.join(self.initial) if self._held_D is None else self._held_D
        return weights_D.to(self.dtype, copy=self._held_D is not None)

    def __call__(self, weights: Tensor | Mapping[str, Tensor], inputs: Any, buffers: Buffers | None = None) -> Tensor:
        """Return the outputs f_w(x).

        Args:
            weights: flat vector (D,) or its named views.
            inputs: a tensor; a tuple becomes positional arguments, a mapping keyword arguments.
            buffers: buffers to use, changed in place by layers in training mode; the module's own if None.

        Returns:
            Tensor (B, ..., K), at least float32; (B,) is read as K = 1, objects with `.logits` are unpacked.

        Raises:
            OutputsError: if the network gives something other than a tensor or an object with `.logits`.
            ValueError: if batch norm is in training mode on one row, or as the network does.
        """
        try:
            state = self.ask(self.layout.split(weights) if isinstance(weights, Tensor) else weights, inputs, buffers)
            return outputs_in(self, state, inputs)
        except ValueError as error:
            _refuse_one_row(error, self.batch_norms)
            raise

    def ask(self, views: Mapping[str, Tensor], inputs: Any, buffers: Buffers | None = None) -> dict[str, Tensor]:
        """Return the state that the module holds in a call with these arguments.

        The first call in each mode finds out whether the module changes its inputs or buffers in place.
        """
        if self.borrowed.tensors and not torch.compiler.is_compiling():
            self.borrowed.check_versions()
        state = {**self.precision.cast(self.mask.fill(views)), **(self.buffers if buffers is None else buffers)}
        there = inputs if self.entry == self.device else sent(inputs, self.entry)
        effects = self.held.ask(state, there, device=self.device)
        if buffers is None and effects is not None:  # a call must not change the network's own buffers
            state.update({name: state[name].clone() for name in effects.written if name in self.buffers})
        return state

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which live modules run in training mode; the frozen part stays in evaluation."""
        return self.held.training()

    def fresh(self, seeds: Sequence[int]) -> tuple[Tensor, Buffers]:
        """Return freshly initialised random weights and buffers, one set per seed.

        They come from the factory, or else from the module's own initialisers (`torchbayes.model.initialisation`).

        Args:
            seeds: M seeds.

        Returns:
            weights (M, D), and buffers each with a leading axis M.

        Raises:
            ValueError: if the module cannot be initialised as by its constructor, or the factory's networks do not all
                have the same parameters.
        """
        warn_of_loaded(self._origin.loaded)
        weights_MD = torch.empty(len(seeds), self.layout.size, dtype=self.dtype, device=self.device)
        buffers_M = {name: buffer.new_empty(len(seeds), *buffer.shape) for name, buffer in self.buffers.items()}
        for m, seed in enumerate(seeds):
            weights, buffers = self._origin.drawn(seed, warn=m == 0)
            self.layout.join(weights, out=weights_MD[m])
            for name, buffer_M in buffers_M.items():
                buffer_M[m] = buffers[name]
        return weights_MD, buffers_M

    def stacked_buffers(self, count: int) -> Buffers:
        """Return `count` copies of the module's own buffers, each with a leading axis."""
        return {n: b.expand(count, *b.shape).clone() for n, b in self.buffers.items()}

    def recalibrate(
        self, weights: Tensor | Mapping[str, Tensor], batches: Iterable[Any], buffers: Buffers | None = None
    ) -> Buffers:
        """Return buffers whose batch-norm statistics are those of `batches` under these weights.

        Running means and variances become the averages over all batches, each weighted by its number of rows, as SWA
        needs (Izmailov et al. 2018). Only batch norm runs in training mode; dropout stays off.

        Args:
            weights: flat vector (D,) or its named views.
            batches: inputs of the training data, batch by batch.
            buffers: buffers to start from, not changed; the module's own if None.

        Returns:
            name -> tensor, without a leading axis.

        Raises:
            ValueError: if there is no batch.
        """
        buffers = {n: b.clone() for n, b in (buffers or self.buffers).items()}
        layers: list[Any] = [self.module.get_submodule(n) for n in self.batch_norms]
        momenta = [layer.momentum for layer in layers]
        views, num_rows = self.layout.split(weights) if isinstance(weights, Tensor) else weights, 0
        try:
            for layer in layers:
                layer.training = True
            with torch.no_grad():
                for inputs in batches:
                    num_rows += (size := batch_size(inputs))
                    for layer in layers:
                        layer.momentum = size / num_rows
                    with taking(inputs):
                        self(views, self.arrange(inputs), buffers)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
            self.module.eval()
        if not num_rows:
            raise ValueError("batch-norm statistics cannot be recalibrated without data; got no batch.")
        return buffers


def module_at(network: Network, weights_D: Tensor) -> nn.Module:
    """Return a copy of the network's module that holds these weights; all its parameters can be trained."""
    named, buffers = dict(network.module.named_parameters()), dict(network.module.named_buffers())
    views = network.mask.fill(network.layout.split(weights_D.detach()))
    parameters = {id(named[name]): nn.Parameter(view.to(named[name].dtype, copy=True)) for name, view in views.items()}
    moving = {id(buffers[name]): buffer.clone() for name, buffer in network.buffers.items()}
    return copied(network.module, {**parameters, **moving}).requires_grad_(True)


def _chosen(named: Mapping[str, Tensor], random: Random) -> dict[str, Tensor]:
    """Return the random parameters by name; ValueError if there is none."""
    trainable = {name: parameter.detach() for name, parameter in named.items() if parameter.requires_grad}
    chosen = {name: whole(tensor) for name, tensor in trainable.items() if is_random(name, random)}
    if not chosen:
        raise ValueError(
            f"no parameter is random: `random={names_of(random)!r}` matches none of the {len(trainable)} trainable "
            f"parameters ({_listed([*trainable])}). Widen the glob or unfreeze some."
        )
    return chosen


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


def outputs_in(network: Network, state: Mapping[str, Tensor], inputs: Any) -> Tensor:
    """Return the outputs, on the device of the weights, while the module holds the tensors of `state`."""
    inputs = inputs if network.entry == network.device else sent(inputs, network.entry)
    with network.precision.region(network.device), as_the_program():
        return outputs_of(network.held.run(state, inputs), network.class_axis).to(network.device)


def outputs_of(made: Any, class_axis: int) -> Tensor:
    """Return the outputs (B, ..., K) in a network's result."""
    outputs = widened(tensor_of(made))
    if class_axis != -1:  # a view, even where nothing moves, would hide the layer that made the outputs
        outputs = outputs.movedim(class_axis, -1)
    return outputs.unsqueeze(-1) if outputs.ndim == 1 else outputs


def tensor_of(made: Any) -> Tensor:
    """Return the tensor of outputs in a network's result: itself or its `logits`; OutputsError if there is none."""
    if isinstance(made, Tensor):
        return made
    logits = made.get("logits") if isinstance(made, Mapping) else getattr(made, "logits", None)
    if not isinstance(logits, Tensor):
        raise OutputsError(
            f"the network must return a tensor or an object with `.logits`; got an object of type "
            f"{type(made).__name__}. Wrap it in a module that returns one."
        )
    return logits


def _channels_last(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4 or not tensor.is_floating_point():
        return tensor
    # not `.to(memory_format=...)`: it leaves one-channel images as they are, and kernels then choose the slow layout
    return torch.empty_like(tensor, memory_format=torch.channels_last).copy_(tensor)


def _parameters(made: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a network by name; ValueError if there are none, or one is not initialised yet."""
    named = plainly_named(made.named_parameters())
    lazy = [n for n, p in named.items() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ValueError(f"`{lazy[0]}` is not initialised yet. Run one batch through the network first.")
    if not named:
        raise ValueError("the `network` has no parameters, so there is nothing to infer.")
    return named


def _live_modules(module: nn.Module, layout: Layout) -> frozenset[str]:
    """Return the names of the modules that follow training mode.

    A module is live if a parameter below it is random, or if it has no parameters and its parent is live.
    """
    random, live = random_ids(module, layout), set[str]()

    def visit(name: str, submodule: nn.Module, parent_live: bool) -> None:
        below = [id(p) for p in submodule.parameters()]
        is_live = any(p in random for p in below) if below else parent_live
        if is_live:
            live.add(name)
        for child_name, child in submodule.named_children():
            visit(f"{name}.{child_name}".lstrip("."), child, is_live)

    visit("", module, True)
    return frozenset(live)


def _norms(module: nn.Module, live: Container[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of norms with running statistics that follow training mode, and of batch norms without them."""
    norms = {n: m for n, m in module.named_modules() if isinstance(m, _NormBase)}
    moving = tuple(n for n, m in norms.items() if n in live and m.running_mean is not None)
    return moving, tuple(n for n, m in norms.items() if isinstance(m, _BatchNorm) and m.running_mean is None)


def refuse_by_batch(network: Network) -> None:
    """Raise ValueError if a row's outputs depend on the other rows, by batch norm without running statistics."""
    if network.by_batch:
        raise ValueError(
            f"`{network.by_batch[0]}` is a batch norm without running statistics, whose outputs depend on the batch in "
            f"evaluation too, so the weights have no density of their own. Use filter response norm or group norm."
        )


def _refuse_one_row(error: ValueError, batch_norms: Sequence[str]) -> None:
    """Raise SettingError in the place of an error that says that batch norm fails on one row."""
    if batch_norms and "more than 1 value per channel" in str(error):
        raise SettingError(
            f"`{batch_norms[0]}` is a batch norm, which takes statistics over the rows of a batch in training, and a "
            f"batch has one row. Give at least two: more data, or a larger `batch_size`; or use a norm within a row, "
            f"such as nn.GroupNorm or nn.LayerNorm."
        ) from error


class InputsError(ValueError):
    """A network cannot take inputs; a caller that passed only some of the rows reports it for all of them."""


@contextmanager
def taking(inputs: Any) -> Iterator[None]:
    """Turn a network's failure on `inputs` inside the `with` into InputsError.

    Lack of memory, a lost process, and OutputsError, where it takes the inputs but returns no outputs, pass through.
    """
    try:
        yield
    except (torch.OutOfMemoryError, OutputsError, LostRankError):
        raise
    except (RuntimeError, TypeError, IndexError, InputsError) as error:
        cause = error.__cause__ if isinstance(error, InputsError) else error
        shapes = on_rows(lambda t: tuple(t.shape), unshared(inputs))
        message = f"the network cannot take inputs of shape {shapes}: {str(cause).rstrip('.')}."
        if whole := {str(t.dtype) for t in tensors_of(inputs) if not t.is_floating_point() and not t.is_complex()}:
            message += (
                f" Some are {' and '.join(sorted(whole))}: if they are quantities and no indices, give `.float()`."
            )
        if isinstance(inputs, tuple | list):
            message += f" They are taken for {len(inputs)} arguments of its forward; give inputs without targets."
        raise InputsError(message) from cause
