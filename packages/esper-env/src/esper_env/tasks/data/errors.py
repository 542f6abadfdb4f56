"""What goes wrong with data, told in one line."""


class DataError(Exception):
    """Data are missing, damaged, or cannot be read or written; the message names the file and the way out."""


class UnreachableError(DataError):
    """The place that data are fetched from does not answer, or does not have them."""
