"""regard: attention you can use, train and see."""

from regard import decode, mask, models, nn, score
from regard.attend import attend, plan, steps
from regard.kernels.reference import Steps
from regard.plan import Plan
from regard.terms import Keys

__version__ = "0.1.0"
__all__ = ["Keys", "Plan", "Steps", "attend", "decode", "mask", "models", "nn", "plan", "score", "steps"]
