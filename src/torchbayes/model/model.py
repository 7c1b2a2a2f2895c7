"""Model: network + likelihood + prior + which weights are random + temperature.

The one place where a log joint density is computed, on the scale of the full data:

    log p_T(w, D) = [ (N/B) Σ_{b in batch} log p(y_b | f_w(x_b)) + log p(w) ] / T

With `tempering="likelihood"` only the likelihood is divided by T (Wenzel et al. 2020 discuss both).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from torchbayes.checks import (
    check_choice,
    check_counts,
    check_flags,
    check_function,
    check_positive,
    is_whole,
    optional,
    seen,
)
from torchbayes.model.batches.batch import (
    Batch,
    Shared,
    check_equally_many,
    check_outputs,
    check_rows,
    default_batch,
    is_unlabelled,
    moved,
    only_inputs,
    tensors_of,
    with_shared,
)
from torchbayes.model.layout import Layout, Random
from torchbayes.model.likelihoods import Likelihood, Parameters
from torchbayes.model.likelihoods.categorical import check_possible
from torchbayes.model.likelihoods.custom import as_likelihood
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.network import Buffers, Network, taking
from torchbayes.model.precision import Autocast
from torchbayes.model.priors.axes import axes_of
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.univariate import Normal, PriorRules
from torchbayes.model.sequences import Labels

PREFIX = "likelihood."
Hook = Callable[[Any], tuple[Any, Any]]


class Scales(NamedTuple):
    """Factors of log p(y|f) and log p(w) in the tempered log joint density on the full-data scale."""

    likelihood: float
    prior: float


class Model:
    """p(y | f_w(x)) p(w): network, likelihood and prior, before any inference.

    Attributes:
        network: the network as a pure function.
        likelihood: p(y | f).
        layout: names and shapes of all random weights: the network's, then `likelihood.*`.
        prior: the prior resolved on the layout.
        open_scale: σ of the prior N(0, σ²) where none was given, so that a method may choose it; else None.
        temperature: T > 0.
        tempering: `"joint"` divides likelihood and prior by T, `"likelihood"` the likelihood alone.
        shared: inputs that belong to all rows, by key or place.
        coupled: whether rows depend on each other.
        chunk_size: most rows that go through the network at once; None if methods and verbs alone say so.
        autocast: dtype of the network's products where it is fitted and predicts; None for the network's own.
    """

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        likelihood: Likelihood | Callable[[Tensor], Distribution],
        prior: PriorRules | Joint | None = None,
        *,
        random: Random = "*",
        temperature: float = 1.0,
        tempering: Literal["joint", "likelihood"] = "joint",
        batch: Hook | None = None,
        shared: str | int | Sequence[str | int] = (),
        coupled: bool = False,
        chunk_size: int | None = None,
        autocast: Autocast | None = None,
    ) -> None:
        """Put network, likelihood and prior together.

        Args:
            network: any nn.Module (never written to), or a function that builds a fresh one. Give a function if
                several members are fitted and the constructor draws weights in a way that the modules' own initialisers
                do not. The weights of a function, or of a module on the meta device, take no memory beside the
                members'. A network that changes its inputs in place gets copies. What is not random stays in its
                memory, and must not change later; a function that makes mostly such weights is called once.
            likelihood: one of `torchbayes.likelihoods`, or a function from outputs to a torch Distribution.
            prior: one prior for all weights, a mapping glob -> prior, or a joint prior over all weights. None leaves it
                open: it is N(0, 1), but samplers on minibatches without a given step size may choose a smaller scale on
                held-out rows. To compare methods, give a prior.
            random: glob or globs of the network's random parameters, such as `"head.*"`; the others are constants. Or
                parameter -> bool mask of its random elements, as `subnetwork` gives.
            temperature: T of the tempered posterior; 1 is the Bayes posterior.
            tempering: what T divides.
            batch: turns what a loader yields into (inputs, targets); the default takes tuples and mappings. With the
                default, labels (B, T) of tokens (B, T) move one place forward if the network's own loss does so, as in
                causal language models, unless they are already one place ahead of the tokens; the likelihood then needs
                an `ignore_index` for the last place.
            shared: inputs without an axis of rows, which belong to all rows (a table of context, the edges of a graph):
                keys of a mapping, or positions in a tuple. All other inputs must have the same number of rows.
            coupled: whether rows depend on each other, as under a partial likelihood, a contrast within a batch or
                attention between rows. Then all rows go through the network at once, whatever `chunk_size` is, and
                methods that take rows one by one or in parts are refused. A likelihood may say so by `coupled = True`.
            chunk_size: most rows that go through the network at once, whatever a method or verb says. A minibatch of
                more goes through in parts whose gradients are added. None leaves minibatches whole.
            autocast: dtype of the network's products where it is fitted and predicts, under `torch.autocast`; weights,
                gradients and likelihood are in float32. None for the network's own.

        Raises:
            ValueError: if the temperature is not positive, prior globs and parameters do not match up, coupled rows
                are to go through in chunks, or the weights are in float64 under autocast.
            TypeError: if network, likelihood or prior are of another kind, such as a class in the place of an object.
        """
        check_positive(temperature=temperature)
        check_choice(("joint", "likelihood"), tempering=tempering)
        optional(check_function, "a function that returns (inputs, targets)", batch=batch)
        self.likelihood = as_likelihood(likelihood)
        axis = getattr(unweighted(self.likelihood), "class_axis", -1)
        self.network = Network(network, random, class_axis=axis)
        self.network.precision = self.network.precision.under(autocast, self.network.device)
        self.autocast: Autocast | None = autocast
        self.open_scale = 1.0 if prior is None else None
        self._bind(Normal() if prior is None else prior)
        self.temperature, self.tempering = float(temperature), tempering
        self.shared = _names_of_shared(shared)
        self.coupled, self.chunk_size = _rows_at_once(self.likelihood, coupled, chunk_size)
        self._hook = batch
        self._labels = Labels(self.network)

    def _bind(self, rules: PriorRules | Joint) -> None:
        """Lay out the weights of the network and the likelihood's parameters, and resolve prior rules on them."""
        self._learned = self.likelihood.parameters()
        self.layout = self.network.layout + Layout({PREFIX + n: p.shape for n, p in self._learned.items()})
        axes = axes_of(self.network.module, self.network.layout.names)
        learned_priors = {PREFIX + n: p.prior for n, p in self._learned.items()}
        self.prior = BoundPrior(self.layout, rules, axes=axes, named_priors=learned_priors)

    def unpack(self, batch: Any) -> Batch:
        """Return what a loader yields as a `Batch` on the network's device, floating inputs in its dtype.

        Args:
            batch: a tuple (inputs, targets), a mapping with `labels` or `targets`, or what the model's hook takes.

        Raises:
            ValueError: if tensors differ in their number of rows, or labels are misaligned with their tokens.
        """
        inputs, targets = (self._hook or default_batch)(batch)
        rows = Batch(self.place(inputs), self.place(targets, "targets"))
        check_equally_many(rows)
        if self._hook is not None:
            return rows
        return self._labels.placed(rows, self.likelihood)

    def place(self, rows: Any, role: Literal["inputs", "targets"] = "inputs") -> Any:
        """Return inputs or targets as tensors on the network's device, floating-point ones in its dtype.

        Inputs that all rows share are wrapped in `Shared`.

        Raises:
            ValueError: if tensors differ in their number of rows, one in `shared` is missing, or constants changed.
        """
        if self.network.borrowed.tensors:
            self.network.borrowed.check()
        rows = dict(rows) if isinstance(rows, Mapping) else rows
        tree = with_shared(rows, self.shared) if role == "inputs" else rows
        precision = self.network.precision
        dtype = precision.inputs if role == "inputs" else precision.weights
        placed = moved(tree, self.network.device, dtype)
        check_rows(tree, role)
        return placed

    def scales(self, num_data: int, rows: int) -> Scales:
        """Return the factors of Σ log p(y|f) over B = `rows` rows and of log p(w) in the log joint density of N rows.

        N is `num_data`.
        """
        return Scales(
            num_data / rows / self.temperature, 1.0 if self.tempering == "likelihood" else 1 / self.temperature
        )

    def split(self, weights: Tensor | Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Parameters]:
        """Return the network's named views of `weights` (..., D), or of views already named, and the likelihood's."""
        views = self.layout.split(weights) if isinstance(weights, Tensor) else dict(weights)
        learned = {n: views.pop(PREFIX + n) for n in self._learned}
        return views, learned

    def log_likelihood(
        self, weights: Tensor | Mapping[str, Tensor], batch: Batch | tuple[Any, Any], buffers: Buffers | None = None
    ) -> Tensor:
        """Return log p(y_b | f_w(x_b)) of each row, in nats, untempered.

        Args:
            weights: one flat vector (D,) or its named views.
            batch: B rows.
            buffers: buffers of the network; its own if None.

        Returns:
            Tensor (B,).
        """
        batch = batch if isinstance(batch, Batch) else self.unpack(batch)
        views, learned = self.split(weights)
        return self.likelihood.log_prob(self.network(views, batch.inputs, buffers), batch.targets, learned)

    def log_prior(self, weights: Tensor) -> Tensor:
        """Return log p(w), shape (...) for weights (..., D), in nats, untempered."""
        return self.prior.log_prob(weights)

    def log_joint(self, weights: Tensor, batch: Batch | tuple[Any, Any], num_data: int) -> Tensor:
        """Return the tempered log joint density estimated from one batch: the definition that all methods share.

        Args:
            weights: one flat vector (D,).
            batch: B rows.
            num_data: N; the batch's log likelihood is multiplied by N/B.

        Returns:
            Scalar tensor, in nats, differentiable in the weights.
        """
        batch = batch if isinstance(batch, Batch) else self.unpack(batch)
        # without the wrapper, the rows of shared inputs could be counted as rows of data
        batch = batch._replace(inputs=with_shared(batch.inputs, self.shared))
        scale = self.scales(num_data, batch.size)
        return scale.likelihood * self.log_likelihood(weights, batch).sum() + scale.prior * self.log_prior(weights)

    def starting_weights(self, seeds: Sequence[int]) -> tuple[Tensor, Buffers]:
        """Return freshly initialised weights (M, D) and buffers (M, ...), one member per seed."""
        weights, buffers = self.network.fresh(seeds)
        return with_learned(self, weights), buffers

    def given_weights(self) -> Tensor:
        """Return the weights of the given network, (D,), with learned likelihood parameters at their initial values."""
        return with_learned(self, self.network.weights().unsqueeze(0))[0]

    def check(self, batch: Batch | tuple[Any, Any]) -> Tensor:
        """Return the outputs for one batch (B, ...), after checking that it fits network and likelihood.

        The shape of later batches can be checked against these outputs.

        Args:
            batch: rows, as `unpack` takes or gives them.

        Raises:
            ValueError: if there are no rows, inputs are not finite, rows and targets differ in number, the network
                cannot take the inputs, or the targets cannot come from its outputs. One sentence says which.
        """
        return _fitting(self, batch if isinstance(batch, Batch) else self.unpack(batch))


