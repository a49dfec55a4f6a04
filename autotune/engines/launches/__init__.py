"""Shell files and launch lines that somebody has, whatever engine they start."""
