"""What `import torchbayes`, and a fit and its predictions, do not import, because it takes long and few need it."""

import subprocess
import sys

HEAVY = ["torch._dynamo", "sympy", "matplotlib", "sklearn", "pandas", "jsonargparse"]
FIT = """
import sys, torch
import torchbayes as tb

loaded = [name for name in {heavy} if name in sys.modules]
network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
model = tb.Model(network, tb.likelihoods.Gaussian("learned"), tb.priors.Normal(1.0))
posterior = tb.fit(model, (torch.randn(50, 3), torch.randn(50, 1)), tb.MAP(epochs=2), callbacks=())
tb.predict(posterior, torch.randn(5, 3)).mean
print(loaded, [name for name in {heavy} if name in sys.modules])
"""


def test_the_compiler_of_pytorch_is_left_until_it_is_needed():
    run = subprocess.run([sys.executable, "-c", FIT.format(heavy=HEAVY)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] []"
