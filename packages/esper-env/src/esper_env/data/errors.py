"""What goes wrong with data, told in one line."""


class DataError(Exception):
    """Data are missing, damaged, or cannot be read or written; the message names the file and the way out."""
