"""Code inside the ranks of a trial: it imports `autotune.contract` and nothing else of ours."""
