"""Every knob, by group: one file for each page of the documentation."""
