"""What the commands do: a job becomes a session, a session a search, a study a report."""
