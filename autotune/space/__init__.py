"""What can be chosen: knobs, the files that list their values, and candidates."""
