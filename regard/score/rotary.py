"""Rotary positions: dot-shaped scores of rotated queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.score._checks import arguments, check_finite, check_positive, check_same_dims
from regard.score._tensors import positions
from regard.score.base import Score, describe_argument
from regard.score.pairs import Dot
from regard.score.scaling import NTKScaling, Scaling, frequencies
from regard.score.terms import Keys, Queries


class Rotary(Score):
    """The inner dot-shaped score of rotated q and k (Su et al. 2021, https://arxiv.org/abs/2104.09864).

    ``dims`` rotates only that many leading dims (an even number). ``interleaved=False`` pairs dim d with d + dims/2
    (GPT-NeoX, Llama), ``True`` pairs 2d with 2d + 1 (the paper).

    ``scaling`` changes the frequencies for longer sequences: :class:`LinearScaling`, :class:`NTKScaling`,
    :class:`YaRNScaling`, :class:`Llama3Scaling`. ``inv_freq`` gives the frequencies themselves, instead of ``base``.

    ``sections`` divides the frequencies between several axes of positions, as models of images and video do (Wang et
    al. 2024, Qwen2-VL, https://arxiv.org/abs/2409.12191): (16, 24, 24) rotates the first 16 by the first axis. ``axes``
    holds the coordinates of position p, [axes, positions] or [batch, axes, positions], and may be set later
    (``score.axes = …``); beyond its end all coordinates increase by one. Without it every coordinate is p, as in text.

    >>> image = torch.tensor([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])  # time, row, column
    >>> q, k = torch.randn(2, 1, 4, 6, 16)
    >>> Rotary(Dot(), sections=(2, 3, 3), axes=image)(q, k).shape
    torch.Size([1, 4, 6, 6])
    """

    dot_shaped = pair_shaped = True
    _caller_tensors = ("axes",)
    axes: Tensor | None
    own: Tensor | None

    def __init__(
        self,
        inner: Score | None = None,
        base: float = 10000.0,
        *,
        dims: int | None = None,
        interleaved: bool = False,
        scaling: Scaling | None = None,
        inv_freq: Tensor | Sequence[float] | None = None,
        sections: Sequence[int] | None = None,
        axes: Tensor | None = None,
    ) -> None:
        super().__init__()
        inner = Dot() if inner is None else inner
        if not isinstance(inner, Score) or not inner.dot_shaped:
            raise ValueError(
                f"Rotary wraps dot-shaped scores (Dot, General, Bilinear, Cosine or a sum of these), "
                f"got {describe_argument(inner)}; add position terms outside, as in "
                "Rotary(Dot()) + ALiBi(...)"
            )
        if check_finite("Rotary", "base", base) <= 0:
            raise ValueError(f"Rotary: base must be positive, got {base}")
        if dims is not None and (dims <= 0 or dims % 2):
            raise ValueError(f"Rotary: dims must be a positive even number, got {dims}")
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(f"Rotary: scaling is one of regard.score, such as YaRNScaling(4, 8192), got {scaling!r}")
        self.inner, self.base, self.dims, self.interleaved = inner, float(base), dims, interleaved
        self.scaling = scaling
        self.inv_freq = self._numbers(inv_freq)
        self.register_buffer("own", None, persistent=False)
        self.sections = None if sections is None else tuple(sections)
        self.register_buffer("axes", axes, persistent=False)
        self._check_sections()
        self._start()

    def _numbers(self, inv_freq: Tensor | Sequence[float] | None) -> tuple[float, ...] | None:
        """Frequencies as Python floats: casting the module does not round them."""
        if inv_freq is None:
            return None
        if isinstance(inv_freq, Tensor) and inv_freq.is_meta:
            raise ValueError("Rotary: inv_freq were made on the meta device and hold nothing; give them as a list")
        numbers = inv_freq.tolist() if isinstance(inv_freq, Tensor) else list(inv_freq)
        if not numbers or not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
            raise ValueError(f"Rotary: inv_freq takes one finite number per pair of dims, got {inv_freq!r}")
        if self.scaling is not None:
            raise ValueError("Rotary: inv_freq are the frequencies as they are; leave out scaling=")
        if self.dims not in (None, 2 * len(numbers)):
            raise ValueError(f"Rotary: {len(numbers)} frequencies turn {2 * len(numbers)} dims, got dims={self.dims}")
        self.dims = 2 * len(numbers)
        return tuple(float(x) for x in numbers)

    def _constants(self) -> dict[str, Tensor]:
        if self.inv_freq is None:
            return {}
        return {"own": torch.tensor(self.inv_freq, dtype=torch.float64, device="cpu")}

    def _check_sections(self) -> None:
        if self.sections is None:
            if self.axes is not None:
                raise ValueError("Rotary: axes= needs sections=, how many frequencies each axis turns")
            return
        check_positive("Rotary", **{f"sections[{i}]": n for i, n in enumerate(self.sections)})
        if self.dims not in (None, 2 * sum(self.sections)):
            raise ValueError(f"Rotary: sections={self.sections} turn {2 * sum(self.sections)} dims, not {self.dims}")
        self.dims = 2 * sum(self.sections)
        if self.axes is not None and (
            self.axes.ndim not in (2, 3) or self.axes.shape[-2] != len(self.sections) or not self.axes.shape[-1]
        ):
            raise ValueError(
                f"Rotary: axes must be [{len(self.sections)}, positions] or [batch, {len(self.sections)}, positions], "
                f"got {list(self.axes.shape)}"
            )

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        length = k.shape[-2] if self.scaling is not None else None
        e: Tensor = self.inner(self._rotate(q, offset, length), self._rotate(k, 0, length), offset)
        return e

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return self.inner.queries(self._rotate(q, offset), offset)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.keys(self._rotate(k, start), start)

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return self.inner.key_tensors

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if self.dims is None:
            check_same_dims("Rotary", query_dim, key_dim)
            if query_dim % 2:
                raise ValueError(
                    f"Rotary turns pairs of dims and needs an even number, got {query_dim}; "
                    "set dims= to rotate only the first that many"
                )
        elif self.dims > min(query_dim, query_dim if key_dim is None else key_dim):
            raise ValueError(
                f"Rotary: dims={self.dims} is more than the {query_dim} dims of the queries "
                f"or the {key_dim} of the keys"
            )
        self.inner.check(heads, query_dim, kv_heads, key_dim)

    @property
    def unchanged_up_to(self) -> float:
        own = self.scaling.length if isinstance(self.scaling, NTKScaling) else math.inf
        return min(own, self.inner.unchanged_up_to)

    def _rotate(self, x: Tensor, start: int | Tensor, length: int | None = None) -> Tensor:
        dims = x.shape[-1] if self.dims is None else self.dims
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        position = positions(x.shape[-2], start, x.device)
        frequency = self._frequencies(dims, position, start, length, x.new_empty(0, dtype=exact))
        angle = self._angles(position, frequency)
        cos, sin = angle.cos(), angle.sin()
        if self.scaling is not None and self.scaling.temperature != 1:
            cos, sin = cos * self.scaling.temperature, sin * self.scaling.temperature
        return rotate(x, cos, sin, interleaved=self.interleaved)

    def _frequencies(
        self, dims: int, position: Tensor, start: int | Tensor, length: int | Tensor | None, like: Tensor
    ) -> Tensor:
        if self.own is not None:
            own = self._constants()["own"] if self.own.is_meta else self.own
            return own.to(like)
        if self.scaling is None:
            return frequencies(self.base, dims, like)
        if length is None:
            length = position.max() + 1 if isinstance(start, Tensor) else start + len(position)
        return self.scaling.frequencies(self.base, dims, length, like)

    def _angles(self, position: Tensor, frequency: Tensor) -> Tensor:
        """position · frequency, [L, dims / 2] or [B, 1, L, dims / 2]."""
        if self.sections is None or self.axes is None:
            return position.to(frequency.dtype)[..., None] * frequency
        if self.axes.is_meta and not position.is_meta:
            raise ValueError("Rotary: axes were made on the meta device and hold nothing; set score.axes to them again")
        axes = self.axes.to(position.device)
        within = position.clamp(0, axes.shape[-1] - 1)
        if axes.ndim == 2:
            places = axes[:, within]  # [axes, L] or [axes, B, 1, L]
        else:
            index = within.reshape(-1, 1, within.shape[-1]).expand(len(axes), axes.shape[1], -1)
            places = axes.gather(-1, index).movedim(1, 0)[:, :, None]  # [axes, B, 1, L]
        places = (places + (position - within)).to(frequency.dtype)
        parts = zip(places, frequency.split(self.sections), strict=True)
        return torch.cat([place[..., None] * part for place, part in parts], -1)

    def extra_repr(self) -> str:
        plain = f"base={self.base}, dims={self.dims}, interleaved={self.interleaved}"
        rest = arguments(scaling=self.scaling, inv_freq=self.inv_freq, sections=self.sections)
        return f"{plain}, {rest}" if rest else plain


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate pairs of the first 2·cos.shape[-1] dims of x by the angles with these cosines and sines."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].to(cos.dtype), x[..., 2 * half :]
    if interleaved:
        even, odd = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    else:
        low, high = turned[..., :half], turned[..., half:]
        turned = torch.cat((low * cos - high * sin, low * sin + high * cos), -1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
