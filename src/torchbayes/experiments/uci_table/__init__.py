"""The UCI regression table: deep ensembles and MultiSWAG beside Lakshminarayanan et al. (2017), table 1."""

from torchbayes.experiments.uci_table.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
