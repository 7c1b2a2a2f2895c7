"""The steps of a method in the training loop of another program, as an optimiser of PyTorch.

    optimizer = tb.trainers.Optimizer(network, model, tb.IVON(epochs=3), num_data=N, steps_per_epoch=len(loader))
    for inputs, targets in loader:
        optimizer.zero_grad()
        with optimizer.at_gradient_point():
            loss_of(network(inputs), targets).backward()
        optimizer.step()
    posterior = optimizer.posterior()

The loop computes ∇ℓ, the gradient of the mean negative log likelihood of a minibatch, in p.grad. `step` makes the
gradient of the tempered log joint density of it, −N ∇ℓ + ∇log p(w) over T, and takes the method's own step. Everything
that `fit` would do with that gradient is done here by the same code: noise, preconditioner, schedule, draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from torchbayes.checks import SettingError, as_seed, check_counts, check_kind, seen
from torchbayes.driver.checkpoint import differences, flatten, mapped, restore
from torchbayes.driver.checks import check_method
from torchbayes.driver.run import MemoryShelf, Shard, describe_run
from torchbayes.health.ending import judged
from torchbayes.methods.protocol import Method, SingleGradient
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.trained import weights_of
from torchbayes.randomness.seeds import member_seeds
from torchbayes.trainers.checks import check_single, check_step, check_untouched, held_by, name_of, versions
from torchbayes.trainers.given import GivenGradient
from torchbayes.trainers.hooks import lightning_callback, trainer_callback

Result = TypeVar("Result", bound=Posterior)

_KIND = "torchbayes.trainers.Optimizer"
_WITHIN = (
    "put forward and backward pass in `with optimizer.at_gradient_point():`, or give the trainer "
    "`callbacks=[optimizer.trainer_callback()]`, of Lightning `lightning_callback()`"
)


@undisturbed_methods
class Optimizer(torch.optim.Optimizer, Generic[Result]):
    """An optimiser whose steps are those of a method, in a loop that computes the gradients.

    The network's random parameters hold the weights of the method: those of a chain, or the mean of a Gaussian. The
    rest of the network is not touched. Nothing else may change the parameters, the gradients or the `lr` of the group,
    which is 1, as the method has a schedule of its own.

    Attributes:
        model: network, likelihood and prior.
        method: whose steps are taken.
        num_data: N.
        steps_per_epoch: steps in a pass over the data.
        seed: of the noise.
        learned: parameters that the likelihood learns, by name, such as `log_scale`; the loss must depend on them.
    """

    def __init__(
        self,
        network: nn.Module,
        model: Model,
        method: Method[Result],
        *,
        num_data: int,
        steps_per_epoch: int,
        seed: int = 0,
    ) -> None:
        """Prepare for the first step; the weights are read from the network when that is taken.

        Args:
            network: the network that the loop trains, as the model was made of it; wrappers do no harm.
            model: network, likelihood and prior. With `random="*lora*"` only the adapters of PEFT move.
            method: SGLD, SGHMC or SGNHT with one chain, or IVON with one member and one draw.
            num_data: N: the loss is the mean negative log likelihood of a row of N. Where it is the mean over tokens,
                as of causal language models, the number of tokens that have a label.
            steps_per_epoch: steps of this optimiser in a pass over the data, not batches where gradients are
                accumulated. IVON takes `epochs` times as many.
            seed: seed of the noise. Processes that share the data need the same.

        Raises:
            ValueError: if the method has several members or takes several gradients in a step, does not suit the
                model, or the network is not the model's.
            TypeError: if an argument is of another kind.
        """
        check_kind(nn.Module, "the network that is trained", network=network)
        check_kind(Model, "a Model", model=model)
        check_method(method)
        check_counts(num_data=num_data, steps_per_epoch=steps_per_epoch)
        method.check(model)
        check_single(method)
        self.network, self.model, self.method = network, model, method
        self.num_data, self.steps_per_epoch, self.seed = num_data, steps_per_epoch, as_seed(seed)
        self._parameters, self._buffers = held_by(network, model)
        _, learned = model.split(model.given_weights())
        self.learned = {name: nn.Parameter(start.clone()) for name, start in learned.items()}
        super().__init__([*self._parameters.values(), *self.learned.values()], {"lr": 1.0})
        self._shelf = MemoryShelf(Shard(1))
        self._begin()

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._state.step

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.method.length(self.steps_per_epoch)

    @contextmanager
    def at_gradient_point(self) -> Iterator[None]:
        """Hold the network where the next step takes its gradient: forward and backward pass belong inside.

        For a sampler these are the weights of the chain, for IVON a draw from the Gaussian, which is the same until the
        step is taken: accumulate gradients in one block or in several. Afterwards the network is at the weights of the
        chain, or the mean, so that the loop evaluates and saves those.

        Yields:
            Nothing.

        Raises:
            SettingError: if something else has changed the parameters since the last step.
        """
        if not self._begun:  # anew, because the network may have been loaded or moved since this was made
            self._begin()
            self._begun = True
        check_untouched(self)
        point_MD = cast(SingleGradient, self.method).gradient_point(self._density, self._state)
        drawn = point_MD is not self._state.weights_MD
        if drawn:
            _write(self, point_MD)
        self._visited = True
        try:
            yield
        finally:
            if drawn:
                _write(self, self._state.weights_MD)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step of the method by the gradients in the parameters, and put its weights in the network.

        Args:
            closure: computes the gradients, as those of Lightning do.

        Returns:
            What the closure returns.

        Raises:
            SettingError: if there are no gradients, they were not taken at the gradient point, the run is over, or
                something else has changed the parameters or the `lr`; if dropout is on, for a sampler.
            DivergedError: if the gradients are not finite, for IVON at once, for a chain at the eighth time.
        """
        if not self._visited:
            raise SettingError(f"the gradients were not taken where {name_of(self)} takes them: {_WITHIN}.")
        with torch.enable_grad():
            loss = None if closure is None else closure()
        check_step(self)
        self._density.give(_gradient(self), {n: b.unsqueeze(0) for n, b in self._buffers.items()})
        self._state, _ = self.method.step(self._density, self._state, None, donate=True)
        if (draw_MD := self.method.draw(self._state)) is not None:
            self._shelf.add(draw_MD.to(self.model.network.device))
        for parameter in self.learned.values():  # a trainer that clears the network's gradients does not know these
            parameter.grad = None
        self._visited = False
        _write(self, self._state.weights_MD)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return state and draws in nested dictionaries, which `torch.load(weights_only=True)` reads."""
        return _packed(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Go on from what `state_dict` returned, and put its weights in the network.

        The run then equals one that was not interrupted.

        Args:
            state_dict: that of an optimiser with the same settings.

        Raises:
            ValueError: if it is that of another optimiser, or of other settings; nothing is changed then.
        """
        held, (density, fresh) = _checked(self, state_dict), _first(self)
        self._state, self._density, self._shelf = _restored(fresh, held), density, MemoryShelf(Shard(1))
        for draw_MD in held["draws"]:
            self._shelf.add(draw_MD.to(self.model.network.device))
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        self._begun, self._visited = self.steps > 0, False  # at step 0 it is the network's weights that count
        if self._begun:
            _write(self, self._state.weights_MD)

    def posterior(self, data: Any = None) -> Result:
        """Return the posterior of the steps so far; the loop can go on afterwards.

        Args:
            data: the training data, by which the result is judged, and batch norm recalibrated, as after `fit`. Without
                data nothing is checked.

        Returns:
            The posterior, of the type that `fit` returns.

        Raises:
            ValueError: if a sampler has no draws yet, or the data do not fit the model.
        """
        state = mapped(self._state, lambda tensor: tensor.to(self.model.network.device))
        posterior: Any = self.method.posterior(self._density, state, self._shelf)
        if data is None:
            return posterior
        source = as_source(self.model, data, self.method.needs.batch_size or 128)
        known, ending = source.check(training=True), self.method.ending(posterior, state)
        return judged(posterior.calibrated(source.inputs), ending, source, known=known)

    def trainer_callback(self) -> Any:
        """Return the callback that the Trainer of Hugging Face needs beside `optimizers=(optimizer, None)`.

        State and draws are in the checkpoints of the Trainer, as those of any optimiser.

        Raises:
            ImportError: if transformers is not installed.
            ValueError: in training, if the Trainer has another optimiser or length, clips gradients, changes the
                learning rate, or decays weights or smooths labels.
        """
        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """Return the callback that the Trainer of Lightning needs where `configure_optimizers` returns this optimiser.

        Raises:
            ImportError: if Lightning is not installed.
            ValueError: in training, if the Trainer has another optimiser or length, or clips gradients.
        """
        return lightning_callback(self)

    def _begin(self) -> None:
        """Begin at the weights that the network has now."""
        self._density, self._state = _first(self)
        self._begun, self._visited, self._versions = False, False, versions(self)


