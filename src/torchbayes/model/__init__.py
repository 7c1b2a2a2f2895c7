"""What is believed: network, likelihood, prior, and the log joint density they define."""

from torchbayes.model import likelihoods as likelihoods
from torchbayes.model import priors as priors
from torchbayes.model.density import FunctionDensity as FunctionDensity
from torchbayes.model.density import LogDensity as LogDensity
from torchbayes.model.density import Plan as Plan
from torchbayes.model.density import Value as Value
from torchbayes.model.layout import Layout as Layout
from torchbayes.model.model import Batch as Batch
from torchbayes.model.model import Model as Model
from torchbayes.model.network import Network as Network
from torchbayes.model.seeds import member_seeds as member_seeds
