"""What a user can mend: each message says what is wrong and what to do."""


class AdviceError(ValueError):
    """Bad input; the command line prints the message on one line and exits with code 2."""
