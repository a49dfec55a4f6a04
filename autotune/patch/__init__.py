"""A configuration put into a file that somebody has, and nothing else of it changed."""
