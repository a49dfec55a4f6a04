"""Training engines: what a candidate means there, and what the live engine must say of it."""
