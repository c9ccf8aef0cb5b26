"""Errors that are not ours, in plain words."""

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from vitreous.errors import UserError, did_you_mean_beside, in_plain_words


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other words for it")
@pytest.mark.parametrize("content", [b"", b"not yet what it will be" * 100])
def test_what_torchs_compiler_left_half_written_is_named(tmp_path, content):
    path = tmp_path / "kernel.main.so"
    path.write_bytes(content)
    spec = spec_from_file_location("kernel", path, loader=ExtensionFileLoader("kernel", str(path)))
    with pytest.raises(UserError, match=f"^{path}: cut short .* remove it"), in_plain_words():
        try:
            module_from_spec(spec)
        except ImportError as error:
            raise RuntimeError(
                f"backend='inductor' raised:\nImportError: {error}\n\nSet TORCHDYNAMO_VERBOSE=1"
            ) from None


def test_a_mistyped_path_is_compared_with_what_lies_beside_it(tmp_path):
    """By the last part: all have the same beginning."""
    for name in ("fit-pets", "recipes"):
        (tmp_path / name).mkdir()
    assert did_you_mean_beside(tmp_path / "fit-pet") == " Did you mean fit-pets?"
    assert not did_you_mean_beside(tmp_path / "nothing") and not did_you_mean_beside(tmp_path / "gone" / "fit-pet")
