"""Checks of settings that several methods share."""

from __future__ import annotations

from typing import Any

from torchbayes.checks import check_choice, check_counts, check_object, check_positive, check_share, given, plain, seen
from torchbayes.density.plans import BACKEND_NAMES

__all__ = ["check_counts", "check_plan", "check_positive", "check_schedule", "check_share", "check_training"]


def check_training(method: Any, *, flat: bool = False) -> None:
    """Check the settings that methods which train have in common, and turn their numbers into Python's.

    With `flat` the optimiser may be one that takes gradients elsewhere than at the weights, such as `SAM`. Raises
    ValueError if a number or the plan is invalid, and TypeError if the optimiser or the schedule is of another kind.
    """
    plain(method)
    settings = vars(method)
    check_counts(members=method.members, batch_size=method.batch_size, **given(epochs=settings.get("epochs")))
    if not flat and hasattr(method.optimizer, "rho"):
        raise TypeError(
            f"`optimizer` of {type(method).__name__} must take gradients where the method asks for them, as Adam() "
            f"does; got {seen(method.optimizer)}. Give its `base`, or take MAP, SWA, SWAG, FGE, Snapshots or MCDropout."
        )
    attributes = ("lr", "slots", "rule", "objective") if flat else ("lr", "slots", "update")
    check_object(attributes, "Adam()", optimizer=method.optimizer)
    check_plan(method.plan)
    if "schedule" in settings:
        check_schedule(method.schedule)


def check_plan(plan: Any) -> None:
    """Raise ValueError unless there is such a backend for the stack of members."""
    check_choice(("auto", *BACKEND_NAMES), plan=plan)


def check_schedule(schedule: Any) -> None:
    """Raise TypeError unless it is a schedule of learning rates."""
    check_object(("factor",), "Cosine()", schedule=schedule)
