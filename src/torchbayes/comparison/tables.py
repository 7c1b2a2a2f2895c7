"""The tables of a comparison: the one on the terminal, and those of the report with all the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.certainty import BETTER, LEVEL, RESAMPLES, at_severity
from torchbayes.comparison.reference import closeness, reference_of
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.settings import REFERENCE
from torchbayes.report import Table

Kind = Literal["clean", "shifted", "fidelity"]


class Column(NamedTuple):
    """One column of the table: its head, its metric, its format and its better direction."""

    head: str
    metric: str
    form: str
    better: Literal["low", "high"] | None
    kind: Kind = "clean"


COLUMNS = (
    Column("accuracy", "accuracy", ".1%", "high"),
    Column("RMSE", "rmse", ".3f", "low"),
    Column("MAE", "mae", ".3f", "low"),
    Column("R²", "r_squared", ".3f", "high"),
    Column("NLL", "nll", ".3f", "low"),
    Column("Brier", "brier", ".3f", "low"),
    Column("ECE", "ece", ".3f", "low"),
    Column("in 95 % interval", "coverage", ".1%", None),
    # no best value is marked, because the reference's own value is the floor
    Column("agreement ↑", "agreement", ".1%", None, "fidelity"),
    Column("TV ↓", "total_variation", ".3f", None, "fidelity"),
    Column("W1 ↓", "wasserstein1", ".3f", None, "fidelity"),
    Column("NLL at 3", at_severity("nll", 3), ".3f", "low", "shifted"),
    Column("NLL at 5", at_severity("nll", 5), ".3f", "low", "shifted"),
    Column("acc. at 3", at_severity("accuracy", 3), ".1%", "high", "shifted"),
    Column("acc. at 5", at_severity("accuracy", 5), ".1%", "high", "shifted"),
    Column("AUROC", "auroc", ".3f", "high", "shifted"),
)


CONSTANT = "constant"
KINDS: tuple[Kind, ...] = ("clean", "fidelity", "shifted")
_TITLES: dict[Kind, str] = {"clean": "test set", "shifted": "corrupted and foreign images"}


def is_worse(outcome: Outcome, base: Outcome | None) -> bool:
    """Return whether the targets are less likely under a method than under the constant predictor."""
    return base is not None and not outcome.clean.metrics["nll"] <= base.clean.metrics["nll"]


def called(name: str, outcome: Outcome, base: Outcome | None) -> str:
    """Return a method's label, marked ✗ if it is worse than the constant predictor, ! if it should not be trusted."""
    marks = "✗" * is_worse(outcome, base) + "!" * bool(outcome.problems)
    return f"{label_of(name)} {marks}".rstrip()


def table(
    outcomes: Mapping[str, Outcome],
    *,
    kinds: Sequence[str] = KINDS,
    caption: str = "",
    base: Outcome | None = None,
    intervals: bool = False,
) -> Table:
    """Return the table of methods and metrics that have numbers, with the constant predictor below them.

    `kinds` of columns: on the test set, against the reference, on shifted data. `intervals` puts those of the metrics
    on the test set beside them.
    """
    columns = [c for c in COLUMNS if c.kind in kinds and any(o.number(c.metric) is not None for o in outcomes.values())]
    known = {c for c in columns if intervals and c.kind == "clean" and c.metric in BETTER}
    known = {c for c in known if any(c.metric in outcome.certainty.intervals for outcome in outcomes.values())}
    named = {called(name, outcome, base): outcome for name, outcome in outcomes.items()}
    if base is not None and "clean" in kinds:
        named[CONSTANT] = base

    def cells(outcome: Outcome, column: Column) -> list[Any]:
        ends = [_interval(outcome, column).replace("-", "−") or None] if column in known else []
        return [outcome.number(column.metric), *ends]

    heads = [head for c in columns for head in ([c.head, f"{c.head}: 95 %"] if c in known else [c.head])]
    return Table(
        ["method", *heads],
        [[label, *(cell for c in columns for cell in cells(outcome, c))] for label, outcome in named.items()],
        caption,
        better={column.head: column.better for column in columns if column.better},
        formats={column.head: column.form for column in columns},
        ties={
            c.head: [row for row, o in enumerate(outcomes.values()) if o.certainty.is_best(c.metric)] for c in columns
        },
        beside=int(CONSTANT in named),
    )


