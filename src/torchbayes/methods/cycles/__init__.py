"""Networks kept along one training run whose learning rate falls and rises again: snapshots and fast ensembles."""
