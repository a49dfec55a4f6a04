"""Tables of runs that were measured elsewhere: what a search is replayed on."""
