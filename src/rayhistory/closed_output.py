"""Writing to standard output and standard error after their reader has closed the pipe, as `head` does."""

import os
from typing import TextIO


def write_or_discard(stream: TextIO, text: str) -> None:
    """Write text at once. If the reader has closed the pipe, discard this text and all that follows."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
