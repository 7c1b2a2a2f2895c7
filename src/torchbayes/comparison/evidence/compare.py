"""Train every network, choose its prior by the evidence, and return its evidence and test scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison.evidence.rounds import best_round, train_in_rounds
from torchbayes.comparison.evidence.settings import Settings
from torchbayes.data import Data
from torchbayes.driver.progress import Callback
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.schedules import epochs_of
from torchbayes.posteriors import LaplacePosterior
from torchbayes.predictive.linearised import Linearised


def compare_networks(
    settings: Settings, *, callbacks: Sequence[Callback] | None = (), say: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """Return the evidence of every network, trained one after the other.

    network -> numbers, in nats: `log_evidence`, `log_evidence_per_row`, `log_likelihood` (at the mode), `occam` (the
    log Occam factor, their difference), `weights`, `effective` (weights that the data determine), `scales` (prior
    scale of every parameter), `at_mode`, `test_nll`, and `test_accuracy` or `test_rmse`. `say` is called with a line
    when the training of a network begins. Raises ValueError if data, likelihood and network do not go together.
    """
    problem = settings.problem
    data = settings.problem_of(settings.networks[0]).setup().data
    models = {name: settings.problem_of(name).model(data) for name in settings.networks}
    for model in models.values():
        _ = model.layout  # builds the network: one that cannot take the data is refused before any is trained
    numbers = {}
    with problem.threading():
        for name, model in models.items():
            say(f"training: {name}, {model.layout.size:,} weights")
            numbers[name] = _numbers(settings, name, model, data, callbacks=callbacks)
    return numbers


def _numbers(
    settings: Settings, name: str, model: Any, data: Data, *, callbacks: Sequence[Callback] | None
) -> dict[str, Any]:
    """Return the numbers of one network."""
    method = replace(settings.map, members=1, plan=usual_plan(settings.problem_of(name)))
    # no evidence leads back from weights that interpolate, so only trainings under a chosen prior go to a mode
    onward = replace(method, epochs=epochs_of(method.epochs, -(-len(data.train.inputs) // method.batch_size)))
    again = [onward] * settings.rounds if settings.tune_prior != "model" else []
    laplace = Laplace(settings.structure, settings.curvature, prior="model")
    options: dict[str, Any] = {
        "groups": settings.tune_prior,
        "again": again,
        "seed": settings.seed,
        "callbacks": callbacks,
    }
    trained = train_in_rounds(model, tuple(data.train), method, laplace=laplace, **options)
    chosen = best_round(trained)
    posterior = chosen.fitted if again else chosen.tuned
    evidence, likelihood = float(posterior.log_evidence()), float(posterior.log_likelihood_M)
    scale = 1.0 if data.target_standardise is None else float(data.target_standardise.scale)
    scores = evaluate(Linearised(posterior), tuple(data.test), target_scale=scale).metrics
    kind = "accuracy" if data.classes else "rmse"
    return {
        "log_evidence": evidence,
        "log_evidence_per_row": evidence / posterior.num_data,
        "log_likelihood": likelihood,
        "occam": evidence - likelihood,
        "weights": posterior.mean_MD.shape[1],
        "effective": float(posterior.effective_parameters()),
        "scales": _scales(posterior),
        "at_mode": chosen.at_mode,
        "test_nll": scores["nll"],
        f"test_{kind}": scores[kind],
    }


def _scales(posterior: LaplacePosterior) -> dict[str, float]:
    """Return the standard deviation of the prior of every parameter."""
    stds = posterior.model.prior.stds()
    layout = posterior.model.layout
    return {name: float(part.flatten()[0]) for name, part in layout.split(stds).items()}
