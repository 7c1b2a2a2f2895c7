"""What structures say of themselves beyond matrix and vector: their inverse's diagonal, groups, forms, members."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.linalg.products import products
from tests.linalg.test_curvature import CASES as CURVATURE_CASES
from tests.linalg.test_curvature import matrices as curvature_matrices
from tests.linalg.test_structures import CASES, dense, diagonal, every, kronecker, low_rank, matrices, sizes
from tests.oracles import assert_close, normal
from torchbayes.linalg import Blocks, Form, Scaled, Structure
from torchbayes.linalg.added import plus_precision, precision_trace
from torchbayes.linalg.blocks import with_independent
from torchbayes.linalg.dropped import rest_diagonal
from torchbayes.linalg.structure import forms, is_diagonal, rooted, unscaled

every_curvature = pytest.mark.parametrize("curvature", CURVATURE_CASES.values(), ids=CURVATURE_CASES.keys())
PAIRS = [
    pytest.param(one, other, id=f"{first}, {second}")
    for first, one in CASES.items()
    for second, other in CASES.items()
    if one.size == other.size
]


def multiplied(form: Form) -> Tensor:
    """Return the matrices (M, n, n) that a form stands for."""
    known = next(t for t in (form.variance, form.root_MDZ, form.directions_MRD) if t is not None)
    total = torch.zeros((), dtype=torch.float64)
    if form.variance is not None and form.variance.ndim == 2:
        total = total + torch.diag_embed(form.variance)
    elif form.variance is not None:
        total = total + products(form.variance, form.rows_MGOO, form.columns_MGII)
    if form.root_MDZ is not None:
        total = total + form.root_MDZ @ form.root_MDZ.mT
    if form.directions_MRD is not None:
        shares = torch.ones(known.shape[0], form.directions_MRD.shape[1]) if form.shares_MR is None else form.shares_MR
        total = total + form.sign * form.directions_MRD.mT @ (shares.unsqueeze(-1) * form.directions_MRD)
    return total


def scales(structure: Structure, *, level: bool) -> Tensor:
    """Return units of the weights, the same for all or each its own."""
    members, size = sizes(structure)
    return torch.full((members, size), 1.3, dtype=torch.float64) if level else normal(members, size, seed=21).exp()


@every
def test_diagonal_of_the_inverse(structure: Structure):
    without = "low_rank_plus_diagonal"
    if any(without in name for name in (structure.kind, *structure.tensors())):
        with pytest.raises(ValueError, match=f"the precision of a {without} covariance has no diagonal"):
            structure.precision_diagonal()
        return
    expected = torch.linalg.inv(matrices(structure)).diagonal(dim1=1, dim2=2)
    assert_close(structure.precision_diagonal(), expected, rtol=1e-9)


@pytest.mark.parametrize("level", [True, False], ids=["one unit", "many units"])
@every
def test_forms_multiply_out_to_the_matrix_in_other_units(structure: Structure, level: bool):
    scale, size = scales(structure, level=level), sizes(structure)[1]
    for own in (None, scale):
        actual = torch.zeros_like(matrices(structure))
        placed = list(forms(structure, own))
        for where, form in placed:
            actual[:, where.unsqueeze(1), where] = multiplied(form)
        exact = matrices(structure)
        expected = exact if own is None else own.unsqueeze(-1) * exact * own.unsqueeze(-2)
        assert_close(actual, expected, rtol=1e-9, atol=1e-10)
        assert sorted(i for where, _ in placed for i in where.tolist()) == list(range(size))


@every
def test_every_structure_has_a_form_by_its_root(structure: Structure):
    scale = scales(structure, level=False)
    assert_close(multiplied(rooted(structure)), matrices(structure), rtol=1e-9, atol=1e-11)
    expected = scale.unsqueeze(-1) * matrices(structure) * scale.unsqueeze(-2)
    assert_close(multiplied(rooted(structure, scale)), expected, rtol=1e-9, atol=1e-11)


@every
def test_groups_are_independent_and_make_up_the_matrix(structure: Structure):
    actual = torch.zeros_like(matrices(structure))
    for group in structure.groups:
        place = torch.arange(actual.shape[1]) if group.where is None else group.where
        own = torch.ones(len(actual), len(place)).double() if group.scale_MD is None else group.scale_MD
        actual[:, place.unsqueeze(1), place] = own.unsqueeze(-1) * matrices(group.structure) * own.unsqueeze(-2)
    assert_close(actual, matrices(structure) if structure.groups else torch.zeros_like(actual))


@every
def test_units_are_taken_off(structure: Structure):
    scale, inner = unscaled(structure)
    assert_close(scale.unsqueeze(-1) * matrices(inner) * scale.unsqueeze(-2), matrices(structure))


@every
def test_independence_is_known(structure: Structure):
    exact = matrices(structure)
    if exact.shape[1] == 1:  # one weight has no other to depend on, whatever its structure
        return
    assert is_diagonal(structure) == bool((exact == torch.diag_embed(exact.diagonal(dim1=1, dim2=2))).all())


def test_independence_is_seen_through_groups():
    order = torch.tensor([4, 1, 9, 7, 0, 2, 3, 8, 5, 6])
    assert is_diagonal(Scaled(normal(3, 10).exp(), Blocks(order, (diagonal(), diagonal()))))
    assert not is_diagonal(Blocks(order, (diagonal(), dense())))


@every
def test_one_member(structure: Structure):
    for m in range(sizes(structure)[0]):
        actual = structure.member(m)
        assert_close(actual.dense(), matrices(structure)[m : m + 1])
        assert actual.kind == structure.kind


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_trace_of_a_precision_and_a_covariance(one: Structure, other: Structure):
    prior = one.member(0)
    exact = (torch.linalg.inv(matrices(one)[:1]) * matrices(other)).sum((1, 2))
    assert_close(precision_trace(prior, other), exact, rtol=1e-8)


@pytest.mark.parametrize("structure", [s for s in CASES.values() if s.size == 6])
@pytest.mark.parametrize("units", [False, True])
def test_a_dense_curvature_takes_the_precision_of_any_structure(structure: Structure, units: bool):
    prior, own = structure.member(0), CURVATURE_CASES["dense"].member(0)
    prior = Scaled(normal(1, 6, seed=4).exp(), prior) if units else prior
    expected = own.dense() + 0.7 * torch.linalg.inv(matrices(prior))
    assert_close(plus_precision(own, prior, 0.7).dense(), expected, rtol=1e-9)


@every_curvature
def test_a_curvature_takes_the_precision_of_a_covariance_of_its_own_form(curvature: Any):
    """The covariance that a curvature makes has its form: with the same bases the sum is exact."""
    own = curvature.member(0)
    prior = own.covariance(torch.full((own.size,), 0.5, dtype=torch.float64))
    if own.left_out or (own.kind == "kronecker" and not {"rows_MGOO", "columns_MGII"} <= own.tensors().keys()):
        with pytest.raises(ValueError, match="do not add up to a structure"):
            plus_precision(own, prior, 0.3)
        return
    exact = curvature_matrices(own)[:1] + 0.3 * torch.linalg.inv(matrices(prior))
    assert_close(plus_precision(own, prior, 0.3).dense(), exact, rtol=1e-8, atol=1e-10)


@every_curvature
def test_what_is_left_out(curvature: Any):
    actual = torch.zeros(2, curvature.size, dtype=torch.float64)
    for out in curvature.left_out:
        block = curvature_matrices(curvature)[:, out.where][:, :, out.where]
        kept = torch.linalg.eigvalsh(block)[:, -out.kept_MR.shape[1] :]
        assert_close(out.kept_MR[:, -kept.shape[1] :], kept, rtol=1e-9, atol=1e-10)
        actual[:, out.where] = out.diagonal_MD
    assert_close(rest_diagonal(curvature), actual)


@every_curvature
def test_curvature_in_double_precision_is_not_negative(curvature: Any):
    single = curvature.mapped(lambda _, t: t.float() if t.is_floating_point() else t)
    actual = single.positive()
    assert actual.dense().dtype == torch.float64
    assert_close(actual.dense(), curvature.dense(), rtol=1e-5, atol=1e-5)
    assert float(torch.linalg.eigvalsh(actual.dense()).min()) > -1e-12


@every_curvature
def test_correlations_that_are_not_kept_are_none(curvature: Any):
    exact = curvature_matrices(curvature)
    if curvature.correlations == "none":
        assert torch.equal(exact, torch.diag_embed(exact.diagonal(dim1=1, dim2=2)))
    assert curvature.correlations != "all" or curvature.kind == "dense"


@every_curvature
def test_trace(curvature: Any):
    assert_close(curvature.trace(), curvature_matrices(curvature).diagonal(dim1=1, dim2=2).sum(-1))


@every_curvature
def test_further_independent_weights(curvature: Any):
    values, size = normal(2, 3, seed=9) ** 2, curvature.size
    actual = with_independent(curvature, values).dense()
    assert_close(actual[:, :size, :size], curvature_matrices(curvature))
    assert_close(actual[:, size:, size:], torch.diag_embed(values))
    assert not actual[:, :size, size:].any()


def test_a_form_without_units_is_the_structure_itself():
    """No copies are made where there is nothing to multiply by."""
    for structure in (diagonal(), dense(), kronecker(1, "rows and columns"), low_rank(2)):
        form = structure.form()
        assert form is not None
        held = [t for t in (form.variance, form.root_MDZ, form.directions_MRD) if t is not None]
        assert all(any(t is own for own in structure.tensors().values()) for t in held)
