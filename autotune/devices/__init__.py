"""Accelerators: the table of them, those of this machine, and what a probe measured."""
