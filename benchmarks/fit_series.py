"""Fits the sine series of tanh that regard/kernels/gpu/series.py holds, and prints that table.

    tanh(x) ≈ Σ_m c_m sin(ω_m x),   |x| ≤ R

Each sine of a sum splits into sin·cos + cos·sin, so fewer terms mean fewer features per key. Three things help:

- sin(ω_m x) with ω_m = (2m − 1)π/2L mirrors at L, and so does tanh nearly: tanh(2L − x) ≈ 1 ≈ tanh(x) beyond x ≈ 3. So
  L may be little more than R/2, not R.
- The frequencies are free. Starting at those ω_m, Levenberg and Marquardt's method improves ω and c together.
- Sums a + b are seldom near their bound R, so errors near zero weigh more. The slope is fitted along: the backward pass
  needs Σ c_m ω_m cos(ω_m x) ≈ 1 − tanh².

For each M, a table holds the largest R with an error of at most tolerance · min(1, (R/10)²).

    python benchmarks/fit_series.py > regard/kernels/gpu/series.py
"""

from __future__ import annotations

import numpy as np

TOLERANCES = 4e-3, 2e-3  # of bfloat16 and of float16
SLOPE = 0.4  # weight of the slope's error against that of the value
HEADER = '''"""tanh as a sum of few sines: written by benchmarks/fit_series.py, which says how."""

from __future__ import annotations

Row = tuple[float, tuple[float, ...], tuple[float, ...]]  # R, frequencies, coefficients

# By tolerance: tanh(x) = Σ c_m sin(ω_m x) within it for |x| ≤ R; the slope within about fifteen times as much.
# fmt: off
SERIES: dict[float, tuple[Row, ...]] = {'''


def values(x: np.ndarray, omega: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The errors of the series and of its slope."""
    angle = np.outer(x, omega)
    return np.sin(angle) @ c - np.tanh(x), (np.cos(angle) * omega) @ c - 1 / np.cosh(x) ** 2


def start(reach: float, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """The best odd harmonics of some L, by least squares."""
    x = np.linspace(0, reach, 600)
    found: list[tuple[float, np.ndarray, np.ndarray]] = []
    for length in np.linspace(0.5 * reach + 0.3, 1.1 * reach, 25):
        omega = (2 * np.arange(1, terms + 1) - 1) * np.pi / (2 * length)
        c = np.linalg.lstsq(np.sin(np.outer(x, omega)), np.tanh(x), rcond=None)[0]
        found.append((np.abs(values(x, omega, c)[0]).max(), omega, c))
    return min(found, key=lambda f: f[0])[1:]


def fit(reach: float, terms: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The largest error, frequencies and coefficients of the fit on |x| ≤ reach."""
    x = np.linspace(0, reach, 600)
    weight = np.sqrt(np.exp(-(x**2) / (2 * (reach / 4) ** 2)) + 0.1)
    omega, c = start(reach, terms)

    def residuals(omega: np.ndarray, c: np.ndarray) -> np.ndarray:
        value, slope = values(x, omega, c)
        return np.concatenate([weight * value, SLOPE * weight * slope])

    def jacobian(omega: np.ndarray, c: np.ndarray) -> np.ndarray:
        sin, cos, w, x_ = np.sin(np.outer(x, omega)), np.cos(np.outer(x, omega)), weight[:, None], x[:, None]
        return np.block(
            [[w * sin, w * x_ * cos * c], [SLOPE * w * cos * omega, SLOPE * w * (cos - x_ * omega * sin) * c]]
        )

    r, damping = residuals(omega, c), 1e-3
    for _ in range(200):
        j = jacobian(omega, c)
        normal, gradient = j.T @ j, j.T @ r
        while damping < 1e10:
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), gradient)
            trial = omega + step[terms:], c + step[:terms]
            r_trial = residuals(*trial)
            if r_trial @ r_trial < r @ r:
                break
            damping *= 4
        else:
            break
        gain, (omega, c), r, damping = 1 - (r_trial @ r_trial) / (r @ r), trial, r_trial, max(damping / 3, 1e-12)
        if gain < 1e-9:
            break
    error = np.abs(values(np.linspace(0, reach, 4001), omega, c)[0]).max()
    return float(error), omega, c


def largest_reach(terms: int, tolerance: float) -> tuple[float, np.ndarray, np.ndarray]:
    for reach in np.arange(2.0 * terms, 0.2 * terms, -0.05):
        error, omega, c = fit(reach, terms)
        if error <= tolerance * min(1.0, (reach / 10) ** 2):
            order = np.argsort(omega)
            return float(reach), omega[order], c[order]
    raise ValueError(f"no range found for {terms} terms")


def wrapped(row: np.ndarray) -> str:
    lines = [", ".join(f"{x:.7f}" for x in row[i : i + 8]) for i in range(0, len(row), 8)]
    return ",\n          ".join(lines)


def main() -> None:
    print(HEADER)
    for tolerance in TOLERANCES:
        print(f"    {tolerance}: (")
        for terms in range(3, 17):
            reach, omega, c = largest_reach(terms, tolerance)
            print(f"        ({reach:.2f},\n         ({wrapped(omega)}),\n         ({wrapped(c)})),")
        print("    ),")
    print("}\n# fmt: on")


if __name__ == "__main__":
    main()
