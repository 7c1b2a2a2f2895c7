"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import collection, gradient, layout, members, overhead, prediction

for case in (members, gradient, overhead, prediction, collection, layout):
    case.main()
