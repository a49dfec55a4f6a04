"""Launchers: what starts an export's script, one way each."""
