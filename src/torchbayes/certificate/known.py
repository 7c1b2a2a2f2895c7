"""The checks that fit nothing: chains, importance weights, and leave-one-out densities."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchbayes.assess.approximation import Approximating
from torchbayes.assess.diagnose import diagnose
from torchbayes.assess.diagnosis import Diagnosis
from torchbayes.assess.leave_one_out import loo
from torchbayes.certificate.case import Case
from torchbayes.certificate.certificate import Check, Grade, graded, not_judged
from torchbayes.diagnostics.convergence import ENOUGH

_GOOD, _USABLE, _MANY = 0.5, 0.7, 20  # of k-hat, and weights from which every approximation is above
_AGREE, _NEAR = 1.01, 1.05  # of R-hat
_SHARE = 0.95  # of quantities that must be near
_FEW, _TOO_MANY = 0.02, 0.1  # shares of rows with a k-hat above its threshold


def k_hat(case: Case) -> Check:
    """Return the check of a posterior with a density, by its importance weights."""
    posterior: Any = case.posterior
    if not isinstance(posterior, Approximating):
        return not_judged(
            "k-hat", "The posterior has no density: chains are judged by R-hat, point masses by the others."
        )
    diagnosis = diagnose(posterior, case.rows.inputs, case.rows.targets)
    grade = graded(diagnosis.k, green=_GOOD, red=_USABLE)
    if grade == "red" and diagnosis.weights >= _MANY:
        grade = "amber"
    return Check(
        "k-hat",
        grade,
        {"k-hat": diagnosis.k, "draws": diagnosis.draws, "effective": diagnosis.ess, "weights": diagnosis.weights},
        f"green: below {_GOOD}; red: above {_USABLE}, amber with {_MANY} weights or more",
        diagnosis.words,
        "" if grade == "green" else "Fewer random weights, a richer family, or HMC; the checks of functions say more.",
    )


def r_hat(case: Case) -> Check:
    """Return the check of chains, by R-hat and effective sizes of their predictions."""
    posterior: Any = case.posterior
    if posterior.chain_length is None:
        return not_judged("R-hat", "There are no chains.")
    diagnosis: Diagnosis = diagnose(posterior, case.inputs)
    space = diagnosis.spaces[diagnosis.functions]
    rhat = torch.where(space.rhat.isnan(), math.inf, space.rhat).flatten()
    near = float((rhat <= _NEAR).double().mean())
    least = float(torch.where(space.ess_bulk.isnan(), 0.0, space.ess_bulk).min())
    grades: dict[str, Grade] = {"converged": "green", "nearly converged": "amber", "not converged": "red"}
    return Check(
        "R-hat",
        grades[diagnosis.verdict],
        {"largest R-hat": float(rhat.max()), f"share ≤ {_NEAR}": near, "least ESS": least, "chains": diagnosis.chains},
        f"green: all ≤ {_AGREE}, ESS ≥ {ENOUGH} for each chain; red: fewer than {_SHARE:.0%} ≤ {_NEAR}".replace(
            "%", " %"
        ),
        f"The chains are {diagnosis.verdict} in their {diagnosis.functions}: {100 * near:.0f} % of the R-hats are at "
        f"most {_NEAR}, and the least known is worth {least:.0f} independent draws.",
        "" if diagnosis.verdict == "converged" else "More steps and chains; a longer burn-in.",
    )


def leave_one_out(case: Case) -> Check:
    """Return the check of single rows: does the posterior hang on some of them?"""
    left_out = loo(case.posterior, (case.rows.inputs, case.rows.targets))
    count = max(int((left_out.weights_N > 0).sum()), 1)
    share, rows = len(left_out.untrusted) / count, float(left_out.weights_N.sum())
    size = "leverage" if left_out.closed else "k-hat"
    grade = graded(share, green=max(_FEW, 1 / count), red=_TOO_MANY)
    return Check(
        "leave-one-out",
        grade,
        {
            f"share {size} > {left_out.threshold:.2g}": share,
            f"largest {size}": float(left_out.k_N.max()),
            "elpd / row": left_out.elpd / rows,
            "p_loo": left_out.p_loo,
        },
        f"green: one row or {_FEW:.0%} above; red: more than {_TOO_MANY:.0%}".replace("%", " %"),
        f"Without each row in turn, rows have an expected log density of {left_out.elpd / rows:.3g} nats; "
        f"{100 * share:.0f} % have a {size} above {left_out.threshold:.2g}: the posterior hangs on them, or is not "
        f"that of these rows.",
        "" if grade == "green" else "More rows or a narrower prior; score by rows that were held out.",
    )
