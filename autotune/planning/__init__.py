"""What is legal for a job, and what the cost model says of it."""