def _interval(outcome: Outcome, column: Column) -> str:
    """Return the interval of a metric as text; empty if it is not known."""
    if column.metric not in outcome.certainty.intervals:
        return ""
    low, high = outcome.certainty.intervals[column.metric]
    return f"{low:{column.form}} to {high:{column.form}}".replace("%", " %")


def certainty_table(outcomes: Mapping[str, Outcome], kind: Kind = "clean") -> Table | None:
    """Return intervals of metrics, and differences from the best method; None if there are none."""
    columns = [c for c in COLUMNS if c.kind == kind and all(c.metric in o.certainty.apart for o in outcomes.values())]
    if not columns:
        return None

    def cells(outcome: Outcome, column: Column) -> list[Any]:
        difference = outcome.certainty.apart[column.metric]
        return [_interval(outcome, column), (difference.value, difference.error)]

    rows = [[label_of(n), *(cell for c in columns for cell in cells(o, c))] for n, o in outcomes.items()]
    return Table(
        ["method", *(head for c in columns for head in (c.head, f"{c.head} − best"))],
        rows,
        f"{100 * LEVEL:g} % intervals over {RESAMPLES:,} resamples of the rows, and differences from the best on the "
        f"same rows with their standard errors. They say nothing of what another seed would give.",
        formats={f"{c.head} − best": c.form for c in columns},
        title=f"How sure the scores are: {_TITLES[kind]}",
    )


def certainty_tables(outcomes: Mapping[str, Outcome]) -> list[Table | None]:
    """Return `certainty_table` of the test set, and of shifted data."""
    return [certainty_table(outcomes, kind) for kind in ("clean", "shifted")]


def tables(
    setup: Setup,
    outcomes: Mapping[str, Outcome],
    diagnosis: Diagnosis | None = None,
    *,
    base: Outcome | None = None,
    intervals: bool = False,
) -> list[Table]:
    """Return the table in one or two parts that fit a page: test set, and shifted data. The last has the caption.

    `intervals` puts those of the metrics on the test set beside them.
    """
    test = table(outcomes, kinds=["clean", "fidelity"], base=base, intervals=intervals)
    test = replace(test, title="Scores on the test set")
    shifted = replace(table(outcomes, kinds=["shifted"]), title="Scores on corrupted and foreign images")
    parts = [test, shifted]
    parts = [each for each in parts if len(each.columns) > 1]
    return [*parts[:-1], replace(parts[-1], caption=caption(setup, outcomes, diagnosis, base=base))]


def caption(
    setup: Setup,
    outcomes: Mapping[str, Outcome],
    diagnosis: Diagnosis | None = None,
    *,
    base: Outcome | None = None,
) -> str:
    """Return sentences on how to read the table."""
    data = setup.data
    notes = _marked(outcomes) + _warned(setup, outcomes, base) + closeness(setup, outcomes, diagnosis)
    if data.task == "regression":
        return (
            f"{len(data.test.inputs):,} test rows. RMSE, MAE and NLL (negative log density of the average, nats per "
            f"row) are in {data.target_unit}; R² is the share of these targets' variance that is explained. In 95 "
            f"% interval: the share of targets inside the central interval of the average, which should be 95 %."
            f"{notes}"
        )
    first = next(iter(outcomes.values()))
    text = f"{len(data.test.inputs):,} test rows. NLL: nats per row. ECE: 15 bins of equal width."
    if first.corrupted:
        text += f" At 3, at 5: mean over {len(first.corrupted)} corruptions at that severity."
    if first.foreign:
        sets = ", ".join(first.foreign)
        text += f" AUROC: how well the entropy separates foreign images from test images, mean over {sets}."
    for name, alone in _alone(outcomes).items():
        who = f"{len(alone)} ensemble members" if name == "ensemble" else f"{len(alone)} members of {label_of(name)}"
        mean = sum(alone) / len(alone)
        text += f" NLL of the {who} alone: mean {mean:.3f}, {min(alone):.3f} to {max(alone):.3f}."
    return text + notes


