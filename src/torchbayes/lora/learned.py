"""What predicts for a posterior over adapters, and whether it has learned anything from its questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.lora.settings import Settings
from torchbayes.predictive.linearised import Linearised

_SAMPLES = 1000  # outputs of a linearised network, which cost no pass
_MOST, _FEWEST = 100, 10  # questions; `fit` itself judges results on more, and of fewer nothing can be said


def source_of(posterior: Any, draws: int, *, seed: int = 0) -> Any:
    """Return what predicts for a posterior: drawn functions, or outputs of the linearised network for Laplace.

    Drawn are `draws` functions, rounded up to a multiple of the members; of trained networks each one, once.
    """
    if posterior.of_linearised:
        return Linearised(posterior, "samples", samples=_SAMPLES, seed=seed)
    members = posterior.members
    single = posterior.default_draws == members  # each member is a network
    return posterior.functions(members if single else -(-draws // members) * members, seed=seed)


def problems_of(posterior: Any, train: Mapping[str, Tensor], settings: Settings) -> list[str]:
    """Return the problem of a posterior whose average answers its few training questions no better than a constant.

    The constant says how often each answer is right among them. A gain of less than a nat over all questions is none:
    it is twice what a superfluous parameter gains.
    """
    labels = train["labels"]
    if not _FEWEST <= len(labels) < _MOST:
        return []
    source = source_of(posterior, settings.draws, seed=settings.seed)
    seen_B = evaluate(source, train, chunk_size=settings.chunk_size).log_prob.double().cpu()
    constant_B = (labels.cpu().bincount().double() / len(labels)).log()[labels.cpu()]
    if float((seen_B - constant_B).sum()) >= 1:
        return []
    return [
        f"the answers to its own {len(labels)} training questions are no more likely than by how often each is right "
        f"({float(seen_B.mean()):.3g} against {float(constant_B.mean()):.3g} nats a question), so that nothing was "
        f"learned (train longer, by `epochs`, or give more questions)"
    ]
