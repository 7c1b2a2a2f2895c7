"""Calibrators of more than two classes: against dense optimisation, other libraries, and simulated truths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.oracles import normal
from torchbayes.calibration import scaling
from torchbayes.calibration.fit import METHODS
from torchbayes.calibration.newton import TOLERANCE, ByClass, ByMatrix, Optimum, minimised
from torchbayes.calibration.rows import LEAST, Rows, joined, rows_of
from torchbayes.calibration.scaling import STRENGTHS, cross_validated, dirichlet_of

K, N = 4, 60


def labels_of(logits_BK: Tensor, seed: int = 5) -> Tensor:
    return torch.multinomial(logits_BK.softmax(-1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def rows_from(logs_BK: Tensor, labels: Tensor, weights_B: Tensor | None = None) -> Rows:
    shares_BK = labels if labels.is_floating_point() else torch.nn.functional.one_hot(labels, logs_BK.shape[1]).double()
    return Rows(logs_BK, shares_BK, torch.ones(len(logs_BK)).double() if weights_B is None else weights_B)


LOGS = (2 * normal(N, K)).log_softmax(-1)
ROWS = rows_from(LOGS, labels_of(LOGS / 2), 0.5 + normal(N, seed=3).abs())
SOFT = rows_from(LOGS, (LOGS / 2 + normal(N, K, seed=4)).softmax(-1))


def structured(rows: Rows, *, full: bool) -> Tensor:
    """The objective of SVS or SMS as the paper writes it, minimised by BFGS over W and c with torch's gradients."""
    mixed = METHODS["ts-mix"](rows).transform(rows.log_probs_BK)
    share_B = rows.weights_B / rows.count

    def objective(theta: Tensor) -> Tensor:
        delta_KK = theta[: K * K].view(K, K) if full else theta[:K].diag()
        bias_K = theta[-K:]
        logits = mixed + mixed @ delta_KK.T + bias_K
        loss = -(share_B[:, None] * rows.shares_BK * logits.log_softmax(-1)).sum()
        diagonal = delta_KK.diagonal().square().sum()
        rest = delta_KK.square().sum() - diagonal
        return loss + (K * (bias_K.square().sum() + diagonal) + K * (K - 1) * rest) / rows.count

    theta = torch.zeros((K * K if full else K) + K, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [theta], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        value = objective(theta)
        value.backward()
        return value

    solver.step(closure)  # type: ignore[arg-type]
    delta_KK = theta[: K * K].view(K, K) if full else theta[:K].diag()
    return (mixed + mixed @ delta_KK.T + theta[-K:]).log_softmax(-1).detach()


@pytest.mark.parametrize("rows", [ROWS, SOFT], ids=["weighted", "soft"])
@pytest.mark.parametrize("full", [False, True], ids=["svs", "sms"])
def test_structured_scaling_minimises_its_objective(rows, full):
    actual = METHODS["sms" if full else "svs"](rows).transform(rows.log_probs_BK)
    torch.testing.assert_close(actual, structured(rows, full=full), atol=1e-6, rtol=0)


@pytest.mark.parametrize("design", [ByClass(LOGS), ByMatrix(LOGS)], ids=["vector", "matrix"])
def test_the_optimum_is_as_close_as_it_says(design):
    """The bound of the gap, for penalised rows; gradients by finite differences vanish at the optimum."""
    size = (K if isinstance(design, ByClass) else K * K) + K
    start = normal(size, seed=2)
    penalty = 0.05 + normal(size, seed=6).abs()

    def value(theta: Tensor) -> float:
        return ROWS.loss(design.logits(theta).log_softmax(-1)) + float(penalty @ (theta - start).square())

    actual = minimised(design, ROWS, start_P=start, penalty_P=penalty)
    assert isinstance(actual, Optimum)
    assert 0 <= actual.gap <= TOLERANCE
    assert actual.loss == pytest.approx(value(actual.coefficients_P), abs=1e-14)
    step = 1e-5
    for direction in torch.eye(size).double():
        slope = (
            value(actual.coefficients_P + step * direction) - value(actual.coefficients_P - step * direction)
        ) / step
        assert abs(slope / 2) < 1e-5
    assert min(value(actual.coefficients_P + 0.01 * normal(size, seed=s)) for s in range(5)) > actual.loss


# Fifteen rows of three classes, and what probmetrics 1.3.0 (single precision; its BFGS stops 2e-7 above the optimum)
# and venn-abers 1.5.4 make of the first two and of (.98, .01, .01).
PROBS = torch.tensor([[6, 3, 1], [1, 8, 1], [2, 2, 6], [7, 2, 1], [3, 4, 3], [1, 1, 8], [5, 4, 1], [2, 7, 1], [1, 3, 6],
                      [8, 1, 1], [4, 3, 3], [1, 6, 3], [3, 1, 6], [9, 0.5, 0.5], [2, 5, 3]]).double() / 10  # fmt: skip
LABELS = torch.tensor([0, 1, 2, 0, 2, 2, 1, 1, 1, 0, 2, 1, 2, 0, 0])
AT = torch.cat([PROBS[:2], torch.tensor([[0.98, 0.01, 0.01]]).double()])
PEERS = {
    "ts-mix": [[0.7262253, 0.2245065, 0.0492682], [0.0423641, 0.9152717, 0.0423641], [0.9578273, 0.0210863, 0.0210863]],
    "svs": [
        [0.7243062257766724, 0.22140739858150482, 0.054286401718854904],
        [0.034828100353479385, 0.9212192296981812, 0.04395280033349991],
        [0.9591072797775269, 0.018032299354672432, 0.022860299795866013],
    ],
    "sms": [[0.7229115, 0.2144472, 0.0626413], [0.0305702, 0.9400302, 0.0293995], [0.947811, 0.0174036, 0.0347855]],
    "venn-abers": [
        [0.5770492, 0.3147541, 0.1081967],
        [0.1337793, 0.7491639, 0.1170569],
        [0.7792208, 0.1168831, 0.1038961],
    ],
    "venn-abers-pairs": [
        [0.5072464, 0.2898551, 0.2028986],
        [0.1336516, 0.7159905, 0.150358],
        [0.7159905, 0.1336516, 0.150358],
    ],
}


@pytest.mark.parametrize("name", PEERS)
def test_other_libraries_agree(name):
    calibrator = tb.calibration.fit_calibrator(tb.Predictive.from_probs(PROBS), LABELS, method=name)
    actual = tb.Predictive.from_probs(AT)
    expected = torch.tensor(PEERS[name], dtype=torch.float64)
    torch.testing.assert_close(
        calibrator(actual).probs, expected, atol=1e-3 if name in {"svs", "sms"} else 1e-6, rtol=0
    )


def miscalibrated(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities off by a matrix and a bias, labels, and the true log probabilities."""
    truth = 2 * normal(rows, 5, seed=seed)
    noise = normal(5, 5, seed=11)
    matrix = torch.eye(5).double() + 0.25 * (
        noise - noise.mean(1, keepdim=True)
    )  # rows sum to 1: it has an inverse map
    return (
        (2 * truth @ matrix.T + 0.5 * normal(5, seed=12)).log_softmax(-1),
        labels_of(truth, 100 + seed),
        truth.log_softmax(-1),
    )


def test_structured_matrix_scaling_is_between_vector_scaling_and_the_truth():
    logs, labels, _ = miscalibrated(400, 1)
    new, targets, truth = miscalibrated(20_000, 2)
    rows, test = rows_from(logs, labels), rows_from(new, targets)
    losses = {name: test.loss(METHODS[name](rows).transform(new)) for name in ("ts", "ts-mix", "svs", "sms")}
    assert test.loss(truth) < losses["sms"] < losses["svs"] - 0.02 < losses["ts"] - 0.03 < test.loss(new) - 0.2
    assert losses["ts-mix"] == pytest.approx(losses["ts"], abs=2e-3)
    automatic = tb.calibration.fit_calibrator(tb.Predictive.from_probs(logs.exp()), labels)
    assert test.loss(automatic.transform(new)) == pytest.approx(losses["sms"], abs=1e-8)  # type: ignore[attr-defined]


def test_with_many_rows_every_matrix_finds_the_truth():
    """Its 30 coefficients gain 15/n = .003 nats on the rows they are fitted to, and lose as much on others."""
    logs, labels, truth = miscalibrated(5000, 2)
    rows = rows_from(logs, labels)
    for fitted in (METHODS["sms"](rows), scaling._dirichlet(rows, 1e-5)):
        assert rows.loss(fitted.transform(logs)) == pytest.approx(rows.loss(truth) - 0.003, abs=3e-3)


def test_dirichlet_takes_the_best_strength_of_five():
    chosen = dirichlet_of(ROWS)
    losses = {each: cross_validated(ROWS, lambda part, each=each: scaling._dirichlet(part, each)) for each in STRENGTHS}
    best = scaling._dirichlet(ROWS, min(losses, key=lambda each: losses[each]))
    torch.testing.assert_close(chosen.weight, best.weight)
    assert len(set(losses.values())) == len(STRENGTHS)


def test_cross_validation_leaves_rows_out():
    """Every fifth row is judged by a fit on the others, by hand for temperature scaling."""
    total = 0.0
    for fold in range(5):
        outside = torch.arange(N) % 5 == fold
        parts = [Rows(ROWS.log_probs_BK[c], ROWS.shares_BK[c], ROWS.weights_B[c]) for c in (~outside, outside)]
        total += parts[1].loss(METHODS["ts"](parts[0]).transform(parts[1].log_probs_BK)) * parts[1].count
    assert cross_validated(ROWS, METHODS["ts"]) == pytest.approx(total / ROWS.count)


@pytest.mark.parametrize("name", ["ts", "ts-mix", "svs", "sms", "venn-abers", "venn-abers-pairs"])
def test_a_row_of_weight_two_is_two_rows(name):
    labels = ROWS.shares_BK.argmax(1)
    twice = torch.where(torch.arange(N) % 3 == 0, 2.0, 1.0).double()
    repeated = torch.arange(N).repeat_interleave(twice.long())
    a = METHODS[name](rows_from(LOGS, labels, twice))
    b = METHODS[name](rows_from(LOGS[repeated], labels[repeated]))
    torch.testing.assert_close(a.transform(LOGS), b.transform(LOGS), atol=1e-7, rtol=0)


def test_probabilities_of_zero_and_one():
    """Of what happened they are clipped; others stay 0 under a temperature, and are not 0 where rows are mixed."""
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.8, 0.0]])
    rows = joined([rows_of(tb.Predictive.from_probs(probs), torch.tensor([1, 2, 1]))])
    assert rows.log_probs_BK[0].tolist() == pytest.approx([0.0, LEAST, -torch.inf])
    for name in METHODS.keys() - {"affine", "quadratic", "beta"}:
        mapped = METHODS[name](rows).transform(rows.log_probs_BK)
        assert not mapped.isnan().any()
        torch.testing.assert_close(mapped.exp().sum(1), torch.ones(3).double())
        if name != "ts":
            assert mapped.isfinite().all()


@pytest.mark.parametrize("name", ["ts", "ts-mix", "svs", "sms", "venn-abers", "venn-abers-pairs", "auto"])
@pytest.mark.parametrize(
    ("rows", "labels"),
    [(1, [2]), (9, [1]), (9, [0, 1]), (4, [0, 1, 2, 3])],
    ids=["one row", "one class", "unseen", "K = B"],
)
def test_few_rows_and_classes(name, rows, labels):
    """Whatever is held out, calibrated probabilities are finite, normalised, and of every class above 0."""
    targets = torch.tensor(labels).repeat(rows)[:rows]
    predictive = tb.Predictive(3 * normal(2, rows, K), tb.likelihoods.Categorical())
    calibrator = tb.calibration.fit_calibrator(predictive, targets, method=name)
    probs = calibrator(tb.Predictive(3 * normal(2, 20, K, seed=1), tb.likelihoods.Categorical())).probs
    assert probs.shape == (20, K)
    torch.testing.assert_close(probs.sum(1), torch.ones(20).double())
    assert bool((probs > 0).all()) or name == "ts"


def test_a_temperature_keeps_the_most_probable_class_and_others_say_what_they_changed():
    model = tb.Model(torch.nn.Linear(2, 3).double(), tb.likelihoods.Categorical())
    posterior = tb.Point(model, normal(3, 9, seed=1))
    inputs = normal(300, 2)
    biased = labels_of(tb.predict(posterior, inputs).probs.log() / 2 + torch.tensor([0.0, 1.5, -1.5]))
    kept = tb.calibration.fit(posterior, (inputs, biased), method="ts-mix")
    assert kept.calibrator.keeps_argmax  # type: ignore[attr-defined]
    assert kept.held_out["changed"] == 0
    assert "no row has another" in str(kept)
    moved = tb.calibration.fit(posterior, (inputs, biased), method="svs")
    assert not moved.calibrator.keeps_argmax  # type: ignore[attr-defined]
    before, after = (tb.predict(p, inputs).probs.argmax(1) for p in (posterior, moved))
    assert moved.held_out["changed"] == pytest.approx(float((before != after).double().mean()))
    assert moved.held_out["changed"] > 0.1
    assert "accuracy" in str(moved)


def test_calibrated_is_predicted_and_evaluated_like_a_posterior(tmp_path):
    """The log of the mean is calibrated, in batches or not, with the same draws; a file gives the same numbers."""
    model = tb.Model(torch.nn.Linear(2, 3).double(), tb.likelihoods.Categorical())
    posterior = tb.Point(model, 2 * normal(3, 9, seed=1))
    inputs, labels = normal(80, 2), torch.arange(80) % 3
    calibrated = tb.calibration.fit(posterior, (inputs, labels), method="sms")
    average = tb.predict(posterior, inputs).probs
    expected = calibrated.calibrator.transform(average.log()).exp()  # type: ignore[attr-defined]
    torch.testing.assert_close(tb.predict(calibrated, inputs).probs, expected)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=32)
    torch.testing.assert_close(tb.predict(calibrated, loader).probs, expected)
    assert tb.evaluate(calibrated, loader).metrics["nll"] == pytest.approx(calibrated.held_out["calibrated_nll"])
    assert tb.evaluate(posterior, loader).metrics["nll"] == pytest.approx(calibrated.held_out["nll"])
    assert tb.uncertainty(calibrated, inputs).entropy.shape == (80,)
    other = tb.calibration.fit(posterior, loader, method="sms").calibrator
    torch.testing.assert_close(other(tb.predict(posterior, inputs)).probs, expected)
    for name in METHODS.keys() - {"affine", "quadratic", "beta"}:
        calibrator = tb.calibration.fit_calibrator(tb.predict(posterior, inputs), labels, method=name)
        read = tb.calibration.load(calibrator.save(tmp_path / f"{name}.safetensors"))
        assert type(read) is type(calibrator)
        assert torch.equal(read(tb.predict(posterior, inputs)).probs, calibrator(tb.predict(posterior, inputs)).probs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_keep_their_dtype(dtype):
    outputs = 2 * normal(2, 100, 3)
    labels = labels_of(outputs.mean(0) / 2)
    predictive = tb.Predictive(outputs.to(dtype), tb.likelihoods.Categorical())
    actual = tb.calibration.fit_calibrator(predictive, labels, method="sms")(predictive)
    assert actual.outputs_SBK.dtype == dtype
    full = tb.Predictive(outputs, tb.likelihoods.Categorical())
    expected = tb.calibration.fit_calibrator(full, labels, method="sms")(full).probs
    torch.testing.assert_close(actual.probs.double(), expected, atol=1e-5 if dtype == torch.float32 else 0.03, rtol=0)


def test_what_is_refused():
    predictive = tb.Predictive(normal(1, 6, 3), tb.likelihoods.Categorical())
    labels = torch.arange(6) % 3
    with pytest.raises(ValueError, match="'beta' is for two classes; got 3"):
        tb.calibration.fit_calibrator(predictive, labels, method="beta")
    with pytest.raises(TypeError, match="class probabilities exist for"):
        tb.calibration.fit_calibrator(
            tb.Predictive(normal(1, 6, 1), tb.likelihoods.Gaussian()), normal(6, 1), method="sms"
        )
    with pytest.raises(ValueError, match="needs one class for each row"):
        tb.calibration.fit_calibrator(predictive, normal(6, 3).softmax(-1), method="venn-abers")
    fitted = tb.calibration.fit_calibrator(predictive, labels, method="sms")
    with pytest.raises(ValueError, match="fitted on 3 classes; got predictions over 4"):
        fitted(tb.Predictive(normal(1, 6, 4), tb.likelihoods.Categorical()))
    with pytest.raises(ValueError, match="holds NaN"):
        fitted.transform(torch.full((2, 3), torch.nan))  # type: ignore[attr-defined]
    skipped = tb.Predictive(normal(1, 6, 3), tb.likelihoods.Categorical(ignore_index=-100))
    with pytest.raises(ValueError, match="no row counts"):
        tb.calibration.fit_calibrator(skipped, torch.full((6,), -100))
