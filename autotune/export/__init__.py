"""Rendering: templates to files, and the files that a user takes away."""
