"""Environment variables by which a node tells a trial's ranks what is theirs."""

SUBMITTED_ENV = "AUTOTUNE_SUBMITTED_AT"
CORES_ENV = "AUTOTUNE_CORES"
"""Processor cores per local rank: `0,1;2,3`; empty leaves the ranks unpinned."""
CAPACITY_ENV = "AUTOTUNE_CAPACITY_BYTES"
"""Memory limit where the spec names none: a CPU rank's share of the host."""
BUILT_ENV = "AUTOTUNE_BUILT"
"""Extensions that were built for one Python, for a rank of the user's own command that is run by
it: JSON of its `sys.prefix` and of the variables that make it load them."""
STORE_ENV = "AUTOTUNE_STORE"
"""Descriptor of the socket on which a launcher listens; the first rank alone has it."""
