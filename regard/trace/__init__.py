"""See what attention did: ``record`` any model, then ask the trace for weights, steps, tiles and measures."""

from regard.trace._call import QuerySteps, TopK
from regard.trace._file import load
from regard.trace._record import record, without
from regard.trace._stop import Stopped, wanted
from regard.trace._trace import Trace

__all__ = ["QuerySteps", "Stopped", "TopK", "Trace", "load", "record", "wanted", "without"]
