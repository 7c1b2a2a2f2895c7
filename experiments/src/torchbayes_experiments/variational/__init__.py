"""Normal distributions over weights: pruning, flows, compression, tasks one after the other."""
