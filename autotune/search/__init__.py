"""The search: baseline, samplers, stops, the final comparison, and the soak of a winner."""

from autotune import make_callable

make_callable(__name__)
