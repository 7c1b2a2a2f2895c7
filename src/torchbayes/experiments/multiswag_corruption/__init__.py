"""MultiSWAG under corruption: averaging inside basins as well as over them (Wilson and Izmailov 2020, section 4)."""

from torchbayes.experiments.multiswag_corruption.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
