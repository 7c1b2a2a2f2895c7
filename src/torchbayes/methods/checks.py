"""Checks of settings that several methods share."""

from __future__ import annotations

from typing import Any

from torchbayes.checks import check_choice, check_counts, check_object, check_positive, check_share, given, plain, seen
from torchbayes.density.plans import BACKEND_NAMES

__all__ = ["check_counts", "check_plan", "check_positive", "check_schedule", "check_share", "check_training"]


def check_training(method: Any, *, flat: bool = False) -> None:
    """Check the settings that methods which train have in common, and turn its numbers into Python's.

    Args:
        method: the method.
        flat: whether its optimiser may be one that takes gradients elsewhere than at the weights, such as `SAM`.

    Raises:
        ValueError: if a number or the plan is invalid.
        TypeError: if the optimiser or the schedule is of another kind.
    """
    plain(method)
    own = vars(method)
    check_counts(members=method.members, batch_size=method.batch_size, **given(epochs=own.get("epochs")))
    if not flat and hasattr(method.optimizer, "rho"):
        raise TypeError(
            f"`optimizer` of {type(method).__name__} must take gradients where the method asks for them, as Adam() "
            f"does; got {seen(method.optimizer)}. Give its `base`, or take MAP, SWA, SWAG, FGE, Snapshots or MCDropout."
        )
    wanted = ("lr", "slots", "rule", "objective") if flat else ("lr", "slots", "update")
    check_object(wanted, "Adam()", optimizer=method.optimizer)
    check_plan(method.plan)
    if "schedule" in own:
        check_schedule(method.schedule)


def check_plan(plan: Any) -> None:
    """Check how the stack of members is run.

    Raises:
        ValueError: if there is no such backend.
    """
    check_choice(("auto", *BACKEND_NAMES), plan=plan)


def check_schedule(schedule: Any) -> None:
    """Check a schedule of learning rates.

    Raises:
        TypeError: if it is not one.
    """
    check_object(("factor",), "Cosine()", schedule=schedule)
