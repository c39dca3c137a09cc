"""The one exception that users are meant to see."""


class DearError(Exception):
    """Bad input, said in one sentence that tells what to do. The command line prints it and exits with 2."""
