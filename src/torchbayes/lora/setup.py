"""A run with its base, adapter and questions loaded, and the model of each method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchbayes.adapters import LastToken
from torchbayes.lora.adapter import fresh, scales_of, trained, with_scales
from torchbayes.lora.asked import Asked, Encoding, read
from torchbayes.lora.base import Base, load_base, open_base
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
        asked: the questions.
    """

    settings: Settings
    base: Base
    network: Any
    asked: Asked

    @classmethod
    def load(cls, settings: Settings, *, trust: bool = False, members: int = 1) -> Setup:
        """Load a run: questions, tokenizer and weights, in this order, so that mistakes are said before much is read.

        Errors are those of what is loaded.
        """
        questions = read(settings)
        opened = open_base(settings, trust=trust)
        asked = Asked(settings, Encoding.of(opened, settings, questions.classes))
        base = load_base(opened, settings, length=asked.longest, members=members)
        network = fresh(base, settings) if settings.adapter is None else trained(base, settings.adapter)
        return cls(settings, base, network, asked)

    def network_of(self, method: str) -> Any:
        """Return the network whose adapters a method's weights are."""
        return self._scaled if METHODS[method].scaled else self.network

    def model(self, method: str) -> Model:
        """Return the model of a method, always the same one."""
        entry = METHODS[method]
        key = "" if entry.prior is None else method
        if key not in self._models:
            answers = LastToken(self.network_of(method), self.asked.encoding.answers)
            prior = entry.prior
            if prior is None:
                prior = {name: Normal(scale) for name, scale in scales_of(answers, self.settings.prior).items()}
            self._models[key] = Model(answers, Categorical(), prior, random=RANDOM)
        return self._models[key]

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


def words(setup: Setup) -> str:
    """Return in sentences what is adapted, on which layers, under which prior, and for how long."""
    settings, config = setup.settings, setup.network.peft_config["default"]
    targets = config.target_modules
    leaves = {name.rpartition(".")[2] for name in ([targets] if isinstance(targets, str) else targets)}
    size, questions = setup.model("map").layout.size, setup.asked.questions
    length = settings.length(len(questions.train))
    training = "Methods that train:" if settings.adapter and not settings.refine else "Training:"
    source = f"the adapter in {settings.adapter}" if settings.adapter else "a LoRA"
    return " ".join([
        f"{setup.base.name} with {source} of rank {config.r} and α = {config.lora_alpha:g} on",
        f"{', '.join(sorted(leaves))}: {size:,} weights.",
        f"{len(questions.train):,} questions to learn from and {len(questions.test):,} for the numbers.",
        f"{training} {length.steps:,} steps of {settings.batch_size} questions, learning rate {length.lr:.2g};",
        f"epochs: {length.epochs}. Prior: normal factors, by which each output of a layer moves by {settings.prior:g}",
        "(standard deviation) where its inputs are of size 1.",
    ])
