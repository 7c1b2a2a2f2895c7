"""The check against HMC, on as many rows as it can sample."""

from __future__ import annotations

from typing import Any

import torch

from torchbayes.assess.diagnose import diagnose
from torchbayes.certificate.case import Case, distance, measure, sampled, spread, summary
from torchbayes.certificate.certificate import Check, graded, not_judged, worst
from torchbayes.metrics.fidelity import floor
from torchbayes.model.model import Model
from torchbayes.selection import fit

NAME = "reference"
_NEAR, _FAR = {"TV": 0.02, "W1 / sd": 0.1}, {"TV": 0.1, "W1 / sd": 0.3}
_FLOORS = 1.5  # distances within as many times that of another sample of the reference are green
_SPREAD, _NO_SPREAD = 1.5, 3.0  # factors of the spread of functions: green, and red beyond
_AGREE, _SHARE = 1.05, 0.9  # R-hat of the reference, and the least share of predictions within


def reference(case: Case) -> Check:
    """Return the check against the draws of a reference."""
    rows, budget = case.few, case.budget
    compared = case.results.get(NAME, lambda: _compared(case))
    here, there = compared["method"], compared["reference"]
    if there["agree"] < _SHARE:
        return not_judged(
            NAME,
            f"The reference has not converged on {rows.size} rows: R-hat is at most {_AGREE} for "
            f"{100 * there['agree']:.0f} % of its predictions.",
            "Fewer rows, or a reference of more steps: Budget(rows=…, reference=NUTS(steps=…)).",
        )
    name, apart = measure(here), distance(here, there)
    ratio = float((torch.tensor(here["spread"]) / torch.tensor(there["spread"]).clamp_min(1e-30)).median())
    # a point has no spread, and a fit too wide is as wrong as one too narrow
    factor = max(ratio, 1 / max(ratio, 1e-9))
    near = max(_NEAR[name], _FLOORS * there["floor"])
    grade = worst(graded(apart, green=near, red=max(_FAR[name], near)), graded(factor, green=_SPREAD, red=_NO_SPREAD))
    on = "All" if rows.size == case.rows.size else "A fit of"
    return Check(
        NAME,
        grade,
        {name: apart, "floor": there["floor"], "spread of f": ratio, "rows": rows.size},
        f"green: {name} at most {_NEAR[name]} or {_FLOORS} floors, spread within a factor {_SPREAD}; red: above "
        f"{_FAR[name]}, or a factor {_NO_SPREAD:g}",
        f"{on} {rows.size} rows: predictions are {apart:.2g} in {name} from those of "
        f"{type(budget.reference).__name__}, of which another sample would be {there['floor']:.2g} away, and functions "
        f"spread {ratio:.2g} times as much.",
        "" if grade == "green" else "More members, a richer family, or the reference itself where rows are this few.",
    )


def _summarised(posterior: Any, case: Case) -> dict[str, Any]:
    flat = spread(posterior, case.inputs, seed=case.seed).flatten().tolist()
    return {**summary(posterior, case.inputs, seed=case.seed), "spread": flat}


def _compared(case: Case) -> dict[str, Any]:
    """Return the predictions of the posterior, of a fit of fewer rows if it has too many, and of the reference."""
    rows = case.few
    # under its own model, whose prior the fit may have chosen
    posterior = case.posterior if rows.size == case.rows.size else case.fitted(rows, case.seed)
    return {"method": _summarised(posterior, case), "reference": _sampled(case, posterior.model)}


def _sampled(case: Case, model: Model) -> dict[str, Any]:
    """Return the predictions of the reference, how far another sample would be, and how many of them agree."""
    rows = case.few
    posterior = fit(model, (rows.inputs, rows.targets), case.budget.reference, seed=case.seed)
    diagnosis: Any = diagnose(posterior, case.inputs)
    rhat = diagnosis.spaces[diagnosis.functions].rhat
    agree = float((rhat <= _AGREE).double().mean())
    functions, chains = posterior.functions(), posterior.members
    draw_S, half = torch.arange(functions.draws), chains // 2 or 1
    part_S = draw_S % chains if chains > 1 else 2 * draw_S // functions.draws  # one chain is halved in time
    halves = [
        summary(sampled(functions.some(where)), case.inputs, seed=case.seed + number)
        for number, where in enumerate((part_S < half, part_S >= half))
    ]
    smallest = floor({"apart": distance(*halves)}, (half, max(chains, 2) - half))["apart"]
    return {**_summarised(posterior, case), "floor": smallest, "agree": agree}
