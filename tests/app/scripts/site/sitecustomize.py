"""The user's own: it runs as it does without us."""

import os

os.environ["SITE_OF_THE_USER"] = "ran"
