"""A package of the user's that is called like one of ours."""

MINE = "the user's"
