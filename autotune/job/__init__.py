"""The job: what to tune, the model that it trains, and the files that say so."""
