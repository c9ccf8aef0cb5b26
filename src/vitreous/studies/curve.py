"""The curve through Figure 5: error = offset + scale * compute^(-power), by least squares."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    scale: float  # for compute in units of `unit`
    power: float
    offset: float  # the error that no compute removes
    unit: float
    residual: float  # root mean square, in error

    def error(self, compute: Floats | float) -> Floats:
        return self.offset + self.scale * (np.asarray(compute) / self.unit) ** -self.power

    def __str__(self) -> str:
        return f"error = {self.offset:.3f} + {self.scale:.3f} (C / {self.unit:.2g})^-{self.power:.2f}"


def fit_power_law(compute: Sequence[float], errors: Sequence[float]) -> PowerLaw | None:
    """For a given power the rest is linear, so only the power is searched for. None for fewer than three
    different amounts of compute."""
    x, y = np.asarray(compute, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if len(np.unique(x)) < 3:
        return None
    unit = float(np.exp(np.log(x).mean()))
    powers = np.geomspace(1e-2, 4.0, 121)
    for _ in range(4):  # each round looks closer around the best power so far
        fits = [_linear(x / unit, y, float(power)) for power in powers]
        best = int(np.argmin([residual for *_, residual in fits]))
        scale, offset, residual = fits[best]
        power = float(powers[best])
        powers = np.geomspace(powers[max(0, best - 1)], powers[min(len(powers) - 1, best + 1)], 121)
    return PowerLaw(scale, power, offset, unit, residual)


def _linear(x: Floats, y: Floats, power: float) -> tuple[float, float, float]:
    """scale >= 0 and offset in [0, 1) for a power, and the residual."""
    rise = x**-power
    centred = rise - rise.mean()
    scale = float((centred * (y - y.mean())).sum() / (centred * centred).sum())
    offset = float(y.mean() - scale * rise.mean())
    if scale < 0:
        scale, offset = 0.0, float(y.mean())
    elif offset < 0:  # no error is below 0
        scale, offset = float((rise * y).sum() / (rise * rise).sum()), 0.0
    return scale, offset, float(np.sqrt(np.square(y - offset - scale * rise).mean()))
