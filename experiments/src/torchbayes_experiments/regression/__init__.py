"""Tables of UCI regression."""
