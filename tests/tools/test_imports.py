"""What `import torchbayes` does not import, because it takes long and few need it."""

import subprocess
import sys


def test_the_compiler_of_pytorch_is_left_until_it_is_needed():
    heavy = ["torch._dynamo", "sympy", "matplotlib", "sklearn", "pandas", "jsonargparse"]
    code = f"import torchbayes, sys; print(*[name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
