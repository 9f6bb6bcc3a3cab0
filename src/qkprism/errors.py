"""The one exception that a user's mistake raises; its message is one line that says what to do."""


class QKPrismError(Exception):
    """What was given, what is allowed, what to do: in one line."""
