"""A student as a plain module: one pass through the network, and its head."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from torchbayes.distillation import heads
from torchbayes.model.network import outputs_of
from torchbayes.posteriors.modules.module import PredictiveModule, readable, settings_of, shared
from torchbayes.posteriors.point import Point


@readable
class StudentModule(PredictiveModule):
    """A distilled network: what a `Student` predicts, in one pass."""

    kind = "student module"
    parts = ("network", "head", "learned")

    @classmethod
    def of(cls, student: Point, head: heads.Head, nodes_JK: Tensor, *, level: float | None) -> StudentModule:
        """Return the module of a student's network and head; a ValueError if the level is not between 0 and 1."""
        model = student.model
        drawn = {n: v[0].clone() for n, v in model.split(student.weights_MD)[0].items()}
        drawn |= {n: b[0].clone() for n, b in (student.buffers_M or {}).items()}
        parts = {"network": drawn | shared(model.network.module, drawn), "head": {"nodes_JK": nodes_JK}, "learned": {}}
        settings = {"head": type(head).__name__, "of_head": asdict(head), **settings_of(model.likelihood, level=level)}
        return cls(model, parts, settings)

    def prepared(self, network: nn.Module) -> nn.Module:
        return network

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the average at inputs and its uncertainty, by name.

        Args:
            inputs: tensor (B, ...); a tuple becomes positional arguments of the network, a mapping keyword
                arguments.
        """
        state, nodes_JK = self.part("network"), self.part("head")["nodes_JK"]
        self._network.ask(state, inputs, device=nodes_JK.device)
        head = heads.HEADS[self._settings["head"]](**self._settings["of_head"])
        return self.summed_up(*head.read(outputs_of(self._network.run(state, inputs), self._class_axis), nodes_JK))
