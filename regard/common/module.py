"""Modules that can be reset as a whole."""

from __future__ import annotations

from torch import nn


class Module(nn.Module):
    """A module whose ``reset_parameters`` initialises everything in it, its children included."""

    def reset_parameters(self) -> None:
        """Initialise as the constructor does: the children in order, then the module's own tensors."""
        for part in self.children():
            restart(part)
        self._start()

    def _start(self) -> None:
        """Initialise the module's own tensors. ``__init__`` calls this last."""


def restart(module: nn.Module) -> None:
    """Reset a module, or the children of one without ``reset_parameters``, such as a list."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
    else:
        for part in module.children():
            restart(part)
