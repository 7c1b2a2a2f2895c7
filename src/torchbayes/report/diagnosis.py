"""The section of a report on whether chains have converged: tables, remarks, pictures, and one page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.assess.approximation import Approximation
from torchbayes.assess.diagnosis import Diagnosis
from torchbayes.diagnostics.convergence import ENOUGH
from torchbayes.report import figures
from torchbayes.report.figures.chains import BOUNDS
from torchbayes.report.html import Picture, save_pictures, write_report
from torchbayes.report.tables import Table
from torchbayes.report.words import capital, listed

LOW_EBFMI = 0.3  # energies are explored slowly below it (Betancourt 2016)
_PER = 1000  # efficiencies are per this many gradients


def space_numbers(diagnosis: Diagnosis, space: str) -> dict[str, float]:
    """Return the numbers of one space; quantities that never move are counted and left out of the others.

    Keys: quantities, unmoved, rhat_median, rhat_largest, rhat_within_1.01, rhat_within_1.05 and rhat_within_1.1
    (shares), ess_bulk_median, ess_bulk_least, ess_tail_least, ess_per_1000_gradients (of the median bulk size),
    mcse_largest (Monte Carlo standard error of a mean, in the units of the quantity). NaN where there is no number.
    """
    sizes = diagnosis.spaces[space]
    moved = ~sizes.rhat.flatten().isnan()
    rhat, bulk, tail, mcse = (
        values.flatten()[moved] for values in (sizes.rhat, sizes.ess_bulk, sizes.ess_tail, sizes.mcse)
    )
    per_gradient = diagnosis.per_gradient(space).flatten()[moved]
    return {
        "quantities": len(moved),
        "unmoved": int((~moved).sum()),
        "rhat_median": _quantile(rhat, 0.5),
        "rhat_largest": _quantile(rhat, 1.0),
        **{f"rhat_within_{bound}": _share(rhat <= bound) for bound in BOUNDS},
        "ess_bulk_median": _quantile(bulk, 0.5),
        "ess_bulk_least": _quantile(bulk, 0.0),
        "ess_tail_least": _quantile(tail, 0.0),
        "ess_per_1000_gradients": _PER * _quantile(per_gradient, 0.5),
        "mcse_largest": _quantile(mcse, 1.0),
    }


def numbers(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis in numbers that JSON holds; None for what is not finite or not known.

    Keys: chains, draws, gradients, `spaces` (as from `space_numbers`) and `by_chain` (one number per chain).
    """
    spaces = {space: space_numbers(diagnosis, space) for space in diagnosis.spaces}
    by_chain = {name: column.tolist() for name, column in _by_chain(diagnosis).items()}
    totals = {"chains": diagnosis.chains, "draws": diagnosis.draws, "gradients": diagnosis.gradients}
    return _plain({**totals, "spaces": spaces, "by_chain": by_chain})


_COLUMNS = {
    "quantities": ("quantities", ",d"),
    "R-hat": ("rhat_median", ".3f"),
    "largest": ("rhat_largest", ".3f"),
    **{f"≤ {bound}": (f"rhat_within_{bound}", ".1%") for bound in BOUNDS},
    "bulk ESS": ("ess_bulk_median", ",.0f"),
    "least": ("ess_bulk_least", ",.0f"),
    "least tail ESS": ("ess_tail_least", ",.0f"),
    "ESS / 1,000 gradients": ("ess_per_1000_gradients", ".3g"),
    "unmoved": ("unmoved", ",d"),
}
_NARROW = (
    ("quantities", "R-hat", "largest", *(f"≤ {bound}" for bound in BOUNDS), "unmoved"),
    ("bulk ESS", "least", "least tail ESS", "ESS / 1,000 gradients"),
)


