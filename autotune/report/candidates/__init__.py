"""Predictions for candidates: as text for a terminal, and as data."""
