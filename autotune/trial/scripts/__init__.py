"""What trains in a trial and, as it is, in an export: nothing here imports the rest of ours."""
