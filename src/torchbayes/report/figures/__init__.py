"""Figures from plain arrays: each function returns a matplotlib `Figure`, all in one style.

Save one with `torchbayes.report.savefig`, or hand it to `torchbayes.report.write_report`.
"""

from torchbayes.report.figures.chains import ess_histograms, rhat_histogram, traces_and_ranks
from torchbayes.report.figures.classes import (
    confusion_matrix,
    entropy_histograms,
    referral_curves,
    reliability_diagram,
    risk_curves,
)
from torchbayes.report.figures.curves import measure_curves, severity_curves, severity_panels, training_curves
from torchbayes.report.figures.dependence import partial_dependence
from torchbayes.report.figures.dots import Dots, fidelity_dots, metric_dots, ranked_dots
from torchbayes.report.figures.functions import correlation_maps, function_draws
from torchbayes.report.figures.images import uncertain_images
from torchbayes.report.figures.landscapes import loss_surfaces, ray_profiles, spectrum_density
from torchbayes.report.figures.predictions import Band, classification_surface, predictive_band
from torchbayes.report.figures.regression import (
    coverage_curves,
    errors_by_scale,
    pit_histogram,
    predicted_observed,
    residuals,
)
from torchbayes.report.figures.rows import row_scatter
from torchbayes.report.style import Better

__all__ = [
    "Band",
    "Better",
    "Dots",
    "classification_surface",
    "confusion_matrix",
    "correlation_maps",
    "coverage_curves",
    "entropy_histograms",
    "errors_by_scale",
    "ess_histograms",
    "fidelity_dots",
    "function_draws",
    "loss_surfaces",
    "measure_curves",
    "metric_dots",
    "partial_dependence",
    "pit_histogram",
    "predicted_observed",
    "predictive_band",
    "ranked_dots",
    "ray_profiles",
    "referral_curves",
    "reliability_diagram",
    "residuals",
    "rhat_histogram",
    "risk_curves",
    "row_scatter",
    "severity_curves",
    "severity_panels",
    "spectrum_density",
    "traces_and_ranks",
    "training_curves",
    "uncertain_images",
]
