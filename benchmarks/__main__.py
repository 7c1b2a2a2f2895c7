"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import collection, gradient, last_layer, layout, members, noise, overhead, particles, prediction

for case in (members, gradient, noise, overhead, prediction, last_layer, collection, layout, particles):
    case.main()
