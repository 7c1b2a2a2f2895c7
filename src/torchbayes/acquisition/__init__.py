"""Active learning: which rows to label next, and how much sooner predictions get good than with rows at random."""

from torchbayes.acquisition.acquire import Acquired, acquire

__all__ = ["Acquired", "acquire"]
