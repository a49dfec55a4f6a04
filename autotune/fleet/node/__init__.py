"""The agent of a node: it starts the ranks of trials there, watches and ends them."""
