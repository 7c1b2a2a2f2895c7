"""Rows and what all rows share: every verb cuts the first and never the second, and row counts are checked."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.covering import some_of
from torchbayes.model.batches.batch import Batch, Shared, batch_size, check_rows, concatenate, rows_of, stack
from torchbayes.model.model import check_finite

ROWS, CONTEXT = 50, 400


class Attends(nn.Module):
    """Rows look a value up in a context: f(x) = head([x, softmax(x Cᵀ) C])."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.head(torch.cat([x, (x @ context.T).softmax(-1) @ context], dim=-1))


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, C = _normal(ROWS, 3, seed=0), _normal(CONTEXT, 3, seed=1)
TARGETS = (X[:, 0] > 0).long()
FORMS: dict[str, tuple[Any, Any]] = {"mapping": ({"x": X, "context": C}, "context"), "tuple": ((X, C), 1)}


def _net() -> nn.Module:
    torch.manual_seed(0)
    return Attends().double()


def _bound() -> tb.Model:
    """The oracle: the context is a part of the network."""

    class Bound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _net()
            self.register_buffer("context", C)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, self.context)

    return tb.Model(Bound(), tb.likelihoods.Categorical())


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_are_not_rows_are_refused_until_they_are_named(form: str) -> None:
    inputs, _ = FORMS[form]
    model = tb.Model(_net(), tb.likelihoods.Categorical())
    posterior = tb.Point(model, model.given_weights().unsqueeze(0))
    said = r"has 50, .*has 400.*Model\(\.\.\., shared=\.\.\.\)"
    for verb in (
        lambda: tb.predict(posterior, inputs),
        lambda: posterior.functions()(inputs),
        lambda: tb.evaluate(posterior, (inputs, TARGETS)),
        lambda: tb.fit(model, (inputs, TARGETS), tb.MAP(epochs=1)),
        lambda: tb.predict(tb.Linearised(_gaussian(model)), inputs),
    ):
        with pytest.raises(ValueError, match=said):
            verb()


def _gaussian(model: tb.Model) -> tb.Gaussian:
    from torchbayes.linalg import Diagonal

    weights_MD = model.given_weights().unsqueeze(0)
    return tb.Gaussian(model, weights_MD, Diagonal(torch.full_like(weights_MD, 0.1)))


METHODS = {
    "map_loop": tb.MAP(members=2, epochs=3, batch_size=16, plan="loop"),
    "map_vmap": tb.MAP(members=2, epochs=3, batch_size=16, plan="vmap"),
    "swag": tb.SWAG(members=1, epochs=4, batch_size=16, rank=2),
    "hmc": tb.HMC(chains=2, steps=4, burn_in=1, step_size=0.05, trajectory=0.2, chunk_size=16, plan="vmap"),
    "sgld": tb.SGLD(chains=2, steps=6, burn_in=2, batch_size=16, plan="loop", thin=1),
}


@pytest.mark.parametrize(("form", "method"), some_of(FORMS, METHODS, one_in=2))
def test_a_fit_with_a_shared_input_is_that_of_a_network_that_holds_it(form: str, method: str) -> None:
    inputs, name = FORMS[form]
    model, oracle = tb.Model(_net(), tb.likelihoods.Categorical(), shared=name), _bound()
    start = model.given_weights()
    actual = tb.fit(model, (inputs, TARGETS), METHODS[method], start=start, callbacks=())
    expected = tb.fit(oracle, (X, TARGETS), METHODS[method], start=start, callbacks=())
    torch.testing.assert_close(actual.sample(4, seed=1), expected.sample(4, seed=1), rtol=1e-9, atol=1e-10)
    predicted = tb.predict(actual, inputs, draws=4, chunk_size=7)
    torch.testing.assert_close(predicted.probs, tb.predict(expected, X, draws=4).probs, rtol=1e-9, atol=1e-10)
    scores = tb.evaluate(actual, (inputs, TARGETS), draws=4, chunk_size=11).metrics
    assert scores == pytest.approx(tb.evaluate(expected, (X, TARGETS), draws=4).metrics, rel=1e-8)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense", "low_rank"])
