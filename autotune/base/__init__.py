"""What every room may use: units, errors, files, templates."""
