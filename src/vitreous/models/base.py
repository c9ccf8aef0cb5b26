"""What every encoder returns, what its settings say of it, and the one place where a transformer is cut open."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.models.layout import AttentionLayer


class Grid(NamedTuple):
    """The patches of a picture, counted. Never guessed from a square root."""

    h: int
    w: int

    @property
    def cells(self) -> int:
        return self.h * self.w


class Output(NamedTuple):
    """One of `Features.maps`, known before a forward pass: what a decoder is built for."""

    width: int  # channels of the map
    stride: tuple[int, int]  # px of the picture from one place of the map to the next, down and right
    normed: bool = True  # whether its channels come out of a norm; else a decoder may want one


@dataclass(frozen=True)
class Features:
    """What every encoder returns."""

    maps: tuple[Tensor, ...]  # one (B, D, H, W) per stage, finest first; never assume H == W
    prefix: Tensor | None  # (B, P, D): class, distillation, register tokens; None where there are none
    pooled: Tensor  # (B, D)


@dataclass(frozen=True)
class Encoded:
    """What the blocks of a transformer return for a sequence of tokens."""

    tokens: Tensor  # (B, P + n, D): prefix first, final norm applied (unless it comes after pooling)
    num_prefix: int
    depths: dict[int, Tensor]  # outputs of the chosen blocks (1 = the first), before the final norm

    @property
    def prefix(self) -> Tensor:
        return self.tokens[:, : self.num_prefix]

    @property
    def patches(self) -> Tensor:
        return self.tokens[:, self.num_prefix :]


@dataclass(frozen=True)
class FineTuning:
    """How the weights of a family are best trained on."""

    optimizer: Literal["AdamW", "SGD"]
    lr: float
    weight_decay: float = 0.0
    layer_decay: float = 1.0  # factor on the rate from each stage to the one before it
    enlarges: bool = True  # whether larger pictures than in pre-training pay (paper, section 3.2)


# Layer-wise decay spares the early layers (Bao et al. 2022, BEiT), so that one rate suits most weights.
GENTLE = FineTuning("AdamW", lr=5e-4, weight_decay=0.05, layer_decay=0.75)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """What the settings of every family say of it, before anything is built."""

    family: ClassVar[str]  # as figures and tables call it
    finetuning: ClassVar[FineTuning] = GENTLE

    picture_px: tuple[int, int] = (224, 224)  # height and width of the pictures
    channels: int = 3  # of the pictures

    def build(self) -> "Encoder":
        raise NotImplementedError

    @property
    def name(self) -> str:
        """As a person would call it: ViT-S/16."""
        raise NotImplementedError

    def describe(self) -> str:
        """Its sizes in a line."""
        raise NotImplementedError

    @property
    def cell_px(self) -> tuple[int, int]:
        """What a picture's height and width must be multiples of. Any size will do for most families."""
        return 1, 1

    @property
    def coarsest_px(self) -> tuple[int, int]:
        """Px from one place of the coarsest map to the next: of a side that is a multiple, nothing is padded or
        dropped."""
        return self.cell_px

    @classmethod
    def field_names(cls) -> list[str]:
        """Of all fields, those of parts included."""
        return [field.name for field in dataclasses.fields(cls)]

    def value(self, name: str) -> Any:
        """Of a field by its own name, whichever part it is in."""
        return getattr(self, name)

    def changed(self, **values: Any) -> Self:
        """With some fields changed by their own names, whichever parts they are in."""
        return dataclasses.replace(self, **values)

    def for_side(self, side_px: int, places: int = 4) -> Self:
        """The same model for square pictures of about this side, in whole places. A pyramid's last map gets at least so
        many places a side: fewer are cheaper, and see less."""
        px = max(self.coarsest_px)
        side = max(1, round(side_px / px)) * px
        return dataclasses.replace(self, picture_px=(side, side))

    def as_trained(self, trained: "EncoderSettings") -> Self:
        """These, with whatever gives weights their shapes as it was in training: `Encoder.fit_to` brings it here."""
        return self.changed(picture_px=trained.picture_px)

    def regularised(self, **rates: float) -> Self:
        """With these rates (dropout, stochastic_depth), where the family has such a part."""
        return self.changed(**{name: rate for name, rate in rates.items() if name in self.field_names()})