def space_table(diagnosis: Diagnosis, columns: Sequence[str] = tuple(_COLUMNS), *, caption: str = "") -> Table:
    """Return the table of spaces: R-hat and effective sizes of weights, functions and log likelihoods.

    `columns` are chosen by their heads; those without information are left out.
    """
    spaces = {space: space_numbers(diagnosis, space) for space in diagnosis.spaces}
    entries = {head: [_entry(of_space[_COLUMNS[head][0]]) for of_space in spaces.values()] for head in columns}
    idle = {head: all(e is None for e in of_head) for head, of_head in entries.items()}
    idle["unmoved"] = not any(of_space["unmoved"] for of_space in spaces.values())
    heads = [head for head in columns if not idle[head]]
    rows = [[space, *(entries[head][row] for head in heads)] for row, space in enumerate(spaces)]
    return Table(["space", *heads], rows, caption, formats={head: _COLUMNS[head][1] for head in heads})


def space_tables(diagnosis: Diagnosis) -> list[Table]:
    """Return the table of spaces in one or two parts that fit a page: R-hat, and effective sizes if they are known."""
    titles = ("R-hat, space by space", "Effective sample sizes, space by space")
    first, second = (
        replace(space_table(diagnosis, columns), title=title) for columns, title in zip(_NARROW, titles, strict=True)
    )
    parts = [first, second] if len(second.columns) > 1 else [first]
    return [*parts[:-1], replace(parts[-1], caption=caption(diagnosis))]


def chain_table(diagnosis: Diagnosis) -> Table | None:
    """Return the table of what the log holds on each chain after burn-in; None without a log."""
    columns = _by_chain(diagnosis)
    if diagnosis.record is None:
        return None
    heads = {name.replace("_", " ").replace("ebfmi", "E-BFMI"): column for name, column in columns.items()}
    rows = [[str(chain + 1), *(_entry(c[chain].item()) for c in columns.values())] for chain in range(diagnosis.chains)]
    caption = (
        f"After {diagnosis.record.burn_in:,} iterations of burn-in, whose gradients are counted apart. Gradients are "
        f"passes over the data."
    )
    if "ebfmi" in columns:
        caption += f" E-BFMI: how well new momenta explore the energies; near 1 is good, below {LOW_EBFMI} slow."
    formats = {"E-BFMI": ".2f", "acceptance": ".1%", "divergences": "d", "saturated": ".1%", "step size": ".3g"}
    formats |= {"gradients": ",.0f", "gradients in burn-in": ",.0f"}
    used = {name: form for name, form in formats.items() if name in heads}
    return Table(["chain", *heads], rows, caption, formats=used, title="Chain by chain")


def caption(diagnosis: Diagnosis) -> str:
    """Return sentences on how to read the table of spaces."""
    text = f"{capital(_chains(diagnosis))}. "
    if diagnosis.chains == 1:
        text += "R-hat compares the two halves of the one chain: a drift shows, another mode does not. "
    else:
        text += "R-hat (rank-normalised, split) compares the chains and their halves. "
    text += "ESS: effective sample size, of all chains together. R-hat and bulk ESS are medians."
    if not math.isnan(diagnosis.gradients):
        text += f" Gradients: {diagnosis.gradients:,.0f} passes over the data after burn-in, all chains."
    return text


def remarks(diagnosis: Diagnosis) -> list[str]:
    """Return an interpretation of the numbers, in sentences."""
    functions, weights = (space_numbers(diagnosis, space) for space in (diagnosis.functions, "weights"))
    sentences = _log_remarks(diagnosis)
    for space, statistics in (("weights", weights), (diagnosis.functions, functions)):
        if statistics["unmoved"]:
            sentences.append(f"{statistics['unmoved']:,} of {statistics['quantities']:,} {space} never move.")
    for bound in BOUNDS[::-1]:
        shares = [statistics[f"rhat_within_{bound}"] for statistics in (functions, weights)]
        if not math.isnan(sum(shares)):
            parts = (f"{_percent(s)} of {n}" for s, n in zip(shares, (diagnosis.functions, "weights"), strict=True))
            sentences.append(f"R-hat is at most {bound} for {' and '.join(parts)}.")
    enough, least = ENOUGH * diagnosis.chains, functions["ess_bulk_least"]
    if math.isnan(least):
        sentences.append(f"With {diagnosis.draws} draws of each chain effective sample sizes cannot be estimated yet.")
    elif least < enough:
        sentences.append(
            f"The smallest effective sample size of {diagnosis.functions} is {least:.0f}. R-hat and effective sample "
            f"sizes are reliable only if it is at least {enough}, {ENOUGH} for each chain."
        )
    if not math.isnan(functions["mcse_largest"]):
        sentences.append(
            f"Averaged over draws, {diagnosis.functions} have Monte Carlo standard errors of up to "
            f"{functions['mcse_largest']:.2g}, if the chains have converged."
        )
    if diagnosis.chains == 1:
        sentences.append("One chain cannot show whether another would find another mode. Run several.")
    return sentences


