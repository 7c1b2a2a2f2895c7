r"""Simulation-based calibration: does the method find the posterior of data whose truth is known?

    w̃ ~ p(w),  ỹ ~ p(y | X, w̃),  w_1 … w_L from the fit of (X, ỹ):  u = (#{f(w_l) < f(w̃)} + V) / (L + 1)

is uniform on (0, 1) for every function f of weights and data (Talts et al. 2018); V is uniform on (0, 1), and on
(0, 1 + ties) where draws equal the truth. The functions do not depend on the order or the signs of hidden units:
outputs at some inputs, projected on a fixed direction; their mean; learned parameters of the likelihood; log prior; and
the log likelihood, which depends on the data: only such a function tells the prior from the posterior (Modrák et al.
2023). Draws of chains are thinned to their effective number, because ranks among dependent draws are not uniform.
With truths from a posterior, fits have the real rows too (Säilynoja et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchbayes.certificate.case import Case, Drawn, drawn
from torchbayes.certificate.certificate import Check, Grade, worst
from torchbayes.certificate.uniformity import Uniformity, resolution, uniformity
from torchbayes.diagnostics import ess_bulk
from torchbayes.driver.progress import counted
from torchbayes.methods.protocol import DivergedError
from torchbayes.model.batches.batch import Batch, concatenate
from torchbayes.model.layout import broadcasting
from torchbayes.model.model import Model
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.prior import prior_functions
from torchbayes.randomness.seeds import Purpose, generator, mix

NAME = "simulation"
_DRAWS = 99  # most draws among which a truth is ranked
_CHAIN_DRAWS = 400  # most draws of chains from which these are taken
_PROBES = 3
_SHIFT, _WIDTH = 0.5, 1.5  # sizes of what is red: posterior standard deviations, and a factor
_OF_WEIGHTS = ("log likelihood", "log prior")  # their shifts are less easily read than those of outputs
_TELLING = 1.0  # shifts up to which the variance of ranks tells the width
_FEWEST = 30  # simulations below which nothing is green
_LEVEL = 0.05
_UNLIKE = 5.0  # factor between the spreads of simulated and real targets from which they are unlike


def simulation(case: Case) -> Check:
    """Return the check by simulated data."""
    case.check_fits()
    budget, simulated = case.budget, []
    truths = None
    if budget.source == "posterior":
        truths = drawn(case.posterior, _with_probe(case.few.inputs)[0], budget.simulations, seed=case.seed)
    with counted("Simulated data", budget.simulations, unit="fits") as tell:
        for number in range(budget.simulations):
            name = f"{NAME}-{budget.source}/{number:04d}"
            simulated.append(case.results.get(name, lambda number=number: _simulated(case, number, truths)))
            tell(number + 1)
    return judged(simulated, budget.source)


def _simulated(case: Case, number: int, truths: Drawn | None) -> dict[str, Any]:
    """Return the ranks of one truth, or why its fit failed."""
    model, rows = case.model, case.few
    seed = mix(Purpose.SIMULATION, case.seed, number)
    inputs, count = _with_probe(rows.inputs)
    truth = _truth(model, rows.inputs, inputs, seed=seed) if truths is None else _one(truths, number)
    targets = _targets(model, truth, rows, seed=seed)
    simulated = Batch(rows.inputs, targets)
    fitted_rows = simulated if truths is None else concatenate([case.rows, simulated])
    try:
        posterior = case.fitted(fitted_rows, seed)
        draws = drawn(posterior, inputs, _DRAWS if posterior.chain_length is None else _CHAIN_DRAWS, seed=seed)
        if not bool(draws.outputs_SBK.isfinite().all()):
            return {"failed": "the fit of simulated data gives outputs that are not finite"}
    except NotImplementedError:
        raise
    except RuntimeError as error:  # a run that diverged
        return {"failed": str(error)}
    of_truth, of_draws = (
        quantities(model, functions, targets, count=count, seed=case.seed) for functions in (truth, draws)
    )
    kept = _thinned(of_draws, posterior)
    source = generator(Purpose.RANK_TIES, seed)
    ranks = {name: _rank(of_truth[name][0], of_draws[name][kept], source) for name in of_truth}
    ratio = _spread(targets) / _spread(rows.targets) if targets.is_floating_point() else 1.0
    return {"ranks": ranks, "draws": len(kept), "spread": ratio}


def _truth(model: Model, rows: Any, inputs: Any, *, seed: int) -> Drawn:
    functions = prior_functions(model, 1, seed=seed, calibration=rows)
    return Drawn(functions(inputs), functions.weights_SD, functions.parameters)


def _one(truths: Drawn, number: int) -> Drawn:
    where = slice(number % len(truths.weights_SD), number % len(truths.weights_SD) + 1)
    parameters = {name: values[where] for name, values in truths.parameters.items()}
    return Drawn(truths.outputs_SBK[where], truths.weights_SD[where], parameters)


def _with_probe(inputs: Any) -> tuple[Any, int]:
    """Return inputs with one outside the data after them, if they are numbers in one tensor; and how many are rows.

    It lies on the line from the mean to the row that is farthest from it, twice as far.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return inputs, 0
    moves = inputs - inputs.mean(0)
    farthest = int(moves.flatten(1).norm(dim=1).argmax())
    outside = inputs.mean(0) + 2 * moves[farthest]
    return torch.cat([inputs, outside.unsqueeze(0)]), len(inputs)


