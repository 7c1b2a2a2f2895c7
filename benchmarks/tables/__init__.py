"""Probabilistic predictions on tables: the library's defaults beside what else a user of a table may take."""
