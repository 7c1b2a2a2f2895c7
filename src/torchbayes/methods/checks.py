"""Checks of the settings of methods."""

from __future__ import annotations

from typing import Any

from torchbayes.checks import check_choice, check_object, check_positive, seen
from torchbayes.density.plans import BACKEND_NAMES
from torchbayes.settings import check_settings, kinds_of


def check_method(method: Any) -> None:
    """Check the settings of a method by their annotations and names, and turn its numbers into Python's.

    Raises:
        ValueError: if a number, a word or the plan is invalid.
        TypeError: if the optimiser, the schedule or the weighting is of another kind.
    """
    check_settings(method)
    settings, kinds = vars(method), kinds_of(type(method))
    if "plan" in settings:
        check_choice(("auto", *BACKEND_NAMES), plan=method.plan)
    if "optimizer" in settings:
        _check_optimizer(method, any(hasattr(kind, "rho") for kind in kinds.get("optimizer", ())))
    if any(hasattr(kind, "factor") for kind in kinds.get("schedule", ())):
        check_object(("factor",), "Cosine()", schedule=method.schedule)
    weight = settings.get("kl_weight")
    if isinstance(weight, int | float):
        check_positive(kl_weight=weight)
    elif weight is not None:
        check_object(("at",), "1.0 or WarmUp()", kl_weight=weight)


def _check_optimizer(method: Any, sharp: bool) -> None:
    """Check the optimiser; only where it may be `SAM`, by its annotation, may it take gradients beside the weights."""
    if not sharp and hasattr(method.optimizer, "rho"):
        raise TypeError(
            f"`optimizer` of {type(method).__name__} must take gradients where the method asks for them, as Adam() "
            f"does; got {seen(method.optimizer)}. Give its `base`, or take MAP, SWA, SWAG, FGE, Snapshots or MCDropout."
        )
    wanted = ("lr", "slots", "rule", "objective") if sharp else ("lr", "slots", "update")
    check_object(wanted, "Adam()", optimizer=method.optimizer)
