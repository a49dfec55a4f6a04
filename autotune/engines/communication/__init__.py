"""What every engine's ranks talk by: NCCL and gloo, with their knobs, rules and read-back."""
