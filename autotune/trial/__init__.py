"""What runs inside the ranks of a trial; imports `autotune.contract` and nothing else of ours."""
