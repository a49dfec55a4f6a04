"""What people read: the live view, the terminal report."""
