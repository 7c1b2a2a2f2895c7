"""Selection: `fit` chooses open settings by held-out rows, through the driver, and then runs to the end."""

from torchbayes.selection.fit import fit

__all__ = ["fit"]
