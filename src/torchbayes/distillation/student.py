"""A student: one trained network and its head, in the place of a posterior."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_kind
from torchbayes.display import Overview, brief, shown
from torchbayes.distillation.fidelity import Fidelity, compared
from torchbayes.distillation.heads import HEADS, Head, normal_nodes
from torchbayes.distillation.module import StudentModule
from torchbayes.distillation.networks import widened
from torchbayes.model.description import CONSTANTS, check_layout, check_model, describe_model, fingerprint
from torchbayes.model.layout import Random
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.model import Model
from torchbayes.model.network import module_at
from torchbayes.model.priors import Flat
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.point import Point
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, as_source, predict

_KIND, _BUFFERS = "student", "buffers."


@dataclass(frozen=True)
class Build:
    """How a student's network is made of a teacher's: by widening a layer, or not at all."""

    outputs: int  # of the teacher's likelihood, K
    layer: str | None = None  # None for a network of its own
    size: int = 0  # outputs of this layer


def _overview(student: Student) -> Overview:
    weights = student.posterior.weights_MD.shape[-1]
    likelihood = brief(student.model.likelihood)
    return Overview("Student", {"head": student.head.name, "weights": weights, "likelihood": likelihood})


@shown(_overview)
@dataclass(frozen=True)
class Student:
    """One network that says what the average of S functions says, with its uncertainty.

    It takes the place of a posterior in `predict`, `stream`, `evaluate` and `uncertainty`, and of what these are
    given to: calibration and conformal prediction. The predictive at several inputs is that of each of them: it holds
    no functions, and nothing of how their errors go together.

    Attributes:
        posterior: the network, as a point; its outputs are those of the head.
        head: what the outputs mean.
        build: how the network was made.
        teacher: what was distilled; None of a student that was read from a file.
    """

    posterior: Point
    head: Head
    build: Build
    teacher: Source | None = field(default=None, compare=False)

    @property
    def model(self) -> Model:
        """The student's model: its network, and the likelihood of its predictions."""
        return self.posterior.model

    @property
    def nodes_JK(self) -> Tensor:
        """Standard normal values at which a Gaussian over outputs is averaged, (J, K)."""
        return normal_nodes(self.build.outputs).to(self.posterior.weights_MD)

    @cached_property
    def _function(self) -> Functions:
        return self.posterior.functions()

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs, of one pass through the network.

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            chunk_size: rows that go through the network at once.

        Raises:
            ValueError: if there are no rows, or an output is not finite.
        """
        check_counts(chunk_size=chunk_size)
        (outputs,) = self._function(inputs, chunk_size=chunk_size)
        read = self.head.read(outputs, self.nodes_JK.to(outputs))
        return Predictive(read.outputs_SBK, self.model.likelihood, function_variance=read.spread)

    def predict(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return `torchbayes.predict` of this student: mean, entropies or variances at each input.

        Args:
            inputs: as of `torchbayes.predict`.
            chunk_size: rows that go through the network at once.
        """
        return predict(self, inputs, chunk_size=chunk_size)

    def module(self, *, level: float | None = 0.95) -> StudentModule:
        """Return the student as a plain `nn.Module`, for `torch.export` and ONNX: inputs -> name -> tensor.

        Its outputs are those of `posterior.module()`: `probs`, `entropy`, `mutual_information`, `expected_entropy`,
        or `mean`, `variance`, `epistemic`, `aleatoric`, `lower`, `upper`.

        Args:
            level: of the central intervals of numbers; no intervals if None.

        Raises:
            ValueError: if the level is not between 0 and 1.
        """
        return StudentModule.of(self.posterior, self.head, self.nodes_JK, level=level)

    def fidelity(self, inputs_by_name: Mapping[str, Any], *, teacher: Any = None) -> Fidelity:
        """Return how close the student is to its teacher on named sets of inputs, beside two halves of the draws.

        Args:
            inputs_by_name: name -> inputs, or a pair (inputs, targets), by which both are scored too. Take inputs like
                those of training, shifted ones, and ones of another kind: students fail there first.
            teacher: the teacher, for a student that was read from a file; functions, so that the draws are those that
                were distilled.

        Raises:
            ValueError: if there is no teacher, or there are no sets or rows.
            TypeError: if `inputs_by_name` is no mapping.
        """
        source = self.teacher if teacher is None else as_source(teacher, None, 0)
        if source is None:
            raise ValueError("this student was read from a file, which does not hold its teacher. Give `teacher`.")
        return compared(source, self, inputs_by_name)

    def save(self, path: str | Path) -> Path:
        """Write the student to a safetensors file, completely or not at all; `distillation.load` reads it.

        Args:
            path: where to write, such as `run/student.safetensors`.

        Returns:
            The path.
        """
        buffers = self.posterior.buffers_M or {}
        tensors = {"weights_MD": self.posterior.weights_MD, **{_BUFFERS + n: b for n, b in buffers.items()}}
        header = {
            "kind": _KIND,
            "head": type(self.head).__name__,
            "settings": dataclasses.asdict(self.head),
            "build": dataclasses.asdict(self.build),
            "layout": {name: list(shape) for name, shape in self.model.layout.shapes.items()},
            "model": describe_model(self.model),
            CONSTANTS: fingerprint(self.model.network, without=buffers),
        }
        return write_tensors(path, tensors, header)