def _log_remarks(diagnosis: Diagnosis) -> list[str]:
    """Return remarks on the log of the chains after burn-in."""
    record = diagnosis.record
    if record is None:
        return []
    parts = []
    if record.ebfmi_M is not None:
        parts.append(f"E-BFMI {_range(record.ebfmi_M, '.2f')}")
    if record.acceptance_M is not None:
        parts.append(f"acceptance {_range(100 * record.acceptance_M, '.1f')} %")
    if record.divergences_M is not None:
        parts.append(f"{_range(record.divergences_M, 'd')} divergences")
    parts.append(f"{_range(record.gradients_M, ',.0f')} gradients")
    sentences = [f"Each chain: {', '.join(parts)}."]
    if record.divergences_M is not None and record.divergences_M.sum() > 0:
        sentences.append(
            "After a divergence, an energy error above 1,000: take smaller steps, or raise `target_acceptance`."
        )
    if record.saturated_M is not None and record.saturated_M.sum() > 0:
        sentences.append(
            f"Of the trajectories of each chain, {_range(100 * record.saturated_M, '.1f')} % were cut short by "
            f"`max_doublings`, which makes it slow: raise it, or adapt the `mass`."
        )
    if record.ebfmi_M is not None and (record.ebfmi_M < LOW_EBFMI).any():
        sentences.append(f"An E-BFMI below {LOW_EBFMI} says that energies are explored slowly.")
    return sentences


def _range(column: Tensor, form: str) -> str:
    low, high = (format(end.item(), form) for end in (column.min(), column.max()))
    return low if low == high else f"{low} to {high}"


def pictures(diagnosis: Diagnosis) -> dict[str, Picture]:
    """Draw everything that applies: file name without ending -> picture."""
    shown = {name: diagnosis.spaces[name] for name in ("weights", diagnosis.functions)}
    moving = {name: space for name, space in shown.items() if not space.rhat.isnan().all()}
    drawn: dict[str, Picture] = {}
    shares = {name: space_numbers(diagnosis, name)[f"rhat_within_{BOUNDS[1]}"] for name in moving}
    below = [f"{_percent(share)} of {name}" for name, share in shares.items()]
    if moving:
        drawn["rhat"] = Picture(
            "R-hat in weight space and in function space",
            figures.rhat_histogram({name: space.rhat.flatten() for name, space in moving.items()}),
            f"Histograms of R-hat over all weights and over {diagnosis.functions} at test rows; {_chains(diagnosis)}. "
            "Near 1, chains cannot be told apart. Networks whose weights differ from chain to chain may agree in what "
            "they predict, and that is what is averaged.",
            alt=f"Histograms of R-hat. At most {BOUNDS[1]}: {listed(below)}.",
        )
    sized = {name: space for name, space in moving.items() if not space.ess_bulk.isnan().all()}
    if sized:
        sizes = {name: (space.ess_bulk.flatten(), space.ess_tail.flatten()) for name, space in sized.items()}
        drawn["ess"] = Picture(
            "Effective sample sizes",
            figures.ess_histograms(sizes, chains=diagnosis.chains, draws=diagnosis.draws),
            f"How many independent draws the chains are worth, for the middle and for the tails of each quantity; "
            f"{_chains(diagnosis)}.",
            alt=f"Histograms of bulk and tail effective sizes of {listed(list(sized))}.",
        )
    if diagnosis.traces:
        quantities = {trace.name: (trace.values_MS, trace.at_S, trace.over) for trace in diagnosis.traces}
        drawn["traces"] = Picture(
            "Traces and ranks",
            figures.traces_and_ranks(quantities),
            "The log density, the weight of the largest R-hat, and the prediction of the largest Monte Carlo error, "
            f"in a colour for each chain; {_chains(diagnosis)}. Chains that have converged overlap on the left and are "
            "flat on the right.",
            alt=f"Lines along the chains, and histograms of ranks, of {listed(list(quantities))}.",
        )
    return drawn


