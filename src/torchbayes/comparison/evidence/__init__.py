"""Networks for one data set, compared by their evidence: what `torchbayes evidence` runs."""

from torchbayes.comparison.evidence.compare import compare_networks
from torchbayes.comparison.evidence.report import check_directory, remarks, table, tables, write
from torchbayes.comparison.evidence.settings import TUNED, Settings

__all__ = ["TUNED", "Settings", "check_directory", "compare_networks", "remarks", "table", "tables", "write"]
