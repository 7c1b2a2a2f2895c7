"""Is a result worth something? Looks at posterior, model, rows and log, and knows no method."""
