"""Text of a user's file as it may be printed anywhere."""


def visible(text: str, *, kept: str = "\t") -> str:
    """What steers a terminal, or is no character at all, as its escape: a file may hold it.

    Args:
        text: Of a message, or of the file.
        kept: Characters that stay, though they are not printable.
    """
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )
