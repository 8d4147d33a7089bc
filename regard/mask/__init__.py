"""Masks: which keys a query may attend to. True means it may.

Masks combine with ``&``, ``|`` and ``~``: a padded prefix language model is ``(Causal() | Prefix(10)) & Lengths(n)``.

A mask answers two questions: ``visible`` gives a tile of booleans, and ``tiles`` says of every tile of a grid
whether it is empty or full, so that kernels skip the first kind and need not evaluate the second. Masks that depend
on positions alone answer ``span`` for plain integers too, without reading any tensor.

A mask of one's own is a subclass with ``visible`` alone, or a :class:`Function`; both run everywhere.

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
