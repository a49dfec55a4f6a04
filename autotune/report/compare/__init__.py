"""Several studies beside each other."""
