"""Findings of a study, as values that every form of the report shows."""
