"""Verdict and tables of `flat_regions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Table
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.flat_regions import pictures
from torchbayes_experiments.flat_regions.recipe import END, FILTERS, MATCHED, RAW
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

Results = Sequence[Mapping[str, Any]]

NONE = 1e-9  # share of mistakes that counts as none
LEVELS = 1.05  # the largest loss on the clean rows may be so many times the smallest
SPREAD = 0.3  # by which the test error of the worst network must exceed that of the best
ORDERS = 1000.0  # of magnitude, between the volumes of the best and the worst
RANK = 0.9  # correlation of ranks that is called monotone
FALL = 0.75  # test loss of the widest network, in units of the largest over widths
FEWEST = 4.5  # widths that fit their rows, of which ranks are compared, must be more
TOGETHER = 0.7  # correlation of ranks above which two numbers are said to fall together


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    parts = [*_solution_parts(results), *_width_parts(results)]
    tables = (_generalisation(results), _geometry(results), _width_table(results), _rank_table(results))
    return Findings(Verdict.of(parts), tables, pictures.drawn(results))


# --- good and bad networks


def over_shares(result: Mapping[str, Any], *keys: str) -> np.ndarray:
    """Return a number of the networks trained in the plain way, in the order of their shares of poison.

    Args:
        result: of one seed.
        keys: where it is, from the outside in.
    """
    return np.array([pictures.at(one, *keys) for one in pictures.plain(result)], dtype=np.float64)


def ranks_agree(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Return the rank correlation of two sequences (Spearman); 0 where one is constant, or of fewer than two."""
    from scipy.stats import rankdata

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def _solution_parts(results: Results) -> list[Part]:
    every = [result["solutions"] for result in results]
    mistakes = [max(one["error"] for one in found) for found in every]
    losses = [[one["loss"] for one in found] for found in every]
    errors = [over_shares(result, "test_error") for result in results]
    accuracy = [1 - one for one in errors]
    orders = [over_shares(result, "basins", FILTERS, "orders") for result in results]
    typical = [over_shares(result, "basins", FILTERS, "typical") for result in results]
    raw = [over_shares(result, "basins", RAW, "orders") for result in results]
    sizes = [over_shares(result, "curvature", "effective") for result in results]

    def monotone(statement: str, values: Sequence[np.ndarray]) -> Part:
        ranks = [ranks_agree(one, other) for one, other in zip(values, accuracy, strict=True)]
        return below(statement, RANK - np.array(ranks))

    def smaller(what: str, values: Sequence[np.ndarray]) -> Part:
        by = f"smaller by more than {ORDERS:,.0f} orders of magnitude"
        return below(f"{what}: the most poisoned network's {by}", [one[-1] - one[0] for one in values], -ORDERS)

    ratio = "largest over smallest loss on the clean rows"
    return [
        below("largest share of mistakes on the clean rows: none", mistakes, NONE, precondition=True),
        below(f"{ratio} below {LEVELS:g}", [max(one) / min(one) for one in losses], LEVELS, precondition=True),
        below(
            f"test error of the most poisoned network above that of the good one by {100 * SPREAD:g} points",
            [SPREAD - (one[-1] - one[0]) for one in errors],
            precondition=True,
        ),
        smaller("filter-normalised volume", orders),
        smaller("filter-normalised volume of the typical direction", typical),
        smaller("raw volume", raw),
        monotone(f"rank correlation of filter-normalised volume and test accuracy above {RANK:g}", orders),
        monotone(f"the same of the volume of the typical direction above {RANK:g}", typical),
        below(
            "effective dimension of the good network below that of the most poisoned one",
            [one[0] - one[-1] for one in sizes],
        ),
    ]


# --- narrow and wide networks


def fitted(result: Mapping[str, Any], when: str) -> list[dict[str, Any]]:
    """Return the numbers of the widths at which no training row is misclassified after the whole training.

    Args:
        result: of one seed.
        when: "end", after the whole training, or "matched", at equal training loss, which all of them must reach.
    """
    rows = [one for one in result["widths"] if one[END]["error"] <= NONE and one[when] is not None]
    return [{"units": one["units"], "weights": one["weights"], **one[when]} for one in rows]


def width_ranks(result: Mapping[str, Any], when: str, key: str, *, place: int | None = None) -> float:
    """Return the rank correlation of a number and the test loss over the widths that fit their training rows.

    Args:
        result: of one seed.
        when: as for `fitted`.
        key: of the number.
        place: of the precision, for effective dimensions.
    """
    rows = fitted(result, when)
    values = [one[key] if place is None else one[key][place] for one in rows]
    return ranks_agree(values, [one["test_nll"] for one in rows])


def _width_parts(results: Results) -> list[Part]:
    losses = [np.array([one[END]["test_nll"] for one in result["widths"]]) for result in results]
    counts = [min(len(fitted(result, when)) for when in (END, MATCHED)) for result in results]
    together = [width_ranks(result, END, "effective", place=0) for result in results]
    number = [width_ranks(result, END, "weights") for result in results]
    matched = [width_ranks(result, MATCHED, "effective", place=0) for result in results]
    return [
        below("widths that fit their training rows: at least five", [-count for count in counts], -FEWEST,
              precondition=True),
        below(
            f"test loss of the widest network below {FALL:g} of the largest over widths",
            [one[-1] / one.max() for one in losses],
            FALL,
        ),
        below(
            f"past interpolation: rank correlation of effective dimension and test loss above {TOGETHER:g}",
            TOGETHER - np.array(together),
        ),
        below("past interpolation: rank correlation of the number of weights and test loss below 0", number),
        below(
            "the same networks at equal training loss: rank correlation of effective dimension and test loss above 0",
            -np.array(matched),
        ),
    ]  # fmt: skip


