"""regard: attention you can use, train and see."""

from regard import decode, mask, models, nn, score, trace
from regard.attend import attend, plan, steps
from regard.kernels.reference import Steps
from regard.plan import Plan
from regard.terms import Keys
from regard.trace import Trace, record
from regard.translator import Translator, load

__version__ = "0.1.0"
__all__ = [
    "Keys",
    "Plan",
    "Steps",
    "Trace",
    "Translator",
    "attend",
    "decode",
    "load",
    "mask",
    "models",
    "nn",
    "plan",
    "record",
    "score",
    "steps",
    "trace",
]