def test_laplace_with_a_shared_input_is_that_of_a_network_that_holds_it(structure: Any) -> None:
    inputs, name = FORMS["mapping"]
    model, oracle = tb.Model(_net(), tb.likelihoods.Categorical(), shared=name), _bound()
    method, start = (
        tb.Laplace(structure=structure, batch_size=16, rank=5, check_mode=False, prior="model"),
        model.given_weights(),
    )
    actual: Any = tb.fit(model, (inputs, TARGETS), method, start=start, callbacks=())
    expected: Any = tb.fit(oracle, (X, TARGETS), method, start=start, callbacks=())
    torch.testing.assert_close(actual.log_evidence(), expected.log_evidence(), rtol=1e-9, atol=1e-9)
    probs = [tb.predict(tb.Linearised(q), x, chunk_size=9).probs for q, x in ((actual, inputs), (expected, X))]
    torch.testing.assert_close(probs[0], probs[1], rtol=1e-9, atol=1e-10)


class Encodes(Attends):
    """A layer that sees the context alone, so that its calls have no axis of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return super().forward(x, self.encode(context))


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_the_curvature_of_a_layer_that_sees_what_is_shared_is_exact(structure: Any) -> None:
    torch.manual_seed(1)
    model = tb.Model(Encodes().double(), tb.likelihoods.Gaussian(0.5), shared="context")
    inputs, targets = {"x": X[:9], "context": C[:20]}, _normal(9, 2, seed=2)
    start = model.given_weights()
    method = tb.Laplace(structure=structure, check_mode=False, prior="model")
    actual: Any = tb.fit(model, (inputs, targets), method, start=start, callbacks=())
    placed = model.place(inputs)
    jacobian = torch.autograd.functional.jacobian(lambda w: model.network(w, placed), start).flatten(0, 1)
    precision = jacobian.T @ jacobian / 0.25 + torch.eye(len(start), dtype=torch.float64)
    variance = precision.inverse().diagonal() if structure == "dense" else 1 / precision.diagonal()
    torch.testing.assert_close(actual.gaussian.covariance.diagonal()[0], variance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [7, len(X)])
def test_a_batch_made_by_hand_is_as_one_unpacked(form: str, rows: int) -> None:
    inputs, name = FORMS[form]
    model, oracle = tb.Model(_net(), tb.likelihoods.Categorical(), shared=name), _bound()
    weights_MD = model.given_weights() + 0.1 * _normal(2, model.layout.size, seed=5)
    wanted = tb.LogDensity(oracle, len(X), tb.Batch(X, TARGETS))(weights_MD)
    actual = tb.LogDensity(model, len(X), tb.Batch(inputs, TARGETS), chunk_size=rows)(weights_MD)
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-10)
    by_rows = torch.stack([model.log_joint(w, tb.Batch(inputs, TARGETS), len(X)) for w in weights_MD])
    torch.testing.assert_close(by_rows, wanted.log_density, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_a_minibatch_made_by_hand_is_as_one_unpacked(plan: Any) -> None:
    model, oracle = tb.Model(_net(), tb.likelihoods.Categorical(), shared="context"), _bound()
    weights_MD = model.given_weights() + 0.1 * _normal(2, model.layout.size, seed=5)
    rows, labels = X[:10].view(2, 5, -1), TARGETS[:10].view(2, 5)
    actual = tb.LogDensity(model, len(X), plan=plan)(weights_MD, tb.Batch({"context": C, "x": rows}, labels))
    wanted = tb.LogDensity(oracle, len(X))(weights_MD, tb.Batch(rows, labels))
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-10)


def test_diagnose_takes_shared_inputs() -> None:
    inputs, name = FORMS["mapping"]
    model = tb.Model(_net(), tb.likelihoods.Categorical(), shared=name)
    weights = model.given_weights() + 0.1 * _normal(2, 12, model.layout.size, seed=4)
    actual, expected = tb.Draws(model, weights), tb.Draws(_bound(), weights)
    mine = tb.diagnose(actual, inputs, TARGETS, chunk_size=8).spaces["probabilities"].mean
    torch.testing.assert_close(mine, tb.diagnose(expected, X, TARGETS).spaces["probabilities"].mean)


def test_a_name_that_the_inputs_do_not_have_is_said() -> None:
    model = tb.Model(_net(), tb.likelihoods.Categorical(), shared="contxt")
    with pytest.raises(ValueError, match=r"`shared` names 'contxt', .* they have 'x', 'context'"):
        model.place({"x": X, "context": C})


def test_targets_may_be_a_tree_and_are_counted() -> None:
    model = tb.Model(_net(), tb.likelihoods.Categorical(), shared="context")
    batch = model.unpack(({"x": X, "context": C}, {"time": X[:, 0], "event": TARGETS}))
    assert batch.targets["event"].dtype == torch.int64
    assert rows_of(batch.targets, slice(0, 3))["time"].shape == (3,)
    with pytest.raises(ValueError, match=r"every tensor of the targets .* `time` has 50, `event` has 7"):
        model.unpack(({"x": X, "context": C}, {"time": X[:, 0], "event": TARGETS[:7]}))
    with pytest.raises(ValueError, match=r"inputs and targets must have equally many rows; got 50, 7"):
        model.unpack(({"x": X, "context": C}, {"time": X[:7, 0], "event": TARGETS[:7]}))


def test_stacks_and_joins_keep_what_is_shared_and_refuse_two_of_it() -> None:
    one = Batch((X[:5], Shared(C)), TARGETS[:5])
    other = Batch((X[5:10], Shared(C.clone())), TARGETS[5:10])
    assert concatenate([one, other]).inputs[0].shape == (10, 3)
    assert stack([one, other]).inputs[1].value is C
    assert batch_size(stack([one, other]).inputs, 1) == 5
    with pytest.raises(ValueError, match="must be the same in every batch"):
        stack([one, Batch((X[5:10], Shared(C + 1)), TARGETS[5:10])])


@pytest.mark.parametrize(
    "tree", [torch.tensor(1.0), {"x": X, "flag": torch.tensor(1.0)}, (X, [X, X[:3]])], ids=["scalar", "flag", "nested"]
)
def test_tensors_without_the_rows_of_the_others_are_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match="must have the same number of rows"):
        check_rows(tree)


def test_numbers_in_lists_are_refused_in_a_few_words() -> None:
    """Each number counts as an input of its own, so there is nothing to share, and far too much to list."""
    model = tb.Model(nn.Linear(3, 2), tb.likelihoods.Categorical())
    with pytest.raises(
        ValueError, match=r"inputs must be tensors.* 150 separate values, `inputs\[0\]\[0\]`.*as_tensor"
    ) as said:
        model.place(X.tolist())
    assert "shared" not in str(said.value)
    assert len(str(said.value)) < 300


def test_at_most_four_tensors_are_named_and_the_one_that_differs_among_them() -> None:
    tree = {f"part{n}": X[:3] if n == 7 else X for n in range(9)}
    with pytest.raises(ValueError, match=r"; `part0` has 50, `part1` has 50, `part2` has 50, `part7` has 3, …\. What"):
        check_rows(tree)


def test_what_is_shared_may_be_infinite_and_not_nan() -> None:
    """An additive attention mask is -inf where nothing may be attended to."""
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    check_finite((X, Shared(mask)))
    check_finite({"x": X, "mask": Shared({"inner": mask})})
    with pytest.raises(ValueError, match=r"inputs must be finite; 10 of 25 values are NaN or infinite"):
        check_finite((X, mask))
    with pytest.raises(
        ValueError, match=r"inputs must not be NaN; 25 of 25 values are NaN\. Check what all rows share\."
    ):
        check_finite((X, Shared(mask * torch.nan)))


def test_places_of_what_is_shared_are_no_bools() -> None:
    assert tb.Model(_net(), tb.likelihoods.Categorical(), shared=1).shared == (1,)
    with pytest.raises(TypeError, match=r"`shared` must be keys .* or places in a tuple; got True"):
        tb.Model(_net(), tb.likelihoods.Categorical(), shared=True)