def _first(optimizer: Optimizer[Any]) -> tuple[GivenGradient, Any]:
    """Return a density for the steps, and the state before the first one, at the weights that the network has now."""
    model, learned = optimizer.model, optimizer.learned.values()
    optimizer._parameters, optimizer._buffers = held_by(optimizer.network, model)  # buffers are others once it is moved
    device = next(iter(optimizer._parameters.values())).device
    weights_D = weights_of(model, optimizer.network, "network").weights_D[: model.network.layout.size]
    weights_D = torch.cat([weights_D, *(parameter.detach().to(weights_D).flatten() for parameter in learned)])
    for parameter in learned:
        parameter.data = parameter.data.to(device)
    density = GivenGradient(model, optimizer.num_data)
    state = optimizer.method.init(
        density,
        weights_D.unsqueeze(0).to(device),
        {name: buffer.detach().unsqueeze(0).clone() for name, buffer in optimizer._buffers.items()},
        seeds=member_seeds(optimizer.seed, 1),
        steps_per_epoch=optimizer.steps_per_epoch,
    )
    return density, state


@torch.no_grad()
def _write(optimizer: Optimizer[Any], weights_MD: Tensor) -> None:
    """Put weights (1, D) in the network, and remember that nothing else has changed it since."""
    views, learned = optimizer.model.split(weights_MD[0])
    for name, view in optimizer.model.network.mask.fill(views).items():
        optimizer._parameters[name].copy_(view)
    for name, view in learned.items():
        optimizer.learned[name].copy_(view)
    optimizer._versions = versions(optimizer)


