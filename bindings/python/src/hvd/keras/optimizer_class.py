"""The class of a distributed optimizer."""

from __future__ import annotations

from hvd.keras.backend import KERAS


def made_of(kind: type, mixin: type) -> type:
    """A subclass with a mixin and the same name, so that files treat it as the original class."""
    members = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        # A configuration does not contain distribution settings, so it creates a plain optimizer.
        "from_config": staticmethod(kind.from_config),  # type: ignore[attr-defined]
    }
    made = type(kind.__name__, (mixin, kind), members)
    registered = KERAS.saving.get_registered_name(kind)
    if registered != kind.__name__:
        # The new class is saved under the registered name, and the old one is loaded under it.
        package, _, name = registered.rpartition(">")
        KERAS.saving.register_keras_serializable(package, name)(made)
        KERAS.saving.get_custom_objects()[registered] = kind
    return made
