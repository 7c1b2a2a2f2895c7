"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import collection, gradient, layout, members, noise, overhead, prediction

for case in (members, gradient, noise, overhead, prediction, collection, layout):
    case.main()
