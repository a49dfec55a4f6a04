"""Output for people in a terminal."""
