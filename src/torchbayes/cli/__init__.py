"""The command line: `torchbayes compare | fit | tune | evaluate | report | predict | evidence | diagnose | lora | ...`.

jsonargparse derives options from the dataclasses they fill: `--ensemble.optimizer.lr 0.01`, or the same names in a
YAML file given with `--config`. Results go to standard output, progress and errors to standard error.
"""

from torchbayes.cli.commands import main as main
