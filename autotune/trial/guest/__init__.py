"""Inside the ranks of a user's own script, which is not edited: reached through the environment.

What is here runs in the user's interpreter, beside their packages. It imports the standard library
alone, and Python 3.10 will do, until their code has brought torch and DeepSpeed.
"""
