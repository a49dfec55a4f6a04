"""Drivers: one for each engine, inside the ranks of a trial."""
