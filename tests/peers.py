"""What laplace-torch 0.3 and curvlinops 3.0.1 say of three small networks, in float64, for tests to compare with.

The numbers are in curvature/reference/laplace.safetensors; benchmarks/peers/laplace_reference.py writes it, in an
environment of its own. The libraries cannot be installed beside the tests: both require torchvision, which does not
load against the CPU build of torch, and where it is there torchmetrics does not load either.

All numbers are sums over the N rows of the curvature of −log p(y|f), not means: softmax for classification, N(f, 1) for
regression. What the libraries scale otherwise was brought to this form. Weights are in the order of `parameters()`.

| key, after NETWORK/LIKELIHOOD/                | value                                                               |
|-----------------------------------------------|---------------------------------------------------------------------|
| weights, inputs, targets, test_inputs         | the problem                                                         |
| ggn, fisher                                   | curvlinops: dense GGN and empirical Fisher, lower triangles         |
| kfac/FISHER/APPROX/BIAS/LAYER/input, gradient | curvlinops: factors A (in, in), B (out, out); block of W is B ⊗ A   |
| ekfac/APPROX/BIAS/LAYER                       | curvlinops: dense block of a layer, type-2, lower triangle          |
| mc_targets                                    | the targets that curvlinops drew for FISHER = mc                    |
| laplace/PART/STRUCTURE/BACKEND/...            | laplace-torch at PRIOR_PRECISION, for regression and NOISE_SCALE    |

FISHER is type-2 (exact), mc or empirical; APPROX expand or reduce; BIAS joint (A has a last row and column for the
bias) or separate (the block of the bias is B). PART is all, linear (weights of Linear and Conv2d layers alone) or
last_layer. Below BACKEND: `diagonal`, `full` or `I/J` (factor J of parameter I: B, then A), of the curvature without
prior; `mean` (B, K) and `variance` (B, K, K) of the outputs at test_inputs; `probs` and `bridge` (B, K) by the probit
link and the Laplace bridge; `log_likelihood` and `log_evidence`, in nats. The curvature of all/full is `ggn`. Lower
triangles are in float32, the rest in float64. Batches had 8 rows.

How the libraries scale:
- expand: A = Σ_n Σ_t a aᵀ/(N T), B = Σ_n Σ_t Σ_k g gᵀ; reduce: A = Σ_n ā āᵀ/N with ā = mean_t a, B = Σ_n Σ_k ĝ ĝᵀ with
  ĝ = Σ_t g. N is that of the data, not of the batch. N and T divide A alone.
- curvlinops has the loss (f − y)² for regression: its GGN and B are 2 times, its empirical Fisher and B 4 times those
  of N(f, 1). For a loss averaged over rows, GGN and B are 1/N (softmax) and 2/(N K), the empirical Fisher and B 4/(N K)
  times what they are here. A is the same for all. Factors 2 and 4 are divided out here.
- laplace-torch keeps weight and bias apart; the block of a bias is B, without A. The precision is H/σ² + δ I.

What is left out, since it is not the curvature that it is named after:
- the empirical Fisher of laplace-torch for regression, every backend and structure: it is twice the right one (½ · 2²),
  and is divided by σ² where it should be by σ⁴;
- ASDL with weight sharing in Linear layers: A lacks 1/T, and the diagonal takes each token for a row of its own;
- BackPACK's factors of convolutions: A lacks 1/T, and B is that of reduce;
- convolutions with groups: curvlinops averages the inputs over groups, and the diagonal of ASDL is wrong;
- a layer used twice: A and B are each summed over the uses, and their product has a curvature that is not there;
- EKFAC with reduce where the gradient factor is singular (`mix`: a constant shift of all keys changes nothing): neither
  the basis nor the matrix is unique.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = Path(__file__).parent / "curvature" / "reference" / "laplace.safetensors"
NETWORKS = ("mlp", "convolution", "transformer")
LIKELIHOODS = ("classification", "regression")
CASES = [(network, likelihood) for network in NETWORKS for likelihood in LIKELIHOODS]
ROWS, TEST_ROWS, OUTPUTS, TOKENS, VOCABULARY, WIDTH = 24, 5, 3, 5, 4, 4
PRIOR_PRECISION, NOISE_SCALE = 0.7, 0.5


class Transformer(nn.Module):
    """One block of attention and perceptron, layer norm first, tokens (B, T) -> mean over tokens -> (B, K)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 5)
        self.down = nn.Linear(5, WIDTH)
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        query, key, value = self.mix(self.norm1(hidden)).chunk(3, dim=-1)
        attention = torch.softmax(query @ key.transpose(-2, -1) / WIDTH**0.5, dim=-1)
        hidden = hidden + self.project(attention @ value)
        hidden = hidden + self.down(torch.tanh(self.up(self.norm2(hidden))))
        return self.head(hidden.mean(dim=1))


