"""Why a trial took its time, and why a candidate is ranked where it is."""