def _chains(diagnosis: Diagnosis) -> str:
    return f"{'one chain' if diagnosis.chains == 1 else f'{diagnosis.chains} chains'} of {diagnosis.draws:,} draws"


def write_diagnosis(
    directory: Path,
    diagnosis: Diagnosis,
    *,
    title: str,
    lead: str = "",
    settings: str | Mapping[str, Any] | None = None,
) -> Path:
    """Write `report.html`, `rhat.png`, `ess.png` and `traces.png`, replacing earlier ones; return the page's path."""
    drawn = pictures(diagnosis)
    chains = chain_table(diagnosis)
    return write_report(
        directory / "report.html",
        title=title,
        lead="\n\n".join(filter(None, [lead, " ".join(remarks(diagnosis))])),
        tables=[*space_tables(diagnosis), *([chains] if chains else [])],
        figures=save_pictures(directory, drawn),
        settings=settings,
    )


def write_approximation(
    directory: Path,
    approximation: Approximation,
    *,
    title: str,
    lead: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of a posterior with a density (k-hat and what it means) to `report.html`; return its path."""
    heads = ["k-hat", "verdict", "draws", "effective draws", "rows", "weights"]
    row = [
        approximation.k,
        approximation.verdict,
        approximation.draws,
        approximation.ess,
        approximation.rows,
        approximation.weights,
    ]
    caption = "k-hat is the shape of the tail of the importance weights: below 0.5 good, up to 0.7 usable."
    formats = {"k-hat": ".2f", "draws": ",d", "effective draws": ",.1f", "rows": ",d", "weights": ",d"}
    table = Table(heads, [row], caption, formats=formats)
    lead = "\n\n".join(filter(None, [lead, approximation.words]))
    return write_report(directory / "report.html", title=title, lead=lead, tables=[table], settings=settings)


def approximation_numbers(approximation: Approximation) -> dict[str, Any]:
    """Return an approximation in numbers that JSON holds; None for what is not finite."""
    names = ("k", "verdict", "draws", "ess", "rows", "weights")
    return _plain({name: getattr(approximation, name) for name in names})


def _by_chain(diagnosis: Diagnosis) -> dict[str, Tensor]:
    record = diagnosis.record
    if record is None:
        return {}
    columns = {
        "ebfmi": record.ebfmi_M,
        "acceptance": record.acceptance_M,
        "divergences": record.divergences_M,
        "saturated": record.saturated_M,
        "step_size": record.step_size_M,
        "gradients_in_burn-in": record.burn_in_gradients_M,
        "gradients": record.gradients_M,
    }
    return {name: column for name, column in columns.items() if column is not None}


def _quantile(values: Tensor, share: float) -> float:
    """Return the order statistic at a share, because torch's own quantile refuses long tensors."""
    finite = values[~values.isnan()].sort().values
    return float(finite[round(share * (len(finite) - 1))]) if len(finite) else math.nan


def _share(holds: Tensor) -> float:
    return float(holds.double().mean()) if len(holds) else math.nan


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _entry(number: float) -> float | None:
    return None if isinstance(number, float) and math.isnan(number) else number


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
