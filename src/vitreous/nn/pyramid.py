"""A pyramid for plain ViTs: maps of several strides, all from the last one (Li et al. 2022, ViTDet, section 3)."""

from collections.abc import Sequence

from torch import Tensor, nn

SCALES = (4.0, 2.0, 1.0, 0.5)  # of ViTDet: strides of 4, 8, 16 and 32 px for patches of 16 px


class SimplePyramid(nn.Module):
    """Each map is the last one, enlarged or halved, then through a 1x1 and a 3x3 convolution."""

    def __init__(self, channels: int, width: int, scales: Sequence[float] = SCALES) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Level(channels, width, scale) for scale in scales)

    def forward(self, last: Tensor) -> tuple[Tensor, ...]:
        """(B, C, h, w) -> (B, width, h * scale, w * scale) for each scale."""
        return tuple(level(last) for level in self.levels)


class Level(nn.Module):
    def __init__(self, channels: int, width: int, scale: float) -> None:
        super().__init__()
        self.resize, channels = _resizing(channels, scale)
        self.project = nn.Conv2d(channels, width, 1, bias=False)
        self.project_norm = ChannelNorm(width)
        self.smooth = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.smooth_norm = ChannelNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project_norm(self.project(self.resize(x)))
        out: Tensor = self.smooth_norm(self.smooth(x))
        return out


def _resizing(channels: int, scale: float) -> tuple[nn.Module, int]:
    """The layers, and the number of channels they leave."""
    half, quarter = max(1, channels // 2), max(1, channels // 4)
    if scale == 4:
        first, second = (nn.ConvTranspose2d(*pair, 2, stride=2) for pair in ((channels, half), (half, quarter)))
        return nn.Sequential(first, ChannelNorm(half), nn.GELU(), second), quarter
    if scale == 2:
        return nn.ConvTranspose2d(channels, half, 2, stride=2), half
    if scale == 1:
        return nn.Identity(), channels
    if scale in (0.5, 0.25, 0.125):
        return nn.MaxPool2d(round(1 / scale), ceil_mode=True), channels
    raise ValueError(f"a pyramid has scales of 4, 2, 1, 1/2, 1/4 and 1/8, not {scale}")


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of each place of a map (B, D, h, w)."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__(width, eps=epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)
