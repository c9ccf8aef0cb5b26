import numpy as np
import pytest

from vitreous.studies.curve import fit_power_law


@pytest.mark.parametrize(("scale", "power", "offset"), [(0.2, 0.5, 0.05), (0.4, 0.15, 0.0), (0.1, 1.3, 0.2)])
def test_a_known_curve_is_found_again(scale, power, offset):
    compute = np.geomspace(1e13, 1e16, 9)
    errors = offset + scale * (compute / 3e14) ** -power
    law = fit_power_law(compute.tolist(), errors.tolist())
    assert law.power == pytest.approx(power, rel=1e-3)
    assert law.offset == pytest.approx(offset, abs=1e-4)
    assert law.residual < 1e-5
    assert law.error(7e14) == pytest.approx(offset + scale * (7e14 / 3e14) ** -power, rel=1e-3)


def test_noise_is_averaged_and_no_error_is_negative():
    compute = np.geomspace(1e13, 1e15, 40)
    noise = np.random.default_rng(0).normal(0, 0.005, 40)
    law = fit_power_law(compute.tolist(), (0.1 + 0.2 * (compute / 1e14) ** -0.4 + noise).tolist())
    assert law.power == pytest.approx(0.4, abs=0.1)
    assert law.residual == pytest.approx(0.005, rel=0.3)
    assert fit_power_law([1.0, 10.0, 100.0], [0.3, 0.1, 0.0]).offset == 0.0
    flat = fit_power_law([1.0, 10.0, 100.0], [0.1, 0.2, 0.3])  # more compute did not help
    assert flat.scale == 0.0
    assert flat.offset == pytest.approx(0.2)


def test_two_lengths_are_no_curve():
    assert fit_power_law([1.0, 1.0, 2.0, 2.0], [0.5, 0.4, 0.3, 0.2]) is None
