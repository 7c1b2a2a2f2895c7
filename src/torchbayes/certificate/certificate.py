"""The contents of a certificate: its checks, each with a grade, its numbers, and what would change them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchbayes.display import Overview, shown
from torchbayes.posteriors.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from torchbayes.report import Page

Grade = Literal["green", "amber", "red", "not judged"]
GRADES: tuple[Grade, ...] = ("green", "amber", "red")
"""The grades of what is judged, the best first."""


@dataclass(frozen=True)
class Check:
    """One check of a posterior.

    Attributes:
        name: its name in `Budget.checks`.
        grade: "green", "amber", "red", or "not judged".
        numbers: name -> value; the first is the one that is graded.
        threshold: what is green, and what is red.
        meaning: what the numbers say; of a check that is not judged, why not.
        remedy: what would change the grade.
        curves: name -> ranks in (0, 1), (N,), that should be uniform; of the simulations.
    """

    name: str
    grade: Grade
    numbers: Mapping[str, float] = field(default_factory=dict)
    threshold: str = ""
    meaning: str = ""
    remedy: str = ""
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """The numbers, in words."""
        return ", ".join(f"{name} {value:.3g}" for name, value in self.numbers.items())


def _overview(certificate: Certificate) -> Overview:
    return Overview(
        f"Certificate: {certificate.grade}",
        {check.name: check.grade for check in certificate},
        header=("check", "grade", "numbers", "meaning"),
        rows=[(check.name, check.grade, check.text, check.meaning) for check in certificate],
        problems=certificate.problems,
    )


@shown(_overview)
@dataclass(frozen=True)
class Certificate:
    """How far a posterior can be trusted, check by check.

    Attributes:
        checks: the checks, in the order of the page.
        subject: what is judged, in a few words.
        problems: known problems of the posterior, one clause each; with one, nothing is green.
    """

    checks: tuple[Check, ...]
    subject: str = ""
    problems: tuple[str, ...] = ()

    @property
    def grade(self) -> Grade:
        """The worst grade of what was judged, and at best amber with a known problem; "not judged" if nothing was."""
        judged: list[Grade] = [check.grade for check in self.checks if check.grade != "not judged"]
        known: list[Grade] = ["amber"] if self.problems else []
        return worst(*judged, *known) if judged or known else "not judged"

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __getitem__(self, name: str) -> Check:
        """Return the check of a name; a KeyError if there is none."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"there is no check {name!r}; there are {', '.join(check.name for check in self.checks)}.")

    def frame(self) -> pd.DataFrame:
        """Return the checks as a pandas DataFrame, a row each: check, grade, numbers, threshold, meaning, remedy.

        Raises:
            ModuleNotFoundError: if pandas is not installed.
        """
        import pandas as pd

        columns = ("name", "grade", "numbers", "threshold", "meaning", "remedy")
        return pd.DataFrame({name: [getattr(check, name) for check in self.checks] for name in columns})

    def numbers(self) -> dict[str, Any]:
        """Return everything as JSON holds it; None for what is not finite."""
        checks = [asdict(check) for check in self.checks]
        summary = {"subject": self.subject, "grade": self.grade, "problems": list(self.problems)}
        return _plain({**summary, "checks": checks})

    def page(self) -> Page:
        """Return the certificate as one page, which needs no network and no other file."""
        from torchbayes.certificate.page import page_of

        return page_of(self)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the page to a file, and its numbers as JSON beside it.

        Args:
            path: the file, such as `certificate.html`.

        Returns:
            The path of the page.
        """
        page = self.page().save(Path(path))
        write_whole(page.with_suffix(".json"), (json.dumps(self.numbers(), indent=1) + "\n").encode())
        return page


def not_judged(name: str, why: str, remedy: str = "") -> Check:
    """Return a check that could not be made."""
    return Check(name, "not judged", meaning=why, remedy=remedy)


def worst(*grades: Grade) -> Grade:
    """Return the worst of some grades."""
    return max(grades, key=GRADES.index)


def graded(value: float, *, green: float, red: float) -> Grade:
    """Return the grade of a number of which less is better: up to `green`, up to `red`, or above."""
    return "green" if value <= green else "amber" if value <= red else "red"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
