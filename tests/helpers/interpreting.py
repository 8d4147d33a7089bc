"""Where there is no GPU, Triton's kernels run in its interpreter. To be imported before what defines kernels.

TRITON_INTERPRET is read where kernels are defined, that is when their modules are imported, which is done here; and
where they run, so that a test sets it for itself: other tests must not plan for the interpreter.
"""

import os
from unittest import mock

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

with mock.patch.dict(os.environ, {} if CUDA else {"TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", "1")}):
    pytest.importorskip("triton")
    from regard.kernels.gpu import _guard as _triton_guard  # noqa: F401
    from regard.kernels.gpu.additive import _device as _additive  # noqa: F401
    from regard.kernels.gpu.offset import _device as _offset  # noqa: F401
    from regard.train import _triton_loss  # noqa: F401


def _patch_once_a_launch():
    """Have the interpreter patch ``triton.language`` once a launch, not at every call of a device function.

    It looks through all members of these modules each time, to find them patched: a third of a test's time.
    """
    from triton.runtime import interpreter

    patch_anew, patched = interpreter._patch_lang, set()

    def patch(fn):
        modules = {id(x) for x in fn.__globals__.values() if x is interpreter.tl or x is interpreter.tl.core}
        if modules <= patched:
            return None  # a device function's; nobody restores it
        launch, scope = not patched, patch_anew(fn)
        patched.update(modules)
        if launch:
            restore = scope.restore

            def restore_all():
                patched.clear()
                restore()

            scope.restore = restore_all
        return scope

    interpreter._patch_lang = patch


if not CUDA:
    _patch_once_a_launch()
