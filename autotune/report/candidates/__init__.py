"""What the cost model says of candidates: as people read it in a terminal, and as data."""
