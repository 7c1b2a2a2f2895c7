"""Writes what laplace-torch and curvlinops say of the networks of tests/peers.py, for the tests to compare with.

    .peers/laplace/bin/python -m benchmarks.peers.laplace_reference [FILE]       after benchmarks/peers/setup.sh

tests/peers.py says what is written and in which form, tests/curvature/test_reference.py whether it is right.
"""
# laplace-torch and curvlinops are not in the environment that the project is checked in
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of linear_operator, at import
    import curvlinops
    import laplace
    from laplace import curvature

from tests.peers import (
    CASES,
    FILE,
    NETWORKS,
    NOISE_SCALE,
    OUTPUTS,
    PRIOR_PRECISION,
    ROWS,
    TEST_ROWS,
    TOKENS,
    VOCABULARY,
    is_linear,
    linear_layers,
    network,
    triangle,
)

BATCH = 8  # rows; several batches, so that what is normalised by the size of one shows
KFAC = (  # Fisher, approximation, whether weight and bias are separate
    *(("type-2", approx, separate) for approx in ("expand", "reduce") for separate in (True, False)),
    ("mc", "expand", False), ("empirical", "expand", False), ("empirical", "reduce", False),
)  # fmt: skip
EKFAC = (("expand", True), ("expand", False), ("reduce", False))
LAPLACE = (  # part of the weights, structure, backend, settings of the backend
    ("all", "diag", "CurvlinopsGGN", {}),
    ("all", "diag", "AsdlGGN", {}),
    ("all", "diag", "BackPackGGN", {}),
    ("all", "diag", "CurvlinopsEF", {}),
    ("all", "diag", "AsdlEF", {}),
    ("all", "diag", "BackPackEF", {}),
    ("all", "full", "CurvlinopsGGN", {}),
    ("linear", "kron", "CurvlinopsGGN", {}),
    ("linear", "kron", "CurvlinopsGGN", {"kfac_approx": "reduce"}),
    ("linear", "kron", "AsdlGGN", {}),
    ("linear", "kron", "BackPackGGN", {}),
    ("linear", "kron", "CurvlinopsEF", {}),
    ("linear", "kron", "AsdlEF", {}),
    ("last_layer", "diag", "CurvlinopsGGN", {}),
    ("last_layer", "full", "CurvlinopsGGN", {}),
    ("last_layer", "kron", "CurvlinopsGGN", {}),
    ("last_layer", "kron", "AsdlGGN", {}),
)
Numbers = dict[str, Tensor]


def problem(name: str, likelihood: str) -> Numbers:
    """Return weights, inputs and targets."""
    source = torch.Generator().manual_seed(NETWORKS.index(name))
    torch.manual_seed(NETWORKS.index(name))
    net = network(name)
    rows = ROWS + TEST_ROWS
    if name == "transformer":
        inputs = torch.randint(VOCABULARY, (rows, TOKENS), generator=source)
    else:
        inputs = torch.randn(rows, *((3,) if name == "mlp" else (1, 8, 8)), generator=source)
    weights = nn.utils.parameters_to_vector(net.parameters()).detach()
    weights = weights + 0.3 * torch.randn(weights.shape, generator=source)
    if likelihood == "classification":
        targets = torch.randint(OUTPUTS, (ROWS,), generator=source)
    else:
        targets = torch.randn(ROWS, OUTPUTS, generator=source)
    return {"weights": weights, "inputs": inputs[:ROWS], "targets": targets, "test_inputs": inputs[ROWS:]}


def prepared(name: str, numbers: Numbers, *, linear: bool = False) -> nn.Module:
    """Return the network with its weights; those outside Linear and Conv2d layers frozen if `linear`."""
    net = network(name)
    nn.utils.vector_to_parameters(numbers["weights"], net.parameters())
    if linear and not bool(is_linear(net).all()):
        inside = {id(p) for layer in linear_layers(net).values() for p in layer.parameters()}
        for parameter in net.parameters():
            parameter.requires_grad_(id(parameter) in inside)
    return net


def is_wrong(name: str, likelihood: str, structure: str, backend: str) -> bool:
    """Return whether laplace-torch fails or its curvature is not the one it is named after; see tests/peers.py."""
    return (
        (backend.endswith("EF") and likelihood == "regression")
        or (backend.startswith("Asdl") and name == "transformer")
        or (backend.startswith("BackPack") and name == "transformer")
        or (backend, structure, name) == ("BackPackGGN", "kron", "convolution")
    )


