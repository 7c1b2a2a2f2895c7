"""The driver: the one loop, `sample`, and the files that a run writes."""

from torchbayes.driver.chains import Chains
from torchbayes.driver.progress import Event
from torchbayes.driver.sample import sample

__all__ = ["Chains", "Event", "sample"]
