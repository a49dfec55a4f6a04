"""Why a trial took its time, what bounds it, and what was predicted of it."""
