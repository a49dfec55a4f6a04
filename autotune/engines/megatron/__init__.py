"""Megatron-LM: its layouts, their rules, and their columns for the cost model."""
