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