def network(name: str) -> nn.Module:
    """Return a network of `NETWORKS`, in float64 and with PyTorch's own initialisation."""
    if name == "mlp":  # (B, 3)
        net: nn.Module = nn.Sequential(
            nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, OUTPUTS)
        )  # fmt: skip
    elif name == "convolution":  # (B, 1, 8, 8)
        net = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, OUTPUTS),
        )  # fmt: skip
    else:
        net = Transformer()
    return net.double().eval()


def linear_layers(net: nn.Module) -> dict[str, nn.Module]:
    """Return the Linear and Conv2d layers by name."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def is_linear(net: nn.Module) -> Tensor:
    """Return which of the D weights belong to Linear and Conv2d layers, (D,), bool."""
    inside = {id(parameter) for layer in linear_layers(net).values() for parameter in layer.parameters()}
    return torch.cat([torch.full((p.numel(),), id(p) in inside) for p in net.parameters()])


def triangle(matrix_DD: Tensor) -> Tensor:
    """Return the lower triangle of a symmetric matrix, row by row."""
    rows, columns = torch.tril_indices(*matrix_DD.shape)
    return matrix_DD[rows, columns]


def symmetric(triangle: Tensor) -> Tensor:
    """Return the symmetric matrix (D, D) of a lower triangle (D(D+1)/2,)."""
    size = int((2 * len(triangle)) ** 0.5)
    matrix_DD = triangle.new_empty(size, size)
    rows, columns = torch.tril_indices(size, size)
    matrix_DD[rows, columns] = triangle
    matrix_DD[columns, rows] = triangle
    return matrix_DD


@dataclass(frozen=True)
class Reference:
    """One network, its data, and what the libraries say of it.

    Attributes:
        name: of `NETWORKS`.
        likelihood: of `LIKELIHOODS`.
        network: with the weights of the file.
        inputs: N rows, float64, or tokens.
        targets: classes (N,), or numbers (N, K).
        test_inputs: B rows.
        numbers: key -> value, keys as in the table above.
    """

    name: str
    likelihood: str
    network: nn.Module
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    numbers: Mapping[str, Tensor]

    @property
    def has_laplace(self) -> list[tuple[str, str, str]]:
        """The parts, structures and backends of laplace-torch that are there, in alphabetical order."""
        actual = {tuple(key.split("/")[1:4]) for key in self.numbers if key.startswith("laplace/")}
        return sorted((part, structure, backend) for part, structure, backend in actual)

    def below(self, key: str) -> dict[str, Tensor]:
        """Return the numbers whose keys begin with `key/`, by the rest of their keys."""
        actual = {k.removeprefix(f"{key}/"): v for k, v in self.numbers.items() if k.startswith(f"{key}/")}
        if not actual:
            raise KeyError(f"the reference of {self.name}/{self.likelihood} has nothing below {key!r}.")
        return actual

    def kfac(self, fisher: str, approx: str, bias: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Return layer -> (A, B), of curvlinops."""
        actual = self.below(f"kfac/{fisher}/{approx}/{bias}")
        return {key.removesuffix("/input"): (value, actual[key.removesuffix("input") + "gradient"])
                for key, value in actual.items() if key.endswith("/input")}  # fmt: skip

    def kronecker_blocks(self, part: str, backend: str) -> list[Tensor]:
        """Return the dense block B ⊗ A, or B, of the curvature for each parameter of a `part`, of laplace-torch."""
        actual = self.below(f"laplace/{part}/kron/{backend}")
        factors = {key: value for key, value in actual.items() if key[0].isdigit()}
        count = 1 + max(int(key.split("/")[0]) for key in factors)
        return [
            torch.kron(factors[f"{i}/0"], factors[f"{i}/1"]) if f"{i}/1" in factors else factors[f"{i}/0"]
            for i in range(count)
        ]


def load(name: str, likelihood: str) -> Reference:
    """Return the reference of one network and likelihood."""
    from safetensors.torch import load_file

    begin = f"{name}/{likelihood}/"
    numbers = {
        key.removeprefix(begin): value.double() if value.is_floating_point() else value
        for key, value in load_file(FILE).items()
        if key.startswith(begin)
    }
    net = network(name)
    nn.utils.vector_to_parameters(numbers.pop("weights"), net.parameters())
    return Reference(
        name, likelihood, net, numbers.pop("inputs"), numbers.pop("targets"), numbers.pop("test_inputs"), numbers
    )


def references() -> Iterator[Reference]:
    """Yield all of them."""
    for case in CASES:
        yield load(*case)