def _fitting(model: Model, batch: Batch) -> Tensor:
    """Return the outputs for a batch that fits the model, as `Model.check` does."""
    if batch.size == 0:
        raise ValueError("the data are empty: a batch has no rows. Check the loader or the filter before it.")
    check_equally_many(batch)
    check_finite(batch.inputs)
    with torch.no_grad(), taking(batch.inputs):
        outputs = model.network(model.network.initial, batch.inputs)
        check_outputs(partial(model.network, model.network.initial), batch.inputs, outputs)
    model.likelihood.check(outputs, batch.targets)
    check_possible(model.likelihood, outputs, batch.targets)
    return outputs


def unpack_inputs(model: Model, batch: Any) -> Batch:
    """Turn a batch that may have no targets into a `Batch`, whose targets are then None.

    A tensor, a list or tuple of one tensor, or a mapping without targets is inputs alone.
    """
    if model._hook is not None or not is_unlabelled(batch):
        return model.unpack(batch)
    return Batch(model.place(only_inputs(batch)), None)


def place_inputs(model: Model, inputs: Any) -> Any:
    """Return inputs as `Model.place` does, dropping targets that a mapping holds beside them."""
    return model.place(only_inputs(inputs) if isinstance(inputs, Mapping) and model._hook is None else inputs)


