"""The report of a comparison: findings and procedure in words, and one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.catalogue.data import defaults
from torchbayes.catalogue.methods import METHODS, label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.figures import glance, pictures
from torchbayes.comparison.reference import resolved, section, worth
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.settings import Comparison
from torchbayes.comparison.tables import (
    certainty_tables,
    fidelity_table,
    foreign_table,
    is_worse,
    tables,
)
from torchbayes.methods.choices import is_open
from torchbayes.report import Table, write_report
from torchbayes.report.html import save_pictures
from torchbayes.report.style import one_page, told
from torchbayes.report.words import capital, listed, prior_of, settings_chosen


def findings(
    comparison: Comparison,
    outcomes: Mapping[str, Outcome],
    base: Outcome | None = None,
    *,
    diagnosis: Diagnosis | None = None,
    unit: str = "units of the target",
) -> str:
    """Return paragraphs: the best method by each question, methods not to use, the quality of the reference."""
    reference = None if comparison.compared_with is None else label_of(comparison.compared_with)
    worse = {label_of(name): o for name, o in outcomes.items() if is_worse(o, base)}
    doubted = {label_of(name): o.problems for name, o in outcomes.items() if o.problems}
    lines = []
    for panel in glance({label_of(name): outcome for name, outcome in outcomes.items()}, reference, unit=unit):
        ranked = [name for name in panel.ranked() if name not in worse and name not in doubted]
        if len(panel.values) < 2 or not ranked:
            continue
        best, *others = ranked
        tied = [name for name in others if name in panel.best] if best in panel.best else []
        near = f"; {listed(tied)} {'is' if len(tied) == 1 else 'are'} not significantly different" if tied else ""
        number = told(panel.numbers[best], panel.measure)
        lines.append(f"{panel.title.capitalize()}: best {panel.measure} by {best}, {number}{near}.")
    if not lines and len(outcomes) > 1:
        lines.append("No method is the best here: each is worse than the constant predictor or should not be trusted.")
    lines += [line for line in (resolved(outcomes), worth(diagnosis) if diagnosis is not None else "") if line]
    if len(outcomes) > 1:
        lines.append("This is one seed; small differences may change their sign with another.")
    paragraphs = [" ".join(lines)]
    if worse and base is not None:
        baseline = "the shares of the classes" if base.clean.probs is not None else "the mean and standard deviation"
        paragraphs.append(
            f"Warning: {listed(list(worse))} {'is' if len(worse) == 1 else 'are'} worse than a constant prediction by "
            f"{baseline} of the training targets, whose NLL is {base.clean.metrics['nll']:.3f}. Do not use "
            f"{'it' if len(worse) == 1 else 'them'}."
        )
    paragraphs += [
        f"Warning: {name} should not be trusted: {'; '.join(problems)}." for name, problems in doubted.items()
    ]
    return "\n\n".join(filter(None, paragraphs))


def procedure(setup: Setup, comparison: Comparison, outcomes: Mapping[str, Outcome]) -> str:
    """Return paragraphs on what was fitted to what, and how."""
    problem, data = comparison.problem, setup.data
    text = (
        f"{data.source}: {len(data.train.inputs):,} training and {len(data.test.inputs):,} test rows. "
        f"Network: {problem.network}, {setup.model.layout.size:,} weights, each with the prior "
        f"{prior_of(problem)}.\n\n{_budget(comparison, outcomes)}"
    )
    best = defaults(problem.data, problem.data_settings, problem.target)
    chosen = {**comparison.methods, **comparison.starts}
    usual = best.problem == problem and all(
        name in METHODS and best[name] == settings for name, settings in chosen.items()
    )
    return f"{text}\n\n{best.note}" if usual and best.note else text


def _budget(comparison: Comparison, outcomes: Mapping[str, Outcome]) -> str:
    """Return the budget of each method, and what it averages."""
    budgets: dict[str, list[str]] = {}
    served, drawn, chains = [], [], []
    for name, settings in comparison.methods.items():
        label, entry, (fit_name, _) = label_of(name), comparison.entry(name), comparison.fit_of(name)
        if fit_name != name:
            served.append(f"{label} is the first member of {label_of(fit_name)}")
        elif settings.needs.chain:
            rows = f"batches of {settings.needs.batch_size}" if settings.needs.batch_size else "all the data"
            chains.append(
                f"{label}: {settings.chains} chains of {settings.steps:,} steps on {rows}, "
                f"{outcomes[name].numbers()['draws']:,} draws kept, all averaged."
            )
        else:
            budgets.setdefault(_allowed(settings, entry.start), []).append(label)
        if entry.predicts == "linearised":
            budgets.setdefault("the predictive is that of the linearised network", []).append(label)
        if entry.predicts == "drawn":
            drawn.append(label)
    sentences = [f"{listed(labels)}: {allowed}." for allowed, labels in budgets.items()]
    sentences += [f"{'; '.join(served)}."] if served else []
    verb = "averages" if len(drawn) == 1 else "average"
    sentences += [f"{listed(drawn)} {verb} {comparison.draws} drawn functions."] if drawn else []
    return " ".join(capital(sentence) for sentence in sentences + chains)


def _chosen(home: Path, comparison: Comparison) -> str:
    """Return what held-out rows chose for each fit, as a paragraph; empty if they chose nothing."""
    fits = {name: settings_chosen(home / "fits" / name) for name in comparison.methods}
    sentences = [f"{label_of(name)}: {listed(settings)}." for name, settings in fits.items() if settings]
    return f"\n\nHeld-out rows chose settings. {' '.join(map(capital, sentences))}" if sentences else ""


def _allowed(settings: Any, start: str | None) -> str:
    """Return the budget of a method that is not a sampler, in words."""
    fields = vars(settings)
    if start is not None:
        structure = f"{fields['structure']} curvature " if "structure" in fields else ""
        return f"{structure}around the {label_of(start)}"
    members = "one member" if settings.members == 1 else f"{settings.members} members"
    return f"{members}, {_epochs(settings)}, batches of {settings.needs.batch_size}"


def _epochs(settings: Any) -> str:
    """Return the length of a fit in words, apart from that of the fit it starts from."""
    if is_open(settings) or settings.needs.start is not None:
        return "as many epochs as held-out rows chose"
    epochs = vars(settings).get("epochs")
    return f"{epochs:,} epochs" if epochs else "the usual number of epochs"


@one_page()
def report(
    home: Path,
    setup: Setup,
    comparison: Comparison,
    *,
    outcomes: Mapping[str, Outcome],
    diagnosis: Diagnosis | None,
    settings: str,
    base: Outcome | None = None,
) -> Path:
    """Write the pictures and `report.html`, whose path is returned; `settings` is the resolved configuration, YAML."""
    drawn = pictures(setup, comparison, outcomes)
    judged: list[Table] = []
    if diagnosis is not None:
        judged, more = section(diagnosis)
        drawn |= more
    scores, *parts = tables(setup, outcomes, diagnosis, base=base, intervals=True)
    extra = [*certainty_tables(outcomes), fidelity_table(outcomes), foreign_table(outcomes), *judged]
    data = setup.data
    return write_report(
        home / "report.html",
        title=f"{data.name}: {_names(outcomes)}",
        lead=f"{len(data.train.inputs):,} training and {len(data.test.inputs):,} test rows. "
        f"{findings(comparison, outcomes, base, diagnosis=diagnosis, unit=data.target_unit)}",
        tables=[scores],
        figures=save_pictures(home, drawn),
        folded=[*parts, *(table for table in extra if table)],
        procedure=procedure(setup, comparison, outcomes) + _chosen(home, comparison),
        settings=settings,
    )


def _names(outcomes: Mapping[str, Outcome]) -> str:
    """Return the names of up to four methods, or the number of more, for a heading."""
    return listed([label_of(name) for name in outcomes]) if len(outcomes) < 5 else f"{len(outcomes)} methods compared"
