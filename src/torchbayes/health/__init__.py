"""Is a result trustworthy? Checks of posterior, model, rows and log, for any method."""
