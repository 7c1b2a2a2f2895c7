"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import collection, layout, members, overhead, prediction

for case in (members, overhead, prediction, collection, layout):
    case.main()
