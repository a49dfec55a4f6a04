"""Ways to reach the nodes of a fleet, a file each."""
