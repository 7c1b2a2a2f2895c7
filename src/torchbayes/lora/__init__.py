"""Adapters of language models by one call: fit, evaluate, predict, and ask for labels."""

from torchbayes.acquisition.rounds import Round, Sizes
from torchbayes.lora.acquire import Study, acquire
from torchbayes.lora.answers import predict
from torchbayes.lora.methods import METHODS
from torchbayes.lora.run import Run, fit, load
from torchbayes.lora.scores import Score, score
from torchbayes.lora.settings import Settings

__all__ = [
    "METHODS",
    "Round",
    "Run",
    "Score",
    "Settings",
    "Sizes",
    "Study",
    "acquire",
    "fit",
    "load",
    "predict",
    "score",
]
