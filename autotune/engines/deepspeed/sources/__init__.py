"""DeepSpeed's configuration in somebody's files: who reads it there, and what he makes of it."""
