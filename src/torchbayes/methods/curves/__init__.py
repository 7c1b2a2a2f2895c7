"""Methods that connect solutions in weight space."""
