"""The page of a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchbayes.certificate.uniformity import envelope, uniformity
from torchbayes.report import Picture, Table
from torchbayes.report.html import Page, page
from torchbayes.report.style import FAINT, QUIET, house_style, legend_above, looks, new_figure, note_below
from torchbayes.report.words import capital

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 4  # curves, the worst


def page_of(certificate: Any) -> Page:
    """Return the certificate as a page: the checks, what they mean, and the ranks of the simulations."""
    drawn = [_picture(check) for check in certificate if check.curves]
    return page(
        title=f"Certificate: {certificate.grade}",
        lead="\n\n".join([
            *filter(None, [certificate.subject and f"{capital(certificate.subject)}."]),
            _lead(certificate),
        ]),
        tables=[check_table(certificate), _words(certificate)],
        figures=drawn,
    )


def check_table(certificate: Any) -> Table:
    """Return the table of the checks: grade, numbers and thresholds."""
    rows = [[check.name, check.grade, check.text or None, check.threshold or None] for check in certificate]
    return Table(
        ["check", "grade", "numbers", "graded by"],
        rows,
        "Each check with its numbers, of which the first is graded. What is not judged says nothing.",
        title="The checks",
    )


def _words(certificate: Any) -> Table:
    rows = [[check.name, check.meaning or None, check.remedy or None] for check in certificate]
    return Table(["check", "what it says", "what would change it"], rows, title="What they say")


def _lead(certificate: Any) -> str:
    judged = [check for check in certificate if check.grade != "not judged"]
    known = f"\n\nKnown problems of the posterior: {'; '.join(certificate.problems)}." if certificate.problems else ""
    if not judged:
        return "Nothing could be judged; the table says why." + known
    worst = [check.name for check in judged if check.grade == certificate.grade]
    worst = worst or ["its known problems"]
    said = {
        "green": "Nothing that was looked at speaks against this posterior.",
        "amber": f"Use it with care: {', '.join(worst)}.",
        "red": f"It should not be trusted as it is: {', '.join(worst)}.",
    }[certificate.grade]
    count = len(certificate.checks) - len(judged)
    left = f" {count} of {len(certificate.checks)} checks could not be made." if count else ""
    return f"The grade, the worst of {len(judged)} checks, is {certificate.grade}. {said}{left}{known}"


def _picture(check: Any) -> Picture:
    worst = sorted(check.curves, key=lambda name: uniformity(_column(check, name)).p_value)[:_SHOWN]
    count = len(check.curves[worst[0]])
    return Picture(
        "Ranks of known truths",
        _ranks({name: _column(check, name) for name in worst}, len(check.curves)),
        f"Share of {count} simulated truths with a rank of at most z, less z, for the {len(worst)} of "
        f"{len(check.curves)} quantities that are least uniform. Where posteriors are right, all lines stay inside the "
        f"band in 95 % of cases. Too narrow: above on the left, below on the right; shifted: on one side of 0.",
        alt=f"Lines of {', '.join(worst)} around a band that holds uniform ranks.",
    )


def _column(check: Any, name: str) -> torch.Tensor:
    return torch.tensor(check.curves[name], dtype=torch.float64)


@house_style
def _ranks(curves: dict[str, torch.Tensor], tests: int) -> Figure:
    count = len(next(iter(curves.values())))
    points, low, high = (column.numpy() for column in envelope(count, tests=tests))
    figure = new_figure(5.4, 3.5)
    axes = figure.subplots()
    band = axes.fill_between(points, low - points, high - points, color=FAINT, alpha=0.55, linewidth=0)
    axes.axhline(0, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)))
    grid = np.linspace(0, 1, 401)
    handles = {}
    for name, look in looks(curves).items():
        share = np.searchsorted(curves[name].sort().values.numpy(), grid, side="right") / count
        handles[name] = axes.plot(grid, share - grid, color=look.colour)[0]
    handles[f"uniform, 95 % of all {tests} together"] = band
    axes.set(xlim=(0, 1), ylabel="share of truths less z")
    note_below(figure, "rank of the truth among draws, z")
    legend_above(figure, handles)
    return figure
