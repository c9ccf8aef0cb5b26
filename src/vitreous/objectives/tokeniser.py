"""Learning visual words: a discrete VAE (van den Oord et al. 2017; Ramesh et al. 2021, section 2.1 and appendix A.2).

A picture becomes a grid of words, from which a decoder has to draw it. Choosing a word has no gradient, so each cell
holds a mixture of all words, drawn by the Gumbel-softmax relaxation (Jang et al. 2016; Maddison et al. 2016), which
turns into a choice as its temperature falls. Two things are simpler than in Ramesh et al.: the error is the mean square
of the normalised pixels, not a logit-Laplace likelihood, and the schedules are shares of the run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.models.tokeniser import ResidualLayer, Tokeniser, convolution
from vitreous.nn.gather import mean_over_ranks
from vitreous.objectives.base import Objective
from vitreous.objectives.momentum import ramp

LEAST_WORDS = 2.0  # words in use, below which the codes say next to nothing


@dataclass(frozen=True, kw_only=True)
class VisualTokensSettings:
    """A discrete VAE around a Tokeniser."""

    temperature: float = 1.0  # of the relaxation, at the start
    final_temperature: float = 1 / 16  # at the end; close to choosing one word
    anneal: float = 0.75  # share of the run over which the temperature falls, along half a cosine
    kl_weight: float = 1e-2  # of the KL divergence from each cell's words to a uniform distribution, in nats per cell
    kl_ramp: float = 0.1  # share of the run over which that weight rises from 0, along half a cosine
    decoder_width: int = 256  # of the decoder's map with one position per cell; half of it on each finer map
    decoder_blocks: int = 2  # residual layers of the decoder at each size of the map

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "VisualTokens":
        if not isinstance(encoder, Tokeniser):
            raise UserError("VisualTokens trains a tokeniser: set --model.kind Tokeniser")
        if not 0 < self.final_temperature <= self.temperature:
            raise UserError(
                f"temperature {self.temperature:g}, final_temperature {self.final_temperature:g}: both must be above "
                "0, and the final one not higher"
            )
        for name in ("anneal", "kl_ramp"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}: it is a share of the run, above 0 and at most 1")
        if self.kl_weight < 0:
            raise UserError(f"kl_weight is {self.kl_weight}: it must not be negative")
        if self.decoder_width < encoder.stride or self.decoder_width % encoder.stride or self.decoder_blocks < 0:
            raise UserError(
                f"decoder_width {self.decoder_width}, decoder_blocks {self.decoder_blocks}: the width must be a "
                f"multiple of the stride, {encoder.stride}, and the blocks not negative"
            )
        return VisualTokens(encoder, Decoder(encoder, self.decoder_width, self.decoder_blocks), self)


class Decoder(nn.Module):
    """From the shares of the words in each cell (B, V, h, w) to a picture."""

    def __init__(self, tokeniser: Tokeniser, width: int, blocks: int) -> None:
        super().__init__()
        # The vectors of the words; a 1x1 convolution, which helps the relaxation (Ramesh et al. 2021, section 2.1).
        self.words = nn.Linear(tokeniser.vocabulary, width, bias=False)
        # Of the many inputs of this layer, one word, only one is on.
        nn.init.normal_(self.words.weight)
        layers: list[nn.Module] = [ResidualLayer(width) for _ in range(blocks)]
        stride = tokeniser.stride
        while stride > 1:
            layers += [nn.Upsample(scale_factor=2, mode="nearest"), convolution(width, width // 2)]
            stride, width = stride // 2, width // 2
            layers += [ResidualLayer(width) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), convolution(width, tokeniser.channels, kernel=1))

    def forward(self, shares: Tensor) -> Tensor:
        cells = self.words(shares.permute(0, 2, 3, 1))  # (B, h, w, D)
        return self.layers(cells.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


class VisualTokens(Objective):
    """Minimises the error of the drawn picture, and the KL divergence of each cell's words from a uniform
    distribution."""

    def __init__(self, encoder: Tokeniser, decoder: Decoder, settings: VisualTokensSettings) -> None:
        super().__init__()
        self.encoder: Tokeniser = encoder
        self.decoder = decoder
        self.settings = settings

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        s = self.settings
        logits = self.encoder(batch.images).maps[-1].float()  # (B, V, h, w)
        temperature = ramp(s.temperature, s.final_temperature, (progress / s.anneal).clamp(max=1.0))
        drawn = ((logits + gumbel(batch.keys, logits)) / temperature).softmax(dim=1)
        error = F.mse_loss(self.decoder(drawn).float(), batch.images.float())
        # Summed over the words: for a cell sure of its word it is log(V).
        shares = logits.log_softmax(dim=1)
        kl = (shares.exp() * shares).sum(dim=1).mean() + math.log(logits.shape[1])
        weight = ramp(0.0, s.kl_weight, (progress / s.kl_ramp).clamp(max=1.0))
        words = perplexity(logits.argmax(dim=1), logits.shape[1])
        return {"loss": error + weight * kl, "error": error.detach(), "kl": kl.detach(), "words": words}

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        return too_few_words(
            numbers,
            "too high a learning rate (--optimizer.lr), too large a weight of the KL (--objective.kl_weight), or a "
            "temperature that falls too soon (--objective.anneal)",
        )

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The codes (B, h, w) of normalised pictures, one word per cell, and what the decoder draws from them."""
        codes = self.encoder(images).maps[-1].argmax(dim=1)
        chosen = F.one_hot(codes, self.encoder.vocabulary).permute(0, 3, 1, 2).to(images.dtype)
        return codes, self.decoder(chosen)


def gumbel(keys: Tensor, like: Tensor) -> Tensor:
    """Standard Gumbel noise for every sample of `like` (B, ...): -log of an exponential variable."""
    draws = K.uniform(keys, "gumbel", like[0].numel()).view_as(like)
    return -(-torch.log1p(-draws)).clamp(min=2.0**-25).log()  # a draw of 0 stays finite


@torch.no_grad()
def perplexity(codes: Tensor, vocabulary: int) -> Tensor:
    """The effective number of words that the codes of a batch use: the exponential of their entropy."""
    flat = codes.flatten()
    counts = torch.zeros(vocabulary, device=codes.device).scatter_add_(
        0, flat, torch.ones_like(flat, dtype=torch.float)
    )
    shares = mean_over_ranks(counts / len(flat))
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy.exp()


def too_few_words(numbers: Mapping[str, float], causes: str) -> str | None:
    """What to tell the user if almost all cells get the same word."""
    words = numbers.get("words", float("inf"))
    if words >= LEAST_WORDS:
        return None
    return f"the visual words are collapsing: the codes use only {words:.1f} of them. Usual causes: {causes}"