def trained(net: nn.Module) -> list[nn.Parameter]:
    """Return the weights that are not frozen."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def loader(numbers: Numbers) -> DataLoader[Any]:
    """Return the rows in batches."""
    return DataLoader(TensorDataset(numbers["inputs"], numbers["targets"]), batch_size=BATCH)


def drawn(net: nn.Module, loss: nn.Module, numbers: Numbers) -> Tensor:
    """Return the targets that curvlinops draws from its default seed: classes, or numbers of N(f, 1)."""
    operator = curvlinops.KFACLinearOperator(
        net, loss, trained(net), [(numbers["inputs"], numbers["targets"])], check_deterministic=False
    )
    operator._generator = torch.Generator().manual_seed(operator._seed)
    parts = []
    for inputs in numbers["inputs"].split(BATCH):
        outputs = net(inputs).detach()
        sample = operator.draw_label(outputs)  # of N(f, 1/2) for the squared error
        parts.append(sample if isinstance(loss, nn.CrossEntropyLoss) else outputs + 2**0.5 * (sample - outputs))
    return torch.cat(parts)


def small(matrix_DD: Tensor) -> Tensor:
    """Return the lower triangle in float32: large matrices take half the space."""
    return triangle(matrix_DD).float()


def operators(name: str, likelihood: str, numbers: Numbers) -> Iterator[tuple[str, Tensor]]:
    """Yield what curvlinops says; its sum of squares has twice the curvature and twice the gradient of N(f, 1)."""
    loss = nn.CrossEntropyLoss(reduction="sum") if likelihood == "classification" else nn.MSELoss(reduction="sum")
    twice = 1.0 if likelihood == "classification" else 2.0
    data = list(zip(numbers["inputs"].split(BATCH), numbers["targets"].split(BATCH), strict=True))
    net = prepared(name, numbers)
    for key, kind, scale in (("ggn", "GGN", twice), ("fisher", "EF", twice**2)):
        operator = getattr(curvlinops, f"{kind}LinearOperator")(net, loss, list(net.parameters()), data)
        yield key, small(operator @ torch.eye(operator.shape[1]) / scale)
    net = prepared(name, numbers, linear=True)
    weights = trained(net)
    yield "mc_targets", drawn(net, loss, numbers)
    for fisher, approx, separate in KFAC:
        operator = curvlinops.KFACLinearOperator(
            net, loss, weights, data,
            check_deterministic=False,  # it would compute the factors once, and the next line then adds to them
            fisher_type=fisher, kfac_approx=approx, separate_weight_and_bias=separate,
        )  # fmt: skip
        operator.compute_kronecker_factors()
        scale = twice**2 if fisher == "empirical" else twice
        for layer in linear_layers(net):
            key = f"kfac/{fisher}/{approx}/{'separate' if separate else 'joint'}/{layer}"
            yield f"{key}/input", operator._input_covariances[layer]
            yield f"{key}/gradient", operator._gradient_covariances[layer] / scale
    for approx, separate in EKFAC if likelihood == "classification" else ():
        operator = curvlinops.EKFACLinearOperator(
            net, loss, weights, data, fisher_type="type-2", kfac_approx=approx, separate_weight_and_bias=separate
        )
        matrix = operator @ torch.eye(operator.shape[1]) / twice
        start = 0
        for layer, module in linear_layers(net).items():
            size = sum(parameter.numel() for parameter in module.parameters())
            if (approx, layer) != (
                "reduce",
                "mix",
            ):  # not unique: equal scores shift no key, so its gradient factor is singular
                block = matrix[start : start + size, start : start + size]
                yield f"ekfac/{approx}/{'separate' if separate else 'joint'}/{layer}", small(block)
            start += size


def curvature_of(fitted: Any, structure: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the curvature without the prior, of unit noise."""
    if structure == "diag":
        yield "diagonal", fitted.H
    elif structure == "full":
        yield "full", small(fitted.H)
    else:
        for i, factors in enumerate(fitted.H_facs.kfacs):
            for j, factor in enumerate(factors):
                yield f"{i}/{j}", factor


def approximation(
    name: str, likelihood: str, numbers: Numbers, part: str, structure: str, backend: str, settings: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield what laplace-torch says of one structure."""
    noise = {"sigma_noise": NOISE_SCALE} if likelihood == "regression" else {}
    fitted = laplace.Laplace(
        prepared(name, numbers, linear=part == "linear"),
        likelihood,
        subset_of_weights="last_layer" if part == "last_layer" else "all",
        hessian_structure=structure,
        prior_precision=PRIOR_PRECISION,
        backend=getattr(curvature, backend),
        **({"asdl_fisher_kwargs": settings} if settings else {}),
        **noise,
    )
    fitted.fit(loader(numbers))
    yield from curvature_of(fitted, structure)
    yield "log_likelihood", fitted.log_likelihood
    yield "log_evidence", fitted.log_marginal_likelihood()
    mean, variance = fitted._glm_predictive_distribution(numbers["test_inputs"])
    yield "mean", mean
    yield "variance", variance
    if likelihood == "classification":
        for key, link in (("probs", "probit"), ("bridge", "bridge")):
            yield key, fitted(numbers["test_inputs"], pred_type="glm", link_approx=link)


def main(file: Path = FILE) -> None:
    """Write the file."""
    written: Numbers = {}
    for name, likelihood in CASES:
        numbers = problem(name, likelihood)
        results = {**numbers, **dict(operators(name, likelihood, numbers))}
        for part, structure, backend, settings in LAPLACE:
            if is_wrong(name, likelihood, structure, backend):
                continue
            key = "-".join([backend, *settings.values()])
            parts = dict(approximation(name, likelihood, numbers, part, structure, backend, settings))
            if (part, structure) == ("all", "full"):
                torch.testing.assert_close(parts.pop("full"), results["ggn"])  # said once
            results |= {f"laplace/{part}/{structure}/{key}/{k}": value for k, value in parts.items()}
        written |= {f"{name}/{likelihood}/{key}": value.detach().clone().contiguous() for key, value in results.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(written, file)
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # laplace-torch makes some of its own tensors in the default type
    main(*map(Path, sys.argv[1:]))
