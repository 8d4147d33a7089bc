"""Figures of attention, by matplotlib, for papers and slides.

Every function takes numbers with labels, or a trace (:func:`regard.record`), and returns a matplotlib ``Figure``. It
opens no window and changes no setting of matplotlib. The figures need ``pip install "regard[plot]"``.
"""

from regard.plot._arcs import arcs
from regard.plot._canvas import save
from regard.plot._grid import head_grid
from regard.plot._matrix import alignment, heatmap
from regard.plot._steps import steps

__all__ = ["alignment", "arcs", "head_grid", "heatmap", "save", "steps"]
