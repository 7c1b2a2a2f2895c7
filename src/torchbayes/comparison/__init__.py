"""Methods side by side on one problem: settings, fits, scores, one table, a report."""
