"""What decisions by costs are worth on the test rows, and what a rule of abstention keeps of its promise there."""

from __future__ import annotations

from typing import Any

from torchbayes import metrics
from torchbayes.decisions.abstention import Abstention
from torchbayes.decisions.outcome import Outcome, outcome_of
from torchbayes.report import figures
from torchbayes.report.evaluation import Section
from torchbayes.report.fit import Fitted
from torchbayes.report.html import Picture
from torchbayes.report.tables import Table

_ALWAYS = 10  # most rules of a single action that are listed


def decided(fitted: Fitted, cost: Any = None, rule: Abstention | None = None) -> Section:
    """Return the section on decisions by costs, or by those of a rule, on the test rows."""
    data, units = fitted.data, fitted.data.target_standardise
    known = None if data.classes else data.train.targets if units is None else units.inverse(data.train.targets)
    outcome = outcome_of(
        fitted.functions,
        tuple(data.test),
        cost,
        rule=rule,
        classes=data.classes or None,
        targets=units,
        known=known,
    )
    tables, drawn, remarks = [cost_table(outcome)], {}, []
    if rule is not None:
        drawn["risk_coverage"] = _kept(fitted.label, outcome, rule)
        remarks.append(f"Rule of abstention: {rule.words} {kept_in_words(outcome)}")
    return Section(tables, drawn, remarks)


def cost_table(outcome: Outcome) -> Table:
    """Return the mean cost of the decisions and of other rules, with standard errors."""
    loss = outcome.mean(outcome.loss)
    rows: list[list[Any]] = [
        ["least expected cost", loss, _error(outcome, outcome.loss), outcome.mean(outcome.expected)]
    ]
    always = [name for name in outcome.others if name.startswith("always")]
    left_out = sorted(always, key=lambda name: outcome.mean(outcome.others[name]))[_ALWAYS:]
    for name, values in outcome.others.items():
        if name not in left_out:
            rows.append([name, outcome.mean(values), _error(outcome, values), None])
    caption = (
        f"Mean cost of {len(outcome.loss):,} test rows by how they are decided, with standard errors; and what the "
        f"model expected its own decisions to cost, which is near the first number if its probabilities are right."
    )
    heads = ["decision", "mean cost", "± error", "expected"]
    return Table(heads, rows, caption, formats=dict.fromkeys(heads[1:], ".4g"), title="What decisions cost")


def _error(outcome: Outcome, values: Any) -> float | None:
    """Return the standard error of a weighted mean over rows; None for one row."""
    each = values.double().flatten(1).mean(1) if values.ndim > 1 else values.double()
    shares = outcome.weights / outcome.weights.sum()
    if len(each) < 2:
        return None
    return float((shares**2 * (each - (shares * each).sum()) ** 2).sum().sqrt())


def kept_in_words(outcome: Outcome) -> str:
    """Return a sentence on the rows that a rule accepts of these."""
    accepted = (~outcome.abstained).double()
    share = outcome.mean(accepted)
    if not share:
        return "Of the test rows it accepts none."
    mean = outcome.mean(outcome.loss * accepted) / share
    return f"Of the test rows it accepts {100 * share:.1f} %, with a mean loss of {mean:.4g}."


def _kept(label: str, outcome: Outcome, rule: Abstention) -> Picture:
    curve = metrics.risk_coverage(outcome.loss, outcome.expected, weights_B=outcome.weights)
    accepted = (~outcome.abstained).double()
    share = outcome.mean(accepted)
    mean = outcome.mean(outcome.loss * accepted) / share if share else None
    is_risk = rule.confidence is not None
    return Picture(
        "Risk against the share of rows that are decided",
        figures.risk_curves(
            {label: (curve.coverage, curve.risk)},
            limit=rule.limit if is_risk else None,
            chosen=None if mean is None else (share, mean),
            loss="error rate" if rule.is_binary and rule.bound == 1 else "mean cost",
        ),
        f"{label} on {len(outcome.loss):,} test rows, of the least expected cost first: the mean loss of the rows "
        f"that are decided. The point is the certified threshold"
        + (f", the dashed line the risk of {rule.limit:g} that it promises. " if is_risk else ". ")
        + kept_in_words(outcome),
        alt=f"Mean loss of {label} against the share of rows that are decided, with the certified threshold.",
    )
