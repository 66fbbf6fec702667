"""What the component can do, by name. A name's meaning never changes: a new one is added."""


def echo(payload):
    """Return the payload: for measuring what a call costs."""
    return payload


FUNCTIONS = {"echo": echo}
