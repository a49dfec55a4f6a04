"""Dialects: the files of one consumer each."""
