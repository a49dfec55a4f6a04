"""Find the DeepSpeed configuration that trains a model fastest in the memory there is.

This file stays empty of imports on purpose: ranks of a trial import `autotune.trial` and pay for
everything that is loaded here.
"""

__version__ = "0.1.0"
