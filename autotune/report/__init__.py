"""Output for people: the live view, the terminal report, the pages."""
