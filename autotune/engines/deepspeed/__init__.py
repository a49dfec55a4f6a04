"""DeepSpeed: its configuration, and what the live engine must say of it."""
