"""Legal candidates of a job, and the cost model's predictions of them."""
