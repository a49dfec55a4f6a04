"""What drives each engine inside the ranks of a trial."""
