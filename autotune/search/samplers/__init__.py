"""The shipped samplers."""
