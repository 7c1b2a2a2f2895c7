"""Verdict, tables and figures of `hmc_reference`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

STOCHASTIC = ("SGLD", "SGHMC", "cSGHMC")
OTHERS = ("single network", "deep ensemble", *STOCHASTIC)
MARGIN = 0.01  # nats: NLLs this close count as equally good

# CIFAR-10 with ResNet-20 (Izmailov et al. 2021): accuracy in %, agreement in % and total variation, each mean and
# standard deviation of three runs, from its table of fidelity; NLL and ECE are read off its bar plots.
PUBLISHED: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float], float | None, float | None]]
PUBLISHED = {
    "HMC, one chain": ((89.64, 0.25), (94.01, 0.25), (0.074, 0.003), 0.322, 0.043),
    "SGD": ((83.44, 1.14), (85.48, 1.00), (0.190, 0.005), 0.80, 0.12),
    "deep ensemble (50)": ((88.49, 0.10), (91.52, 0.06), (0.115, 0.000), 0.33, 0.03),
    "MFVI": ((86.45, 0.27), (88.75, 0.24), (0.136, 0.000), 0.41, 0.02),
    "SGLD": ((89.32, 0.23), (91.54, 0.15), (0.110, 0.001), 0.33, 0.03),
    "SGHMC": ((89.38, 0.32), (91.98, 0.35), (0.109, 0.001), None, None),
    "SGHMC, cyclical": ((89.63, 0.37), (92.67, 0.52), (0.099, 0.006), None, None),
    "SGHMC, cyclical and preconditioned": ((87.46, 0.21), (90.96, 0.24), (0.111, 0.002), None, None),
}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    names = list(results[0])
    parts = [part for name in names for part in _parts(name, results)]
    tables = [_scores_table(name, results) for name in names]
    tables += [_published_table(), _temperature_table(results), _together_table(results), _chains_table(results)]
    return Findings(Verdict.of(parts), tuple(tables), _figures(results))


def values(results: Results, problem: str, method: str, *, metric: str, of: str = "") -> np.ndarray:
    """Return a metric of a method, one value per seed.

    Args:
        results: the seeds' scores.
        problem: its name.
        method: "HMC", "deep ensemble", a stochastic sampler, or "single network" for the ensemble's members.
        metric: a key of the scores.
        of: "all" for the average over all chains or members, "one" for the mean of each alone; if empty, all for HMC
            and the ensemble, and one chain for the others, as in the paper's tables.

    Returns:
        Array (R,).
    """
    source = "deep ensemble" if method == "single network" else method
    which = of or ("all" if method in {"HMC", "deep ensemble"} else "one")
    return np.array([result[problem]["methods"][source][which][metric] for result in results])


def _parts(name: str, results: Results) -> list[Part]:
    """Return the parts of the claim on one problem."""

    def of(method: str, metric: str) -> np.ndarray:
        return values(results, name, method, metric=metric)

    nll = of("HMC", "nll")
    best = np.min([of(method, "nll") for method in OTHERS], axis=0)
    distance = {method: of(method, "total_variation") for method in OTHERS}
    apart = {method: 1 - of(method, "agreement") for method in OTHERS}
    ceiling = values(results, name, "HMC", metric="total_variation", of="one")
    nearest, furthest = (choose([distance[m] for m in STOCHASTIC], axis=0) for choose in (np.min, np.max))
    least = np.max([apart[m] for m in STOCHASTIC], axis=0)
    single = distance["single network"]
    rhat = np.array([1 - result[name]["chains"]["functions"]["share"] for result in results])
    return [
        below(f"{name}: share of test probabilities with R-hat of 1.1 or more", rhat, 0.05, precondition=True),
        below(
            f"{name}: TV of one HMC chain to the others below a single network's", ceiling - single, precondition=True
        ),
        below(f"{name}: NLL of HMC below a single network's", nll - of("single network", "nll")),
        below(f"{name}: NLL of HMC within {MARGIN} of the best other", nll - best, MARGIN),
        below(f"{name}: TV from HMC of every SG-MCMC chain below a single network's", furthest - single),
        below(f"{name}: agreement of every SG-MCMC chain above a single network's", least - apart["single network"]),
        below(f"{name}: TV of the ensemble below a single network's", distance["deep ensemble"] - single),
        below(f"{name}: TV of the best SG-MCMC chain below the ensemble's", nearest - distance["deep ensemble"]),
    ]


def _scores_table(name: str, results: Results) -> Table:
    columns = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "gap": "confidence − accuracy"}
    near = {"agreement": "agreement with HMC", "total_variation": "TV from HMC"}

    def row(label: str, method: str, of: str = "") -> list[Any]:
        shown = [mean_and_error(values(results, name, method, metric=key, of=of)) for key in columns]
        whole = method == "HMC" and of == ""
        return [
            label,
            *shown,
            *(None if whole else mean_and_error(values(results, name, method, metric=k, of=of)) for k in near),
        ]

    rows = [row("HMC, all chains", "HMC"), row("HMC, one chain", "HMC", "one")]
    rows += [row(m if m in OTHERS[:2] else f"{m}, one chain", m) for m in OTHERS]
    return Table(
        [name, *columns.values(), *near.values()],
        rows,
        f"{name}, test rows: mean over seeds ± standard error. Closeness of one HMC chain is to the average of the "
        "other chains, that of the rest to all of HMC. A single network is the mean over the ensemble's members.",
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        formats=dict.fromkeys([*columns.values(), *near.values()], ".4f"),
    )


def _published_table() -> Table:
    return Table(
        ["as published", "accuracy, %", "agreement with HMC, %", "TV from HMC", "NLL ≈", "ECE ≈"],
        [[name, *row] for name, row in PUBLISHED.items()],
        "For comparison: ResNet-20 on CIFAR-10 in Izmailov et al. (2021), mean ± standard deviation of three runs; NLL "
        "and ECE are read off their bar plots. HMC: one chain against the other two.",
        formats={"accuracy, %": ".2f", "agreement with HMC, %": ".2f", "NLL ≈": ".2f"},
    )


def _temperature_table(results: Results) -> Table:
    rows = []
    for name in results[0]:
        for method in ("HMC", *OTHERS):
            columns = (
                mean_and_error(values(results, name, method, metric=key))
                for key in ("nll", "nll_scaled", "temperature")
            )
            rows.append([name, method, *columns])
    return Table(
        ["problem", "method", "NLL", "NLL after scaling", "temperature"],
        rows,
        "Is it the order of the classes that a method gets wrong, or only its confidence? The temperature by which log "
        "probabilities are divided was fitted on training rows that were not trained on. Below 1: not sure enough.",
        formats={"NLL": ".4f", "NLL after scaling": ".4f", "temperature": ".2f"},
    )


def _together_table(results: Results) -> Table:
    metrics = {"nll": "NLL", "agreement": "agreement with HMC", "total_variation": "TV from HMC"}
    rows = []
    for name in results[0]:
        for method in STOCHASTIC:
            shown = (mean_and_error(values(results, name, method, metric=key, of="all")) for key in metrics)
            work = np.mean([result[name]["passes"][method] for result in results])
            rows.append([name, method, *shown, float(work)])
        hmc = float(np.mean([result[name]["passes"]["HMC"] for result in results]))
        rows.append([name, "HMC", mean_and_error(values(results, name, "HMC", metric="nll")), None, None, hmc])
    return Table(
        ["problem", "all chains of", *metrics.values(), "passes over the data"],
        rows,
        "The samplers with all their chains together, and what they cost.",
        formats={**dict.fromkeys(metrics.values(), ".4f"), "passes over the data": ",.0f"},
    )


def _chains_table(results: Results) -> Table:
    def row(name: str) -> list[Any]:
        found = [result[name]["chains"] for result in results]

        def mean(key: str, space: str = "") -> Any:
            return mean_and_error([one[space][key] if space else one[key] for one in found])

        shares = [mean("share", space) for space in ("functions", "weights")]
        length = f"{found[0]['chains']} × {found[0]['draws']}"
        worst = float(sum(one["divergences"] for one in found))
        return [name, length, mean("leapfrogs"), mean("acceptance"), worst, mean("ebfmi"), *shares]

    columns = ["chains × draws", "leapfrog steps", "acceptance", "divergences", "E-BFMI"]
    spaces = ["R-hat < 1.1: probabilities", "weights"]
    return Table(
        ["problem", *columns, *spaces],
        [row(name) for name in results[0]],
        "The chains of HMC, after burn-in: mean over seeds ± standard error, the sum for divergences; shares of test "
        "probabilities and of weights with R-hat below 1.1.",
        formats={"leapfrog steps": ".0f", "divergences": ".0f", "acceptance": ".2f", "E-BFMI": ".2f"},
    )


def _figures(results: Results) -> tuple[Picture, ...]:
    def drawn(metric: str, hmc: str) -> dict[str, dict[str, np.ndarray]]:
        return {
            name: {m: values(results, name, m, metric=metric, of=hmc if m == "HMC" else "") for m in ("HMC", *OTHERS)}
            for name in results[0]
        }

    chain = (
        "For HMC, one chain against the average of the others, an estimate of the ceiling: its chain has fewer draws "
        "and its reference one chain less than the others have. One chain of each SG-MCMC method."
    )
    return (
        Picture(
            "Total variation from HMC",
            figures.metric_dots(
                drawn("total_variation", "one"), "total variation from HMC", over="seeds", better="low"
            ),
            f"How far the test predictions are from those of HMC. {chain}",
        ),
        Picture(
            "Agreement with HMC",
            figures.metric_dots(drawn("agreement", "one"), "agreement with HMC", over="seeds", better="high"),
            f"How often the most probable class is that of HMC. {chain}",
        ),
        Picture(
            "NLL on test rows",
            figures.metric_dots(drawn("nll", ""), "NLL", over="seeds"),
            "HMC with all its chains; one chain of each SG-MCMC method.",
        ),
        Picture(
            "Confidence less accuracy",
            figures.metric_dots(drawn("gap", ""), "mean confidence − accuracy (zero is calibrated)", over="seeds"),
            "Left of zero a method is less sure than it should be, right of it too sure.",
        ),
    )
