"""The body of a network, which no random weight reaches: computed once for the same rows."""
