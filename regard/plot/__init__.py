"""Figures of attention, by matplotlib: what goes into papers and slides.

Every function takes plain numbers with labels, or a trace (:func:`regard.record`), and returns a matplotlib ``Figure``.
Nothing is shown and no setting of matplotlib is changed. They need ``pip install "regard[plot]"``.
"""

from regard.plot._arcs import arcs
from regard.plot._canvas import save
from regard.plot._grid import head_grid
from regard.plot._matrix import alignment, heatmap
from regard.plot._steps import steps

__all__ = ["alignment", "arcs", "head_grid", "heatmap", "save", "steps"]
