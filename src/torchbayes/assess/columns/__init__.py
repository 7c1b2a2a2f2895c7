"""What the columns of a table do to predictions: which matter, how the mean depends on them, why a row is uncertain."""