def _targets(model: Model, truth: Drawn, rows: Batch, *, seed: int) -> Tensor:
    """Return simulated targets in the form of the real ones; a ValueError if the likelihood gives others."""
    outputs_SBK = truth.outputs_SBK[:, : rows.size]
    parameters = broadcasting(truth.parameters, outputs_SBK)
    targets = Predictive(outputs_SBK, model.likelihood, parameters).sample(1, seed=seed)[0]
    real = rows.targets
    if not isinstance(real, Tensor) or real.numel() != targets.numel():
        raise ValueError(
            "targets that the likelihood draws have not the form of the real ones, as where these have weights or "
            "soft labels, so that no data can be simulated."
        )
    return targets.reshape(real.shape).to(real.dtype)


def quantities(model: Model, functions: Drawn, targets: Tensor, *, count: int, seed: int) -> dict[str, Tensor]:
    """Return functions of weights and data for each of S draws, name -> (S,), float64 on the CPU.

    Of the inputs, the first as many as there are targets are rows, and one may follow that is outside of them.
    """
    rows = len(targets)
    outputs_SBK = functions.outputs_SBK
    likelihoods_SB = model.likelihood.log_prob(
        outputs_SBK[:, :rows], targets, broadcasting(functions.parameters, outputs_SBK[:, :rows])
    )
    flat_SBK = outputs_SBK.double().flatten(2).cpu()
    direction_K = torch.randn(flat_SBK.shape[-1], generator=generator(Purpose.PROBES, seed), dtype=torch.float64)
    direction_K *= direction_K[0].sign() / direction_K.norm()
    projected_SB = flat_SBK @ direction_K
    statistics = {"log likelihood": likelihoods_SB.double().flatten(1).sum(1).cpu()}
    statistics["log prior"] = model.log_prior(functions.weights_SD).double().cpu()
    for probe in range(min(_PROBES, rows)):
        statistics[f"output at row {rows * probe // _PROBES}"] = projected_SB[:, rows * probe // _PROBES]
    if count:
        statistics["output outside"] = projected_SB[:, count]
    statistics["mean output"] = projected_SB[:, :rows].mean(1)
    for name, values in functions.parameters.items():
        statistics[name] = values.double().flatten(1).mean(1).cpu()
    return statistics


def _thinned(values: Mapping[str, Tensor], posterior: Any) -> list[int]:
    """Return the numbers of draws that are nearly independent: of chains, as many as they are worth."""
    total, members = len(next(iter(values.values()))), posterior.members
    if posterior.chain_length is None:
        return list(range(total))
    worth = _DRAWS
    if total // members >= 4:  # chains of fewer draws have no known autocorrelation
        # chains that never move claim to be certain, and their draws are ranked as they are
        stacked_MSQ = torch.stack(list(values.values()), 1).unflatten(0, (-1, members)).transpose(0, 1)
        sizes_Q = ess_bulk(stacked_MSQ)
        worth = int(sizes_Q[~sizes_Q.isnan()].min()) if not bool(sizes_Q.isnan().all()) else total
    count = max(1, min(_DRAWS, worth, total))
    # rounds are spread over the run, and draws over the chains, which are neighbours in a round
    return [k * total // count // members * members + k % members for k in range(count)]


def _rank(truth: Tensor, draws_S: Tensor, source: torch.Generator) -> float:
    below, ties = int((draws_S < truth).sum()), int((draws_S == truth).sum())
    noise = float(torch.rand((), generator=source, dtype=torch.float64))
    return (below + noise * (ties + 1)) / (len(draws_S) + 1)


def _spread(targets: Tensor) -> float:
    return max(float(targets.double().std(correction=0)), 1e-300)


def judged(simulated: list[dict[str, Any]], source: str) -> Check:
    """Return the check from the ranks of all simulations."""
    done = [each for each in simulated if "ranks" in each]
    failed = len(simulated) - len(done)
    if len(done) < 2:
        problem = f"of {len(simulated)} fits of simulated data, {failed} failed: {_reason(simulated)}."
        raise DivergedError(problem) if failed > len(done) else ValueError(problem)
    ranks = {name: torch.tensor([each["ranks"][name] for each in done]).double() for name in done[0]["ranks"]}
    tests = {name: uniformity(values_N) for name, values_N in ranks.items()}
    adjusted = {name: min(1.0, test.p_value * len(tests)) for name, test in tests.items()}
    name = min(
        tests, key=lambda each: (adjusted[each] >= _LEVEL, each in _OF_WEIGHTS, adjusted[each], -tests[each].largest)
    )
    grades: list[Grade] = [_grade(test, adjusted[each]) for each, test in tests.items()]
    finest = resolution(len(done))
    least: Grade = "red" if failed > len(done) else "amber" if len(done) < _FEWEST or failed else "green"
    grade = worst(*grades, least)
    test = tests[name]
    return Check(
        NAME,
        grade,
        {
            "p": min(adjusted.values()),
            "shift / sd": test.shift,
            "width": test.width,
            "simulations": len(done),
            "resolves": finest,
            "draws": min(each["draws"] for each in done),
        },
        f"green: p ≥ {_LEVEL}; red: below, and a shift beyond {_SHIFT} sd or a width beyond a factor {_WIDTH}",
        _meaning(name, test, adjusted[name], finest) + _failed(failed, simulated) + _unlike(done, source),
        _remedy(test, adjusted[name], grade),
        {each: values_N.tolist() for each, values_N in ranks.items()},
    )


def _grade(test: Uniformity, adjusted: float) -> Grade:
    if adjusted >= _LEVEL:
        return "green"
    far = abs(test.shift) > _SHIFT or not 1 / _WIDTH <= test.width <= _WIDTH
    return "red" if far else "amber"


def _meaning(name: str, test: Uniformity, adjusted: float, finest: float) -> str:
    if adjusted >= _LEVEL and test.count < _FEWEST:
        return (
            f"{test.count} simulations are too few to say: an error of a distribution function below {finest:.2g} "
            f"would not have been seen."
        )
    if adjusted >= _LEVEL:
        return (
            f"In {test.count} data sets with a known truth, the method's posteriors rank the truth as they should; an "
            f"error of a distribution function below {finest:.2g} would not have been seen."
        )
    low, high = test.width_interval
    # far from the truth, ranks are all at one end, and tell nothing of the width
    width = f", and the posterior has {test.width:.2g} times the right width ({low:.2g} to {high:.2g})"
    return (
        f"In {test.count} data sets with a known truth, its ranks are not uniform, most of all for the {name}: centres "
        f"are off by {test.shift:+.2g} posterior sd (95 % {test.shift_interval[0]:+.2g} to "
        f"{test.shift_interval[1]:+.2g}){width if abs(test.shift) < _TELLING else ''}."
    )


def _remedy(test: Uniformity, adjusted: float, grade: Grade) -> str:
    if grade == "green" or adjusted >= _LEVEL:
        return "More simulations see smaller errors: 200 see .1."
    if test.width < 1:
        return (
            "Posteriors are too narrow: take members from several starts, a sampler, or a richer family; predictive "
            "intervals can be widened by `torchbayes.conformal`."
        )
    return "Train or sample longer, or take another method: HMC on few rows shows what the posterior is."


def _failed(failed: int, simulated: list[dict[str, Any]]) -> str:
    return f" {failed} of {len(simulated)} fits failed ({_reason(simulated)})." if failed else ""


def _reason(simulated: list[dict[str, Any]]) -> str:
    return next((each["failed"].splitlines()[0].rstrip(".") for each in simulated if "failed" in each), "none was made")


def _unlike(done: list[dict[str, Any]], source: str) -> str:
    """Return a warning if data from the prior are unlike the real ones."""
    ratio = float(torch.tensor([each["spread"] for each in done]).double().median())
    if source != "prior" or 1 / _UNLIKE <= ratio <= _UNLIKE:
        return ""
    return (
        f" Targets drawn under the prior spread {ratio:.2g} times as much as the real ones, so that this says little "
        f"of data like these: give the budget source='posterior'."
    )
