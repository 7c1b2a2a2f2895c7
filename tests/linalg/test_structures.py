import pytest
import torch
from torch import Tensor

from tests.oracles import assert_close, normal
from torchbayes.linalg import STRUCTURES, Diagonal, LowRankPlusDiagonal, Structure

M, D = 3, 5


def diagonal(members: int = M) -> Diagonal:
    return Diagonal(normal(members, D).exp())


def low_rank(rank: int, members: int = M) -> LowRankPlusDiagonal:
    return LowRankPlusDiagonal(normal(members, D).exp(), normal(members, rank, D, seed=1))


CASES = {
    "diagonal": diagonal(),
    "diagonal, one member": diagonal(1),
    **{f"rank {r}": low_rank(r) for r in (1, 2, D, D + 3)},
    "rank 2, one member": low_rank(2, 1),
}
pytestmark = pytest.mark.parametrize("structure", CASES.values(), ids=CASES.keys())


def matrices(structure: Structure) -> Tensor:
    """Dense Σ by sums over entries, from the defining tensors alone."""
    tensors = structure.tensors()
    dense = torch.stack([torch.diag(row) for row in tensors["variance_MD"]])
    for m, rows in enumerate(tensors.get("factor_MRD", torch.zeros(len(dense), 0, D, dtype=torch.float64))):
        for row in rows:
            dense[m] += torch.outer(row, row)
    return dense


def members_of(structure: Structure) -> int:
    return len(structure.tensors()["variance_MD"])


def test_dense_and_diagonal_are_the_matrix(structure: Structure):
    assert_close(structure.dense(), matrices(structure))
    assert_close(structure.diagonal(), matrices(structure).diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_matvec_and_solve_with_any_leading_axes(structure: Structure, lead: tuple[int, ...]):
    vectors, dense = normal(*lead, members_of(structure), D, seed=2), matrices(structure)
    assert_close(structure.matvec(vectors), torch.einsum("mij,...mj->...mi", dense, vectors))
    solved = torch.linalg.solve(dense, vectors.unsqueeze(-1)).squeeze(-1)
    assert_close(structure.solve(vectors), solved, rtol=1e-9)


def test_solve_undoes_matvec(structure: Structure):
    vectors = normal(7, members_of(structure), D, seed=3)
    assert_close(structure.solve(structure.matvec(vectors)), vectors, rtol=1e-9, atol=1e-11)


def test_square_root_times_its_transpose_is_the_matrix(structure: Structure):
    size, members = structure.noise_size, members_of(structure)
    unit_noise = torch.eye(size, dtype=torch.float64).unsqueeze(1).expand(size, members, size)  # one column of R each
    root = structure.sqrt_matvec(unit_noise).permute(1, 2, 0)
    assert root.shape == (members, D, size)
    assert_close(root @ root.mT, matrices(structure))
    assert_close(structure.sqrt_matvec(unit_noise[0]), root[..., 0])  # and without a leading axis


def test_log_determinant(structure: Structure):
    assert_close(structure.logdet(), torch.linalg.slogdet(matrices(structure)).logabsdet)


def test_tensors_rebuild_the_structure(structure: Structure):
    kind = next(kind for kind in STRUCTURES.values() if isinstance(structure, kind))
    assert torch.equal(kind(**structure.tensors()).dense(), structure.dense())
