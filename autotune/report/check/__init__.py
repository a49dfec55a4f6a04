"""What `check` found, as text for people and in the formats of other tools."""
