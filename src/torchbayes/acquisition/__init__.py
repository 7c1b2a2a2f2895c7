"""Active learning: which rows to label next, and how much sooner predictions get good than with rows at random.

`acquire` chooses rows of a pool; `study` compares ways to choose, where labels are known. Formulas are in
`torchbayes.acquisition.classes` and `torchbayes.acquisition.numbers`.
"""

from torchbayes.acquisition.acquire import Acquired, acquire
from torchbayes.acquisition.rounds import AcquisitionWarning, Round, Sizes
from torchbayes.acquisition.study import Plan, Study, study

__all__ = ["Acquired", "AcquisitionWarning", "Plan", "Round", "Sizes", "Study", "acquire", "study"]