@explained()
def load(path: str | Path, model: Model, network: nn.Module | Callable[[], nn.Module] | None = None) -> Student:
    """Read a student that `Student.save` wrote.

    Args:
        path: the file.
        model: the teacher's model; its weights are not used, but for those that are not random.
        network: the student's network, if it had one of its own.

    Returns:
        The student, on the model's device, without its teacher.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, holds no student, or one of another network or likelihood.
        TypeError: if `model` is not a model.
    """
    check_kind(Model, "the teacher's `Model`", model=model)
    tensors, header = read_tensors(path, model.network.device)
    if header.get("kind") != _KIND or header.get("head") not in HEADS:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a student. Read it by `tb.load`.")
    head, build = HEADS[header["head"]](**header["settings"]), Build(**header["build"])
    _check_size(path, header["layout"], tensors["weights_MD"], build)
    if (build.layer is None) != (network is not None):
        had, do = ("no", "Leave it out") if network is not None else ("a", "Give it")
        raise ValueError(f"the student of {path} had {had} network of its own. {do}: `network`.")
    try:
        made = model_of(model, head, student_network(model, head, build, given=network), predicts=True)
    except AttributeError as error:
        raise ValueError(f"{path} does not fit the network of this model: {error}. Give the teacher's.") from error
    path = Path(path)
    check_layout(path, header["layout"], made)
    check_model(path, header, made)
    buffers_M = {n.removeprefix(_BUFFERS): t for n, t in tensors.items() if n.startswith(_BUFFERS)}
    point = Point(made, tensors["weights_MD"], buffers_M=buffers_M or None, statistics_known=True)
    return Student(point, head, build)


def _check_size(path: str | Path, layout: Mapping[str, Sequence[int]], weights_MD: Tensor, build: Build) -> None:
    """Raise a ValueError unless the new layer has the size of its weights in the file, before it is made."""
    held = layout.get(".".join(filter(None, [build.layer, "weight"])), ())
    whole = sum(math.prod(shape) for shape in layout.values()) == weights_MD.shape[-1]
    if not whole or (build.layer is not None and (not held or held[0] != build.size)):
        raise ValueError(f"{path} is damaged: its weights are not those of the network that it describes.")


def student_network(model: Model, head: Head, build: Build, *, given: Any) -> tuple[Any, Random]:
    """Return a student's network, the one given or a widened copy, and which of its parameters are trained.

    Those of a copy are the ones that are random in the teacher, wholly, and those of the new layer.
    """
    if build.layer is None:
        return given, "*"
    random = model.network.random
    made = widened(module_at(model.network, model.network.weights()), build.layer, build.size)
    return made, [*([random] if isinstance(random, str) else random), f"{build.layer}.*" if build.layer else "*"]


def model_of(model: Model, head: Head, network: tuple[Any, Random], *, predicts: bool = False) -> Model:
    """Return the model that a student is trained under, or that of its predictions, which reads the teacher's batches.

    `network` is what `student_network` gave.
    """
    module, random = network
    return Model(
        module,
        head.likelihood(unweighted(model.likelihood)) if predicts else head,
        Flat(),
        random=random,
        batch=model._hook if predicts else _pair,
        chunk_size=model.chunk_size,
        autocast=model.autocast,
    )


def _pair(pair: Any) -> tuple[Any, Any]:
    """Return inputs and moments as they are, whatever batches the teacher's model takes."""
    return pair[0], pair[1]