def _marked(outcomes: Mapping[str, Outcome]) -> str:
    """Return a sentence on the marks for the best."""
    if len(outcomes) < 2 or not all(outcome.certainty.apart for outcome in outcomes.values()):
        return ""
    shifted = any(outcome.corrupted or outcome.foreign for outcome in outcomes.values())
    where = "on the test set, at severity 5 and by AUROC " if shifted else ""
    return f" Marked: the best, and {where}every method that is not significantly different from it (at 95 %)."


def _warned(setup: Setup, outcomes: Mapping[str, Outcome], base: Outcome | None) -> str:
    """Return sentences on the row of the constant predictor and the signs behind names."""
    text = ""
    if base is not None:
        statistic = "the share of each class" if base.clean.probs is not None else "the mean and standard deviation"
        text += f" Constant: {statistic} of the {len(setup.data.train.inputs):,} training targets, for every row."
    if any(is_worse(outcome, base) for outcome in outcomes.values()):
        text += " ✗: worse than the constant by NLL."
    return text + (" !: should not be trusted, see the warnings." * any(o.problems for o in outcomes.values()))


def _alone(outcomes: Mapping[str, Outcome]) -> dict[str, list[float]]:
    """Return the test NLL of each member alone, for methods with several members evaluated in this way."""
    nlls = {name: [member["nll"] for member in outcome.members] for name, outcome in outcomes.items()}
    return {name: alone for name, alone in nlls.items() if len(alone) > 1}


def foreign_table(outcomes: Mapping[str, Outcome]) -> Table | None:
    """Return AUROC, AUPR and FPR95 of each foreign set by predictive entropy; None without such sets."""
    detected = {name: outcome.detected() for name, outcome in outcomes.items()}
    sets = list(next(iter(detected.values())))
    if not sets:
        return None
    heads: dict[str, Literal["low", "high"]] = {"AUROC": "high", "AUPR": "high", "FPR95": "low"}
    rows = [
        [label_of(name), foreign, *(detected[name][foreign].get(f"{head.lower()}_entropy") for head in heads)]
        for foreign in sets
        for name in outcomes
    ]
    return Table(
        ["method", "foreign set", *heads],
        rows,
        "Telling foreign images from the test set by the entropy of the average. AUPR counts the foreign as positive; "
        "FPR95 is the share of test images flagged when 95 % of the foreign ones are.",
        title="Foreign images, set by set",
    )


def fidelity_table(outcomes: Mapping[str, Outcome]) -> Table | None:
    """Return agreement and total variation with the reference on corrupted images; None where there are none."""
    name = reference_of(outcomes)
    if name is None or not any(outcome.fidelity.corrupted for outcome in outcomes.values()):
        return None
    heads = {"agreement": ("agreement", ".1%"), "TV": ("total_variation", ".3f")}
    columns = {
        f"{head}{f' at {s}' if s else ''}": (at_severity(metric, s) if s else metric, form)
        for head, (metric, form) in heads.items()
        for s in (0, 1, 3, 5)
    }
    fitted = {label_of(n): o for n, o in outcomes.items() if o.fidelity.clean}
    rows = [[label, *(o.number(metric) for metric, _ in columns.values())] for label, o in fitted.items()]
    label = "the reference" if name == REFERENCE else label_of(name)
    return Table(
        ["method", *columns],
        rows,
        f"Closeness to {label} on the test set and under corruption. Agreement: the higher the closer; TV: the lower "
        f"the closer. The row of {label_of(name)} is the floor: another sample of it, of as many draws.",
        formats={head: form for head, (_, form) in columns.items()},
        title=f"Closeness to {label} by severity",
    )
