"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import collection, gradient, last_layer, layout, members, noise, overhead, prediction, variational

for case in (members, gradient, noise, overhead, prediction, last_layer, collection, layout, variational):
    case.main()
