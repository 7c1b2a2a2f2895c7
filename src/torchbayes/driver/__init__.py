"""The driver: the one loop, `sample`, and what a run leaves on disk."""

from torchbayes.driver.chains import Chains
from torchbayes.driver.progress import Event
from torchbayes.driver.sample import sample

__all__ = ["Chains", "Event", "sample"]
