"""Methods that approximate each row's likelihood by a site of its own, in moments of the weights."""
