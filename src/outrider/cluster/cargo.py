"""What users hand to workers and get from them, as pickles that say what is wrong with them."""

import io
from collections.abc import Mapping
from typing import Any

from outrider.cluster.post.parcel import pickler
from outrider.core.errors import InvalidInput


def pickled(item: Any) -> bytes:
    """One pickle with all buffers inside."""
    file = io.BytesIO()
    pickler()(file, protocol=5).dump(item)
    return file.getvalue()


def refuse_unpicklable(what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> InvalidInput:
    """The error to raise when the arguments of `what` could not be pickled (`error`): it names the ones at fault."""
    named = {
        **{f"argument {i + 1}": arg for i, arg in enumerate(args)},
        **{f"argument {k!r}": v for k, v in kwargs.items()},
    }
    faults = "; ".join(
        f"{name} ({type(value).__name__}): {why}" for name, value in named.items() if (why := fault(value))
    )
    return InvalidInput(f"{what} cannot be called: {faults or error}. What goes to a worker must be picklable")


def fault(item: Any) -> str | None:
    """Why it cannot be pickled, or None."""
    try:
        pickled(item)
    except Exception as exc:  # noqa: BLE001 pickling runs the user's code
        return f"{type(exc).__name__}: {exc}"
    return None