def ready(model: Model, batch: Batch, *, members: bool = False) -> Batch:
    """Return a batch, possibly made by hand, in the form that `unpack` gives; inputs that all rows share are wrapped.

    It raises SettingError if the labels of a causal language model are the tokens themselves, not shifted. With
    `members`, each member has its own rows (M, B, ...).
    """
    wrapped = batch._replace(inputs=with_shared(batch.inputs, model.shared))
    if model._hook is None:
        model._labels.check(wrapped.map(lambda t: t[0]) if members else wrapped, model.likelihood)
    return wrapped


def having(
    model: Model,
    *,
    network: Network | None = None,
    prior: PriorRules | Joint | None = None,
    likelihood: Likelihood | None = None,
) -> Model:
    """Return a model with another network, prior or likelihood; everything else is shared, not copied.

    A new network needs a new prior too. A new likelihood must learn the same parameters, else ValueError.
    """
    other = copy.copy(model)
    if likelihood is not None:
        if likelihood.parameters().keys() != model.likelihood.parameters().keys():
            raise ValueError("the other likelihood must learn the same parameters.")
        other.likelihood = likelihood
    if network is not None:
        other.network = network
    if prior is not None:
        other.open_scale = None
    other._bind(model.prior.rules if prior is None else prior)
    return other


