"""Convert a model from any format to any other; the result is opened like its users do and compared."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous import platforms
from vitreous.conversion.agreement import ROUNDING, Agreement, agree
from vitreous.conversion.verify import verify
from vitreous.errors import UserError
from vitreous.jobs.checkpoints import is_checkpoint, model_at
from vitreous.jobs.matching import calibrated
from vitreous.models import ViTSettings
from vitreous.models.vit import as_vit
from vitreous.prediction.naming import TEMPLATES
from vitreous.prediction.zero_shot import zero_shot
from vitreous.tasks import ImageTextSettings
from vitreous.training.devices import World
from vitreous.weights import formats
from vitreous.weights.carrying import Carried, carry, model_difference, preprocessing_in_words, takers
from vitreous.weights.describe import describe
from vitreous.weights.timm import TABLE, TOKENS
from vitreous.weights.trained import Trained
from vitreous.weights.writing import notes_path, put_in_place, refuse_name, write_weights


def convert(
    where: str,
    out: str | Path,
    to: str = "vitreous",
    picture_px: int | tuple[int, int] | None = None,
    patch: int | None = None,
    *,
    heads: int | None = None,
    classes: Sequence[str] | None = None,
    templates: Sequence[str] = TEMPLATES,
    labelled: str | None = None,
    approximate: bool = False,
    verified: bool = False,
    pictures: Sequence[str | Path] = (),
) -> str:
    """Write the model at `where` to `out` in the format `to`. Returns what was done, in a line, or in several.

    With `classes`, a model of pictures and words becomes a classifier of these names, in sentences by `templates`,
    calibrated on `labelled` pictures of these classes.

    What the format cannot store is folded into the weights, refused, or named in a note beside the result. The result
    is opened by the library that it is for, if that is installed, and its outputs are compared with the source's, on
    two generated pictures and on `pictures`. Unless it may be `approximate`, a difference beyond rounding is an error,
    and nothing is left at `out`. With `verified`, both sides are also compared with their own libraries.
    """
    target = Path(out)
    chosen = None if to == "vitreous" else formats.named(to)
    _check_place(target, to, chosen)
    trained = _opened(where, picture_px, patch, heads, verified)
    if classes is not None:
        trained = zero_shot(trained, classes, templates)
        trained = trained if labelled is None else calibrated(trained, labelled, World.join("cpu"))
    carried = None if chosen is None else _carried(trained, chosen, approximate)
    lines = _verified_source(trained, pictures, picture_px, heads) if verified else []
    with put_in_place(target) as place:
        if carried is None:
            trained.save(place)
            _read_back(trained, place)
            unused = "the pictures were ignored: they are only for --verify and conversions to other formats"
            notes, compared = [unused] if pictures and not lines else [], ""
        else:
            notes = _write(trained, carried, place)
            again = _read_back(replace(trained, card=carried.card, weights=carried.weights), place)
            found = agree(trained, carried, again, place, pictures=pictures, exact=verified)
            notes += _judged(found, trained, to, approximate)
            if verified:
                lines += [str(verify(place, pictures, _told(trained))).replace(str(place), str(out)), str(found)]
            if notes:
                _write_notes(place, notes, trained, carried)
            compared = f"; outputs computed by {found.reader} differ by at most {found.largest:.1e}"
    assumed = [] if trained.report is None or verified else trained.report.assumed
    lines += [f"note: {note}" for note in (*assumed, *notes)]
    lines += [f"Notes saved to {notes_path(target)}"] * bool(notes and carried)
    done = f"{describe(trained.card)}: {where} ({trained.format}) -> {out} ({to}), read back bit for bit{compared}"
    return "\n".join([*lines, done])


def _opened(
    where: str, picture_px: int | tuple[int, int] | None, patch: int | None, heads: int | None, verified: bool
) -> Trained:
    if not is_checkpoint(Path(where)):
        return Trained.load(where, picture_px=picture_px, patch=patch, heads=heads)
    if verified or picture_px or patch:
        raise UserError(f"{where}: a checkpoint of a run; convert it to vitreous first, then convert the result")
    return model_at(Path(where))


def _check_place(target: Path, to: str, chosen: formats.Format | None) -> None:
    refuse_name(target, to, None if chosen is None else chosen.container)
    for path in (target, notes_path(target)):
        if path.exists():
            raise UserError(f"{path}: already exists; choose another place, or remove it first")


def _verified_source(
    trained: Trained, pictures: Sequence[str | Path], picture_px: int | tuple[int, int] | None, heads: int | None
) -> list[str]:
    if trained.format == "vitreous":
        return []
    resized = trained.report is not None and bool(trained.report.reshaped)
    return [str(verify(trained.where, pictures, None if resized else picture_px, heads=heads))]


def _carried(trained: Trained, chosen: formats.Format, approximate: bool) -> Carried:
    card = trained.card
    try:
        carried = carry(card, trained.weights, chosen, approximate)
    except UserError as error:
        raise UserError(f"{trained.where}: {error} {_way_out(trained)}") from None
    model_px, input_px = card.model.picture_px, card.preprocessing.size_px
    if chosen.card(carried.given, model_px).preprocessing.size_px != input_px:
        raise UserError(
            f"{trained.where}: its position embeddings are for pictures of {_sides(model_px)} px, its preprocessing "
            f"produces {_sides(input_px)}, and {chosen.name} stores one size for both: add --picture-px "
            f"{_sides(input_px)} (or {_sides(model_px)})"
        )
    return carried


def _way_out(trained: Trained) -> str:
    others = takers(trained.card, trained.weights)
    return f"(formats that can hold it: {', '.join(['vitreous', *others[:6]])})"


def _sides(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


# ---- The result


def _write(trained: Trained, carried: Carried, place: Path) -> list[str]:
    """Returns what could not be written, one line each."""
    write_weights(carried.given, place, carried.format.container)
    notes = [*carried.notes, *_write_tokenizer(trained, carried.format, place)]
    if place.is_file() and carried.given.documents:
        names = " and no ".join(carried.given.documents)
        notes.append(f"a single file has no {names}: see the end of the notes")
    return notes


def _read_back(written: Trained, place: Path) -> Trained:
    again = Trained.load(place, picture_px=_told(written))
    difference = model_difference(written.card.model, again.card.model)
    if difference is not None:
        raise UserError(
            f"{place}: this format cannot store a model whose {difference} is "
            f"{'this' if difference == 'kind' else written.card.model.value(difference)!r} {_way_out(written)}"
        )
    compare(written, again)
    return again


def _told(trained: Trained) -> tuple[int, int] | None:
    """The picture size, which some files do not contain: for positions that are not square, and for ResNets."""
    height, width = trained.card.model.picture_px
    return None if height == width and isinstance(trained.card.model, ViTSettings) else (height, width)


def _write_tokenizer(trained: Trained, format: formats.Format, place: Path) -> tuple[str, ...]:
    """The tokenizer of a text tower, beside the weights. Returns what it loses, one line each."""
    if trained.words is None or not isinstance(trained.card.task, ImageTextSettings):
        return ()
    if not place.is_dir():
        return ("a single file has no tokenizer: write a folder to have it beside the weights",)
    files, notes = format.token_files(trained.tokenizer())
    for name, data in files.items():
        (place / name).write_bytes(data)
        platforms.sync(place / name)
    return notes


def _judged(found: Agreement, trained: Trained, to: str, approximate: bool) -> list[str]:
    if found.is_rounding:
        return []
    words = f"outputs computed by {found.reader} differ from the source's by {found.largest:.1e} (max|a-b| / max|b|)"
    if approximate:
        return [words]
    raise UserError(
        f"{trained.where}: {to} would make a different model: {words}, where rounding accounts for {ROUNDING:g} at "
        "most; --approximate writes it anyway"
    )


def _write_notes(place: Path, notes: Sequence[str], trained: Trained, carried: Carried) -> None:
    names = [f"{number} {name}" for number, name in enumerate(trained.card.classes)]
    text = [f"{describe(trained.card)}, converted from {trained.where} ({trained.format}) by Vitreous.", ""]
    text += [f"- {note}" for note in notes]
    text += ["", f"Pictures: {preprocessing_in_words(carried.card.preprocessing)}"]
    text += ["", "The classes, by output number:", *names] if names else []
    for name, document in carried.given.documents.items():
        text += ["", f"{name}:", json.dumps(document, indent=2)] if place.is_file() else []  # a folder holds it
    notes_path(place).write_text("\n".join(text) + "\n", encoding="utf-8")


def compare(first: Trained, second: Trained) -> None:
    """Checks that two models are the same to the last bit; an error names the tensor that differs."""
    # What a format's models contain and we do not use may be left out.
    names = sorted(n for n in first.weights.keys() ^ second.weights.keys() if not n.startswith("extra."))
    if names:
        raise UserError(f"{second.where}: {names[0]} was lost or added when writing ({len(names)} tensors in all)")
    before, after = first.weights, second.weights
    if TABLE in before and not torch.equal(before[TABLE], after[TABLE]):
        before, after = _placed(first), _placed(second)  # some formats have no position for the class token
    for name, value in before.items():
        if name in after and not torch.equal(value, after[name]):
            raise UserError(f"{second.where}: {name} is not what was written")


def _placed(trained: Trained) -> dict[str, Tensor]:
    """With the positions of the prefix tokens added to the tokens."""
    tokens, table = trained.weights[TOKENS].clone(), trained.weights[TABLE].clone()
    num = as_vit(trained.card.model, f"{trained.where}: position embeddings in a model that is not a ViT").num_prefix
    tokens[:num] += table[:num]
    table[:num] = 0
    return {**trained.weights, TOKENS: tokens, TABLE: table}
