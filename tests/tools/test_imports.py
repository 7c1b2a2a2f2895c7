"""What `import torchbayes`, a fit, its predictions and the help of the command line do not import: it takes long."""

import subprocess
import sys

import torchbayes

HEAVY = ["torch._dynamo", "sympy", "matplotlib", "sklearn", "pandas", "jsonargparse"]
OF_THE_SHELL = ["matplotlib", "sklearn", "scipy", "PIL", "jinja2", "pooch"]
SCRIPT = """
import runpy, sys, torch
import torchbayes as tb

loaded = [name for name in {heavy} if name in sys.modules]
network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
model = tb.Model(network, tb.likelihoods.Gaussian("learned"), tb.priors.Normal(1.0))
posterior = tb.fit(model, (torch.randn(50, 3), torch.randn(50, 1)), tb.MAP(epochs=2), callbacks=())
tb.predict(posterior, torch.randn(5, 3)).mean
print(loaded, [name for name in {heavy} if name in sys.modules])

from torchbayes.cli import main
main(["list", "--help"])
print([name for name in {shell} if name in sys.modules])
sys.argv = ["torchbayes", "--version"]
runpy.run_module("torchbayes", run_name="__main__")
"""


def test_what_takes_long_to_load_is_left_until_it_is_needed():
    """One process: it takes seconds to begin."""
    script = SCRIPT.format(heavy=HEAVY, shell=OF_THE_SHELL)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, *_, after_help, version = run.stdout.strip().splitlines()
    assert (first, after_help) == ("[] []", "[]")
    assert version == f"torchbayes {torchbayes.__version__}"  # the package is a command
