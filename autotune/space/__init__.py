"""The choices: knobs, the files that list their values, and candidates."""
