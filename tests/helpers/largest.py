"""The largest tensor that is made while something runs: whether memory grows with the square of a length."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """``elements`` of it."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation, types, given=(), options=None):
        made = operation(*given, **(options or {}))
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(made) if isinstance(t, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made
