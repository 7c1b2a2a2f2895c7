"""The checks themselves: what counts as a number, how values are shown, memory that is said before it is asked for."""

import dataclasses
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.refusals import things
from torchbayes import checks
from torchbayes.driver.checks import check_size
from torchbayes.linalg import Diagonal


@pytest.mark.parametrize("one", [1, np.int64(1), np.uint8(1), torch.tensor(1), np.array(1)])
def test_whole_numbers_of_any_library_count(one):
    assert checks.whole("count", one) == 1
    assert type(checks.whole("count", one)) is int
    assert type(checks.as_seed(one)) is int


@pytest.mark.parametrize(
    "no_one", [True, np.bool_(True), torch.tensor(True), 1.0, np.float64(1), torch.tensor(1.0), torch.ones(1)]
)
def test_bools_and_fractions_do_not(no_one):
    with pytest.raises(ValueError, match="`count` must be a whole number of at least 1; got"):
        checks.whole("count", no_one)


def test_numbers_of_other_libraries_become_plain_ones_that_can_be_written():
    foreign: Any = (
        np.int64(2),
        torch.tensor(3),
        np.float32(0.5),
        [np.float64(0.5), 0.9],
        torch.tensor(2.0),
        np.int64(3),
    )
    members, epochs, lr, betas, scale, seed = foreign
    method = tb.MAP(members, epochs=epochs, optimizer=tb.Adam(lr, betas=betas))
    assert (method.members, method.epochs, method.optimizer.lr) == (2, 3, 0.5)
    assert json.loads(json.dumps(dataclasses.asdict(method)))["optimizer"]["betas"] == [0.5, 0.9]
    assert tb.priors.Normal(scale) == tb.priors.Normal(2.0)
    assert tb.fit(things.model(), things.DATA, method, seed=seed, callbacks=()).members == 2


def test_arrays_with_one_axis_are_tuples_of_numbers():
    arrays: Any = (np.array([0.5, 0.25], np.float32), torch.tensor([0.5, 0.25]))
    for one in arrays:
        assert tb.likelihoods.Gaussian(one) == tb.likelihoods.Gaussian((0.5, 0.25))
        assert checks.plain_value({"a": [one, np.int64(2)]}) == {"a": [(0.5, 0.25), 2]}
    table: Any = np.ones((1, 2))
    with pytest.raises(ValueError, match=r"`scale` must be .*; got a ndarray of shape \(1, 2\)\."):
        tb.likelihoods.Gaussian(table)


def test_scales_in_single_precision_are_checked_without_a_warning():
    checks.check_scale(scale=np.float32(0.5))


@pytest.mark.parametrize(("least", "words"), [(0, "a tuple of numbers"), (1, "a tuple of one or more numbers")])
def test_how_many_numbers_are_asked_for_is_said_in_words(least, words):
    with pytest.raises(ValueError, match=f"`hidden` must be {words}; got 'wide'"):
        checks.check_each(checks.check_counts, least=least, hidden="wide")


def test_seeds_end_where_generators_end():
    assert checks.as_seed(2**64 - 1) == 2**64 - 1
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*64 - 1; got 18446744073709551616"):
        checks.as_seed(2**64)


@pytest.mark.parametrize("kind", [checks.check_numbers, checks.check_positive, checks.check_not_negative])
def test_whole_numbers_beyond_floating_point_are_no_numbers(kind):
    for value in (10**400, -(10**400), Fraction(10**400, 3)):
        with pytest.raises(ValueError, match="`x` must be"):
            kind(x=value)
    kind(x=10**300)


def test_counts_end_where_64_bits_end():
    assert checks.whole("count", 2**63 - 1) == checks.whole("count", np.uint64(2**63 - 1)) == 2**63 - 1
    for value in (2**63, np.uint64(2**63), 10**400, 10**5000):
        with pytest.raises(ValueError, match=r"`count` must be a whole number below 2\*\*63; got"):
            checks.whole("count", value)


@pytest.mark.parametrize("chunk_size", [2**31, 2**32, 2**62, 2**63 - 1])
def test_chunks_of_any_size_hold_all_rows(chunk_size):
    posterior = things.point()
    expected = tb.predict(posterior, things.INPUTS).probs
    assert torch.equal(tb.predict(posterior, things.INPUTS, chunk_size=chunk_size).probs, expected)
    whole, method = (things.model(), things.DATA), tb.HMC(2, 4, 2, step_size=0.1, trajectory=0.2)
    actual, other = (
        tb.fit(*whole, m, callbacks=()) for m in (method, dataclasses.replace(method, chunk_size=chunk_size))
    )
    assert torch.equal(actual.sample(4), other.sample(4))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (tb.MAP, "the class MAP"),
        (torch.zeros(2, 3), "a Tensor of shape (2, 3)"),
        (np.zeros(4), "a ndarray of shape (4,)"),
        ("a" * 200, "'" + "a" * 79 + "…'"),
        ([1] * 200, "an object of type list"),
        (float("nan"), "nan"),
        (np.float64(1.5), "1.5"),
        (np.str_("a"), "'a'"),
    ],
)
def test_values_are_shown_in_a_few_words(value, shown):
    assert checks.seen(value) == shown


