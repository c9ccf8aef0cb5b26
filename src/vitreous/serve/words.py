"""The text tower of a served model: it turns names into directions that a picture is compared with."""

import base64
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.inspection.windows import embedded_places
from vitreous.prediction.naming import sentences
from vitreous.prediction.zero_shot import TEXTS
from vitreous.tasks.image_text import ImageText
from vitreous.words.tokenizer import Tokenizer

KEPT = 4096  # texts whose embeddings are kept: the page sends all names again with every letter typed


class Words:
    def __init__(self, towers: ImageText, tokenizer: Tokenizer, device: torch.device) -> None:
        self.towers, self.tokenizer, self.device = towers, tokenizer, device
        self.known: OrderedDict[str, Tensor] = OrderedDict()
        self.turn = threading.Lock()  # lanes share the known texts

    def texts(self, texts: Sequence[str]) -> Tensor:
        """(n, D), normalised to length 1."""
        with self.turn:
            new = [text for text in dict.fromkeys(texts) if text not in self.known]
            if new:
                ids = torch.from_numpy(self.tokenizer(new)).to(self.device)
                found = [self.towers.embed_texts(some) for some in torch.split(ids, TEXTS)]
                self.known.update(zip(new, torch.cat(found), strict=True))
            rows = torch.stack([self.known[text] for text in texts])
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
        return rows

    def names(self, names: Sequence[str], templates: Sequence[str]) -> Tensor:
        """(n, D): for each name, the mean direction of its sentences."""
        found = self.texts([text for name in names for text in sentences(name, templates)])
        return F.normalize(found.view(len(names), len(templates), -1).mean(dim=1), dim=1)

    def places(self, images: Tensor) -> Tensor | None:
        """(B, h, w, D), or None if the model cannot leave out a part of a picture."""
        return embedded_places(self.towers.encoder, self.towers.projection, images)

    def said(self, picture: Tensor, places: Tensor | None, options: dict[str, Any]) -> dict[str, Any]:
        """Probability and similarity of each name, most likely first, for a picture (D,) and its places (h, w, D) if
        these are given."""
        names: list[str] = options["classes"]
        directions = self.names(names, options["templates"])
        alike = directions @ picture
        logits = self.towers.log_scale.exp() * alike
        columns = {"probability": logits.softmax(dim=0), "similarity": alike}
        if self.towers.bias is not None:  # trained on each pair by itself
            columns["match"] = (logits + self.towers.bias).sigmoid()
        order = alike.argsort(descending=True).tolist()
        found: dict[str, Any] = {
            "label": names[order[0]],
            "top": [
                {"label": names[row]} | {name: float(values[row]) for name, values in columns.items()} for row in order
            ],
        }
        if len(names) == 1:  # its share among itself is 1, whatever the picture
            found["label"] = found["top"][0]["probability"] = None
        if places is not None:
            levels = places @ directions.T  # (h, w, n)
            least, most = float(levels.min()), float(levels.max())
            levels = ((levels - least) / max(most - least, 1e-6) * 255).round().to(torch.uint8).cpu()
            for each, row in zip(found["top"], order, strict=True):
                each["places"] = base64.b64encode(levels[..., row].contiguous().numpy().tobytes()).decode()
            found["places"] = {"rows": levels.shape[0], "columns": levels.shape[1], "least": least, "most": most}
        return found
