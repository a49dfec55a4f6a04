"""Short measurements of the fleet, for the command `probe` and for the cost model."""
