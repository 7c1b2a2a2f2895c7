"""A run with its base, adapter and questions loaded, and the model of each method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from torchbayes.adapters import LastToken
from torchbayes.lora.adapter import fresh, scales_of, trained, with_scales
from torchbayes.lora.asked import Encoding, Questions, read
from torchbayes.lora.base import Base, load_base
from torchbayes.lora.methods import METHODS
from torchbayes.lora.settings import Settings
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.model import Model
from torchbayes.model.priors import Normal
from torchbayes.posteriors import Point

RANDOM = "*lora_*"


@dataclass(frozen=True)
class Setup:
    """Base, adapter and questions.

    Attributes:
        settings: what they are loaded by.
        base: the frozen language model.
        network: the base with the adapter, fresh or trained before.
        encoding: how questions become tokens.
    """

    settings: Settings
    base: Base
    network: Any
    encoding: Encoding

    @classmethod
    def load(cls, settings: Settings, *, trust: bool = False, members: int = 1) -> Setup:
        """Load a run; the questions first, because they are read in no time. Errors are those of what is loaded."""
        questions = read(settings)
        base = load_base(settings, trust=trust, members=members)
        network = fresh(base, settings) if settings.adapter is None else trained(base, settings.adapter)
        setup = cls(settings, base, network, Encoding.of(base.tokenizer, settings, questions.classes))
        _ = setup.train, setup.test, setup.other  # a prompt that is too long is an error before anything is trained
        return setup

    def network_of(self, method: str) -> Any:
        """Return the network whose adapters a method's weights are."""
        return self._scaled if METHODS[method].scaled else self.network

    def model(self, method: str) -> Model:
        """Return the model of a method, always the same one."""
        entry = METHODS[method]
        key = "" if entry.prior is None else method
        if key not in self._models:
            answers = LastToken(self.network_of(method), self.encoding.answers)
            prior = entry.prior
            if prior is None:
                prior = {name: Normal(scale) for name, scale in scales_of(answers, self.settings.prior).items()}
            self._models[key] = Model(answers, Categorical(), prior, random=RANDOM)
        return self._models[key]

    @cached_property
    def questions(self) -> Questions:
        """The questions by what they are for."""
        return read(self.settings)

    @cached_property
    def train(self) -> dict[str, Tensor]:
        """The training questions as tensors."""
        with _of(self.settings.data):
            return self.encoding.rows(self.questions.train)

    @cached_property
    def test(self) -> dict[str, Tensor]:
        """The test questions as tensors."""
        with _of(self.settings.test or self.settings.data):
            return self.encoding.rows(self.questions.test)

    @cached_property
    def other(self) -> dict[str, Tensor] | None:
        """The questions of another kind as tensors, without answers; None if there are none."""
        if self.settings.other is None:
            return None
        with _of(self.settings.other):
            return self.encoding.inputs(self.questions.other)

    def without_adapter(self) -> Point:
        """Return the base as a posterior, in which the adapter does nothing: every B is 0."""
        model = self.model("map")
        weights_D = model.given_weights().clone()
        for name, where in model.layout.slices.items():
            if "lora_B" in name or "lora_embedding_B" in name:
                weights_D[where] = 0
        return Point(model, weights_D.unsqueeze(0))

    @cached_property
    def _models(self) -> dict[str, Model]:
        return {}

    @cached_property
    def _scaled(self) -> Any:
        return with_scales(self.network)


@contextmanager
def _of(path: str) -> Iterator[None]:
    """Say in which file a question stands that cannot be used."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error


def words(setup: Setup) -> str:
    """Return in sentences what is adapted, on which layers, under which prior, and for how long."""
    settings, config = setup.settings, setup.network.peft_config["default"]
    targets = config.target_modules
    layers = ", ".join(sorted(targets)) if isinstance(targets, set | list | tuple) else str(targets)
    size, held = setup.model("map").layout.size, len(setup.questions.test)
    length = settings.length(len(setup.questions.train))
    source = f"the adapter in {settings.adapter}" if settings.adapter else "a LoRA"
    return (
        f"{setup.base.name} with {source} of rank {config.r} and α = {config.lora_alpha:g} on {layers}: {size:,} "
        f"weights. {len(setup.questions.train):,} questions to learn from and {held:,} for the numbers. Training: "
        f"{length.epochs} epochs, {length.steps:,} steps of {settings.batch_size} questions, learning rate "
        f"{length.lr:.2g}. Prior: normal factors, by which each output of a layer moves by {settings.prior:g} "
        f"(standard deviation) where its inputs are of size 1."
    )