def _gradient(optimizer: Optimizer[Any]) -> Tensor:
    """Return the gradients in the parameters as one vector, (1, D); 0 where a minibatch does not reach one."""
    network, held = optimizer.model.network, optimizer._parameters
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in held.items()}
    joined_D = network.layout.join(network.mask.select({n: g.to(network.dtype) for n, g in gradients.items()}))
    learned: Any = [parameter.grad for parameter in optimizer.learned.values()]
    return torch.cat([joined_D, *(g.to(joined_D).flatten() for g in learned)]).unsqueeze(0)


def _description(optimizer: Optimizer[Any]) -> dict[str, Any]:
    """Return what identifies the run of an optimiser, as JSON has it."""
    description = describe_run(optimizer.model, optimizer, optimizer.method, seed=optimizer.seed, space=None)
    return json.loads(json.dumps(description, default=lambda setting: type(setting).__qualname__))


def _packed(optimizer: Optimizer[Any]) -> dict[str, Any]:
    """Return what `state_dict` returns; later steps do not change it."""
    tensors, numbers = flatten(optimizer._state)
    state = {
        "kind": _KIND,
        "run": json.dumps(_description(optimizer)),
        "tensors": {name: tensor.clone() for name, tensor in tensors.items()},
        "numbers": numbers,
        "draws": list(optimizer._shelf.draws),
    }
    groups = [{**group, "params": list(range(len(group["params"])))} for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def _checked(optimizer: Optimizer[Any], state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state in a state dict; SettingError if it is not one of this run."""
    held = state_dict.get("state") if isinstance(state_dict, Mapping) else None
    parts = {"run", "tensors", "numbers", "draws"}
    if not isinstance(held, Mapping) or held.get("kind") != _KIND or not parts <= held.keys():
        raise SettingError(f"this is not the state dict of a `tb.trainers.Optimizer`; got {seen(state_dict)}.")
    if clauses := differences(json.loads(held["run"]), _description(optimizer)):
        raise SettingError(
            f"the state dict belongs to another run: {'; '.join(clauses[:5])}. Make the optimiser as it was made then."
        )
    return held


def _restored(fresh: Any, held: Mapping[str, Any]) -> Any:
    """Return the method's state in a state dict, as copies; SettingError if it is not whole."""
    try:
        return restore(fresh, {n: t.clone() for n, t in held["tensors"].items()}, held["numbers"])
    except ValueError as error:
        raise SettingError(f"the state dict does not hold a state of this run: {error}. Save it again.") from error
