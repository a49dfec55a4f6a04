"""Where trials run: gangs of slots on this machine."""
