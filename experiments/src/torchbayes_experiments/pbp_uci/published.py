"""Published numbers that `pbp_uci` is compared with."""

from __future__ import annotations

# Table 1 of Hernandez-Lobato and Adams (2015) as Lakshminarayanan et al. (2017), table 1, repeat it: mean over the
# standard splits and standard error. Their log likelihoods are negated here, as there
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "boston": {"rmse": (3.01, 0.18), "nll": (2.57, 0.09)},
    "concrete": {"rmse": (5.67, 0.09), "nll": (3.16, 0.02)},
    "energy": {"rmse": (1.80, 0.05), "nll": (2.04, 0.02)},
    "kin8nm": {"rmse": (0.10, 0.00), "nll": (-0.90, 0.01)},
    "naval": {"rmse": (0.01, 0.00), "nll": (-3.73, 0.01)},
    "power": {"rmse": (4.12, 0.03), "nll": (2.84, 0.01)},
    "protein": {"rmse": (4.73, 0.01), "nll": (2.97, 0.00)},
    "wine": {"rmse": (0.64, 0.01), "nll": (0.97, 0.01)},
    "yacht": {"rmse": (1.02, 0.05), "nll": (1.63, 0.02)},
}
ROUNDING = 0.005  # largest rounding error of a number printed to two digits
