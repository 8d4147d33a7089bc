"""Modules that start anew as a whole."""

from __future__ import annotations

from torch import nn


class Module(nn.Module):
    """A module whose ``reset_parameters`` leaves nothing in it undefined, whatever it is made of."""

    def reset_parameters(self) -> None:
        """Start anew, as when it was made: its parts in order, then what it starts itself."""
        for part in self.children():
            restart(part)
        self._start()

    def _start(self) -> None:
        """What the module starts itself, once its parts are there. ``__init__`` ends with it."""


def restart(module: nn.Module) -> None:
    """Start a module anew, or the parts of one that cannot do so itself, such as a list."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
    else:
        for part in module.children():
            restart(part)
