"""Networks for one data set, compared by their evidence: what `torchbayes evidence` runs."""

from torchbayes.experiments.network_evidence.compare import (
    Settings,
    check_directory,
    compare_networks,
    remarks,
    table,
    tables,
    write,
)

__all__ = ["Settings", "check_directory", "compare_networks", "remarks", "table", "tables", "write"]
