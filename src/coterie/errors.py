"""The one error type that is meant for a person: what was wrong, where, and what to do.

The command line prints a ``UserError`` without a traceback and exits with status 2.
"""


class UserError(Exception):
    """A mistake or shortage that the person at the keyboard can mend.

    ``what`` says what is wrong and where; ``todo`` says what to do about it.
    """

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(f"{what}\n  -> {todo}" if todo else what)
        self.what = what
        self.todo = todo
