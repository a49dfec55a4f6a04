"""What a study found, as values that every form of the report shows."""