# --- tables


def _label(one: Mapping[str, Any]) -> str:
    return f"{one['name']}, {100 * one['share']:g} %"


def _rows(results: Results, columns: Mapping[str, Sequence[str]]) -> list[list[Any]]:
    """Return a row for each network: its label, and the mean of numbers over seeds with the standard error."""
    rows = []
    for place, one in enumerate(results[0]["solutions"]):
        each = [result["solutions"][place] for result in results]
        rows.append([
            _label(one),
            *(mean_and_error([pictures.at(e, *keys) for e in each]) for keys in columns.values()),
        ])
    return rows


def _generalisation(results: Results) -> Table:
    columns: dict[str, Sequence[str]] = {
        "epochs": ("epochs",),
        "loss": ("loss",),
        "mistakes": ("error",),
        "mistakes on poison": ("poison_error",),
        "test error": ("test_error",),
        "test loss": ("test_nll",),
        "norm": ("norm",),
    }
    return Table(
        ["network, poison", *columns],
        _rows(results, columns),
        "Networks that fit the same rows: rows with wrong labels in % of the clean rows, epochs until the clean rows "
        "were fitted, mean loss (nats) and share of mistakes on these, mistakes on the rows with wrong labels, scores "
        "on test rows, and norm of all weights. Mean over seeds ± standard error.",
        formats={"epochs": ".0f", "loss": ".4f", "mistakes": ".4f", "norm": ".1f"},
    )


def _geometry(results: Results) -> Table:
    columns: dict[str, Sequence[str]] = {
        "filters, volume": ("basins", FILTERS, "orders"),
        "filters, typical": ("basins", FILTERS, "typical"),
        "raw, volume": ("basins", RAW, "orders"),
        "raw, typical": ("basins", RAW, "typical"),
        "effective dimension": ("curvature", "effective"),
        "trace": ("curvature", "trace"),
        "learning coefficient": ("coefficient",),
    }
    rows = _rows(results, columns)
    accuracy = [1 - over_shares(result, "test_error") for result in results]
    ranks = [
        mean_and_error([ranks_agree(over_shares(r, *keys), a) for r, a in zip(results, accuracy, strict=True)])
        for keys in columns.values()
    ]
    return Table(
        ["network, poison", *columns],
        [*rows, ["rank correlation with test accuracy", *(_text(cell) for cell in ranks)]],
        "log₁₀ of the volume of the basin as in the paper, log₁₀ E[r^D], and of the typical direction, D E[log₁₀ r], "
        "with radii in units of the network's filters and raw; effective dimension and trace of the Gauss-Newton "
        "matrix; local learning coefficient. All on the clean rows. Last row: of the networks that SGD trained. Mean "
        "over seeds ± standard error.",
        formats=dict.fromkeys(columns, ",.0f"),
    )


def _text(cell: tuple[float, float] | float) -> str:
    """Return a correlation with two decimals, in a column of numbers with none."""
    mean, error = cell if isinstance(cell, tuple) else (cell, None)
    return f"{mean:.2f}{'' if error is None else f' ± {error:.2f}'}".replace("-", "−")


def _width_table(results: Results) -> Table:
    keys = {"training loss": "loss", "mistakes": "error", "test loss": "test_nll", "test error": "test_error"}
    rows = []
    for place, one in enumerate(results[0]["widths"]):
        each = [result["widths"][place][END] for result in results]
        cells = [mean_and_error([e[key] for e in each]) for key in keys.values()]
        rows.append([one["units"], one["weights"], mean_and_error([e["effective"][0] for e in each]), *cells])
    return Table(
        ["units", "weights", "effective dimension", *keys],
        rows,
        "One hidden layer of growing width, after the whole training: effective dimension, mean loss (nats) and share "
        "of mistakes on the training rows with their noisy labels, and scores on test rows. Mean over seeds ± standard "
        "error.",
        formats={"units": "d", "weights": ",d", "effective dimension": ".1f", "training loss": ".4f"},
    )


def _rank_table(results: Results) -> Table:
    precisions = results[0]["precisions"]
    rows: list[list[Any]] = []
    for when, label in ((END, "after the whole training"), (MATCHED, "at equal training loss")):
        sizes = [
            mean_and_error([width_ranks(result, when, "effective", place=place) for result in results])
            for place in range(len(precisions))
        ]
        others = [mean_and_error([width_ranks(r, when, key) for r in results]) for key in ("weights", "loss")]
        rows.append([label, *sizes, *others])
    headers = [f"effective dimension, α = {precision:g}" for precision in precisions]
    return Table(
        ["networks", *headers, "number of weights", "training loss"],
        rows,
        "Rank correlation with the test loss over the widths at which no training row is misclassified after the whole "
        "training. Mean over seeds ± standard error.",
        formats=dict.fromkeys([*headers, "number of weights", "training loss"], ".2f"),
    )
