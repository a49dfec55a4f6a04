"""The Python API: what the commands do, with the words of their flags, as values.

`autotune.search(model="llama-3.2-1b", seq_len=2048, global_batch=32)` is the command with those
flags. Errors are raised (`autotune.base.errors`), nothing is asked, nothing ends the program. The
commands call the same functions, and print what these return.
"""
