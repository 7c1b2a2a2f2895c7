"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import (
    collection,
    gradient,
    last_layer,
    layout,
    members,
    noise,
    overhead,
    particles,
    prediction,
    propagation,
    sites,
    variational,
)

CASES = (
    members,
    gradient,
    noise,
    overhead,
    prediction,
    last_layer,
    collection,
    layout,
    variational,
    propagation,
    particles,
    sites,
)

for case in CASES:
    case.main()
