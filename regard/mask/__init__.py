"""Masks: which keys a query may attend to. True means it may.

Masks combine with ``&``, ``|`` and ``~``: a padded prefix language model is ``(Causal() | Prefix(10)) & Lengths(n)``.

A mask answers two questions. ``visible`` gives a tile of booleans. ``tiles`` says which tiles of a grid are empty and
which are full: kernels skip empty tiles and need no mask in full ones. Masks that depend on positions alone also answer
``span`` for plain integers, without reading a tensor.

A custom mask is a subclass with ``visible`` alone, or a :class:`Function`; every kernel accepts both.

Shapes: B batch, H heads, L queries, S keys, l and s a tile's rows and columns.
"""

from regard.mask.base import Mask
from regard.mask.causal import Causal, Window
from regard.mask.combine import And, Not, Or
from regard.mask.dense import Dense
from regard.mask.documents import Documents
from regard.mask.function import Function
from regard.mask.lengths import Lengths, Prefix

__all__ = ["And", "Causal", "Dense", "Documents", "Function", "Lengths", "Mask", "Not", "Or", "Prefix", "Window"]
