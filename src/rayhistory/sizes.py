"""Format sizes in the same way on pages and in commands."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(size: float) -> str:
    """Format a number of bytes with two or three digits: `3.4 MiB`, `120 GiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    power = 1
    while size >= 1023.5 * 1024**power and power < len(_UNITS):
        power += 1
    amount = size / 1024**power
    return f"{amount:.{1 if amount < 9.95 else 0}f} {_UNITS[power - 1]}"
