"""The search: baseline, samplers, stops, the final comparison, and the soak of a winner."""