def having_scale(model: Model, scale: float) -> Model:
    """Return a model whose prior was left open with the prior N(0, scale²), still open; ValueError if one was given."""
    if model.open_scale is None:
        raise ValueError("the prior of this model was given; its scale is not open.")
    other = having(model, prior=Normal(scale))
    other.open_scale = scale
    return other


def _rows_at_once(likelihood: Likelihood, coupled: bool, chunk_size: int | None) -> tuple[bool, int | None]:
    """Return whether rows are coupled, and how many go through the network at once; ValueError if these disagree."""
    check_flags(coupled=coupled)
    optional(check_counts, chunk_size=chunk_size)
    coupled = coupled or bool(getattr(unweighted(likelihood), "coupled", False))
    if coupled and chunk_size is not None:
        raise ValueError(
            f"the rows of this model are coupled, so that all must go through the network at once; got `chunk_size` "
            f"{chunk_size}. Leave it out."
        )
    return coupled, chunk_size


def _names_of_shared(shared: Any) -> tuple[str | int, ...]:
    """Return keys and positions of inputs that all rows share, once their types are checked (no booleans)."""
    names = (shared,) if isinstance(shared, str | int) else shared
    if not isinstance(names, Sequence) or not all(isinstance(name, str) or is_whole(name) for name in names):
        raise TypeError(f"`shared` must be keys of a mapping of inputs, or places in a tuple; got {seen(shared)}.")
    return tuple(name if isinstance(name, str) else int(name) for name in names)


def with_learned(model: Model, weights_MD: Tensor) -> Tensor:
    """Return weights of the network followed by the likelihood's learned parameters, at their initial values."""
    extra = [p.start().to(weights_MD).flatten().expand(len(weights_MD), -1) for p in model._learned.values()]
    return torch.cat([weights_MD, *extra], dim=1) if extra else weights_MD


def having_learned(weights_MD: Tensor, learned: Sequence[float] | Tensor) -> Tensor:
    """Return weights with these learned parameters of the likelihood, (P,), for all members."""
    learned_MP = torch.as_tensor(learned).to(weights_MD).expand(len(weights_MD), -1)
    return torch.cat([weights_MD[:, : -learned_MP.shape[1]], learned_MP], dim=1)


def check_finite(inputs: Any) -> None:
    """Raise ValueError if a floating tensor of `inputs` has NaN or infinite values.

    Infinite values are allowed in inputs that all rows share, because additive attention masks hold -inf.
    """
    for leaf in pytree.tree_leaves(inputs):
        shared = isinstance(leaf, Shared)
        for tensor in filter(torch.is_floating_point, tensors_of(leaf)):
            if bool(tensor.sum().isfinite()):  # a finite sum has finite terms, and needs no mask as large as the data
                continue
            wrong = torch.isnan(tensor) if shared else ~torch.isfinite(tensor)
            if wrong.any():
                must, kind = ("not be NaN", "NaN") if shared else ("be finite", "NaN or infinite")
                do = "Check what all rows share" if shared else "Remove or impute those rows"
                raise ValueError(f"inputs must {must}; {int(wrong.sum())} of {tensor.numel()} values are {kind}. {do}.")
