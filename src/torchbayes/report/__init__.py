"""Figures, tables and the HTML report, made from plain arrays, numbers and names, without models or posteriors."""

from torchbayes.report import figures
from torchbayes.report.html import Page, Picture, versions, write_report
from torchbayes.report.style import looks, png, savefig
from torchbayes.report.tables import Table

__all__ = ["Page", "Picture", "Table", "figures", "looks", "png", "savefig", "versions", "write_report"]