def test_scales_whose_square_is_no_number_are_refused():
    for scale in (1e200, 1e-200, 1e-320):
        with pytest.raises(ValueError, match=r"`scale` must lie in \[1e-150, 1e150\]"):
            tb.priors.Normal(scale)
    assert np.isfinite(1 / tb.priors.Normal(1e150).scale ** 2)


# --- memory


@pytest.fixture
def little(monkeypatch):
    """A machine with 100,000 bytes."""
    monkeypatch.setattr(checks, "free_memory", lambda _device="cpu": 1e5)


def test_what_is_free_is_a_number_of_bytes():
    assert 2**20 < checks.free_memory() <= float("inf")


def test_pages_of_files_count_as_free_in_a_container_used_lately_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_GROUP", tmp_path)
    for name, text in (
        ("memory.max", "1000000\n"),
        ("memory.current", "900000\n"),
        ("memory.stat", "anon 100000\ninactive_file 300000\nactive_file 400000\n"),
    ):
        (tmp_path / name).write_text(text)
    assert checks.free_memory() == 800_000
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.free_memory() > 2**20


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tb.predict(things.point(), things.INPUTS, draws=10**9), "`draws` must be smaller; got 1,000,000,000"),
        (lambda: things.gaussian().sample(10**9), "the drawn weights would take 100.6 GiB, and 0.1 MiB are free"),
        (
            lambda: tb.predict(things.point(), things.INPUTS.repeat(20_000, 1), draws=4),
            "outputs of the drawn functions",
        ),
        (lambda: things.predictive().sample(10**9), "`count` must be smaller; got 1,000,000,000: samples would take"),
        (lambda: fitted(tb.MAP(members=10**6)), "`members` must be smaller; got 1,000,000: weights and gradients"),
        (lambda: fitted(tb.HMC(chains=10**6)), "`chains` must be smaller; got 1,000,000"),
        (lambda: fitted(tb.HMC(2, 10**7, 5, step_size=0.1, trajectory=0.2)), "`steps` must be smaller; got 10,000,000"),
        (lambda: fitted(tb.HMC(2, 9, 5, step_size=0.1), steps=10**7), "`steps` must be smaller; got 10,000,000"),
        (lambda: sampled(tb.RandomWalk(2, 10**7, 5, step_size=0.1)), "`steps` must be smaller; got 10,000,000"),
        (lambda: fitted(tb.SWAG(rank=10**6)), "`rank` must be smaller; got 1,000,000"),
        (
            lambda: fitted(tb.Laplace("low_rank", rank=10**6, prior="model"), start=things.net()),
            "`rank` must be smaller; got 1,000,000",
        ),
    ],
)
def test_memory_is_said_before_it_is_asked_for(little, call, said):
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert " at most." in str(caught.value)


def fitted(method, **options):
    return tb.fit(things.model(), things.DATA, method, callbacks=(), **options)


def sampled(method):
    return tb.sample(things.density(), method, torch.zeros(2, 3))


def test_a_dense_matrix_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("torchbayes.methods.laplace.curvature_pass.free_memory", lambda _device: 1e3)
    with pytest.raises(ValueError, match=r"`structure='dense'` is a matrix of 27 by 27, .* Use structure='kronecker'"):
        fitted(tb.Laplace("dense", prior="model"), start=things.net())


def test_a_length_that_is_not_asked_for_needs_no_memory(little):
    actual = fitted(tb.HMC(2, 10**7, 5, step_size=0.1, trajectory=0.2), steps=9)
    assert actual.tensors()["weights_MSD"].shape == (2, 4, 27)


def test_members_of_other_processes_need_no_memory_here(little):
    model = things.model()
    check_size(model, tb.MAP(members=10**6), members=3, in_memory=True)
    with pytest.raises(ValueError, match="`members` must be smaller"):
        check_size(model, tb.MAP(members=10**6), members=10**6, in_memory=True)


def test_a_million_members_are_refused_only_where_they_do_not_fit(little):
    assert fitted(tb.MAP(members=3, epochs=1)).members == 3


def test_means_and_covariances_of_other_numbers_are_refused_when_drawn():
    odd = tb.Gaussian(things.model(), things.weights(1), Diagonal(torch.ones(2, 27)))
    with pytest.raises(ValueError, match="`covariance` must have one matrix for each of the 1 members; got 2"):
        odd.sample(3)