class Encoder(nn.Module):
    """Pictures in, Features out: ViT, hybrid, BiT ResNet, and what follows them."""

    width: int  # of `pooled`
    outputs: tuple[Output, ...]  # of `maps`, finest first; a side has px / stride places, rounded up or down
    num_prefix: int = 0  # tokens before the patches: as many as `prefix` has
    picture_px: tuple[int, int]  # (height, width) of the pictures it is built for
    channels: int  # of the pictures
    checkpointing: bool = False  # keep only block inputs for the backward pass, and compute the rest again

    def forward(self, images: Tensor) -> Features:
        self.check(images)
        return self.features(images)

    def features(self, images: Tensor) -> Features:
        """The features themselves. Small crops may come here directly (multi-crop): what depends on the size is then
        fitted to theirs in the graph, and learns from them too."""
        raise NotImplementedError

    def stages(self) -> list[nn.Module]:
        """Shallow to deep: layer-wise decay, checkpointing and sharding go by it. Together they hold every
        parameter that belongs to one depth; the rest (a final norm) counts as the deepest."""
        raise NotImplementedError

    # ---- for those who look inside

    def attention_layers(self) -> "list[AttentionLayer]":
        """Every layer of attention, shallow to deep, for pictures of `picture_px`. A convolutional network has none."""
        return []

    def depth_maps(self, images: Tensor) -> dict[str, Tensor]:
        """Maps (B, D, h, w) along the way, shallow to deep, by name: the outputs of the stages."""
        return {f"stage {number}": each for number, each in enumerate(self.forward(images).maps, start=1)}

    def first_filters(self) -> Tensor:
        """(D, C, h, w): what the first layer looks for in the picture."""
        raise UserError("this model's first layer has no filters over pixels")

    @property
    def parts(self) -> Grid | None:
        """The cells of a picture of which any may be left out; None where it reads pictures as a whole."""
        return None

    def pooled_windows(self, images: Tensor, at: Tensor) -> Tensor:
        """(B, W, D): the pooled features of windows alone, each some cells of `parts`: `at` is (W, n) int64."""
        raise NotImplementedError

    # ---- other sizes and settings

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        """Prepare, in place, for pictures of another size. Whatever depends on the size is resized here and
        never inside the graph. A convolutional network has nothing to do."""
        self.picture_px = picture_px

    def fit_to(self, settings: EncoderSettings) -> None:
        """Prepare, in place and with its weights, for what these settings say beyond those it was built with."""
        if settings.picture_px != self.picture_px:
            self.resize(settings.picture_px)

    def missing(self) -> str | None:
        """What it still needs to have found in pictures (an objective's `look` does that), and how to come by it."""
        return None

    def check(self, images: Tensor) -> None:
        """One clear error for pictures of another shape than the encoder is built for."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (self.channels, *self.picture_px):
            h, w = self.picture_px
            raise UserError(
                f"pictures of shape {tuple(images.shape)} for a model built for (B, {self.channels}, {h}, {w}): "
                "resize the pictures, or prepare the model with encoder.resize((height, width))"
            )


class PatchEncoder(Encoder):
    """An encoder that first embeds the patches of a picture, cut at the one place objectives need: after that.

    SimMIM replaces tokens there, with no flag inside the model. The cells of their grid have the stride of the first
    of `outputs`.
    """

    token_width: int  # of an embedded patch; `width` differs where maps halve, or the pooled token is projected

    def features(self, images: Tensor) -> Features:
        return self.features_of(*self.embed(images))

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, H, W) -> (B, h*w, D) tokens before positions, in reading order, and their grid."""
        raise NotImplementedError

    def features_of(self, tokens: Tensor, grid: Grid) -> Features:
        """What `embed` gave, or something else in place of some of it -> all that follows."""
        raise NotImplementedError


# The number of a block (0 = the first) and the tokens (B, N, D) that reach it -> the tokens that it gets, and what is
# added to the logits of its attention, (B, 1, N, N) or nothing.
Before = Callable[[int, Tensor], tuple[Tensor, Tensor | None]]


class TokenEncoder(PatchEncoder):
    """A plain transformer: MAE drops tokens between embedding and encoding, and BEiT replaces them."""

    grid: Grid
    blocks: nn.ModuleList
    tokens_overlap: bool  # whether a token, before the blocks, has seen more of the picture than its own cell

    def encode(
        self,
        tokens: Tensor,
        grid: Grid,
        at: Tensor | None = None,
        depths: Sequence[int] = (),
        before: Before | None = None,
    ) -> Encoded:
        """Add prefix tokens and positions, and run the blocks. Positions of another grid than the encoder's own are
        interpolated.

        at: (B, n) int64, the grid cell each token sits on, different for every sample; None: all, in order.
        depths: the blocks whose outputs are wanted besides the last (1 = the first).
        before: what is done before each block. Tokens may join there, behind all others.
        """
        raise NotImplementedError

    def normed(self, tokens: Tensor) -> Tensor:
        """The final norm of tokens that some block returned."""
        raise NotImplementedError

    def pooled(self, encoded: Encoded) -> Tensor:
        """(B, D): what these tokens say of the picture as a whole."""
        raise NotImplementedError

    @property
    def parts(self) -> Grid:
        return self.grid

    def pooled_windows(self, images: Tensor, at: Tensor) -> Tensor:
        self.check(images)
        tokens, grid = self.embed(images)
        cells = at.expand(len(images), *at.shape).flatten(0, 1)  # (B W, n)
        encoded = self.encode(tokens[:, at].flatten(0, 1), grid, at=cells)
        return self.pooled(encoded).unflatten(0, (len(images), len(at)))  # type: ignore[no-any-return, no-untyped-call]


def run(block: nn.Module, *inputs: object, checkpointing: bool) -> Tensor:
    """A block's output; with `checkpointing`, its inner activations are computed again on the way back."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
    return block(*inputs)  # type: ignore[no-any-return]
