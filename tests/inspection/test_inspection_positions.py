import pytest
import torch
import torch.nn.functional as F

from vitreous.errors import UserError
from vitreous.inspection.positions import are_learned, has_biases, offset_biases, position_similarity
from vitreous.models import ViTSettings


def tiny(**changes):
    torch.manual_seed(0)
    settings = {"picture_px": (8, 12), "patch": 4, "width": 8, "depth": 2, "heads": 2, "num_prefix": 2}
    return ViTSettings.of(**settings | changes).build()


@pytest.mark.parametrize("kind", ["learned", "learned-2d", "sincos"])
def test_each_kind_by_its_real_table(kind):
    encoder = tiny(positions=kind)
    found = position_similarity(encoder)
    table = encoder.positions.at_depth(0)[2:].reshape(2, 3, 8)  # without the prefix
    assert found.shape == (2, 3, 2, 3) and are_learned(encoder) == (kind != "sincos")
    torch.testing.assert_close(found[1, 2, 0, 1], F.cosine_similarity(table[1, 2], table[0, 1], dim=0))
    torch.testing.assert_close(found.reshape(6, 6).diagonal(), torch.ones(6))


def test_rows_and_columns_of_learned_2d_share_their_halves():
    encoder = tiny(positions="learned-2d", picture_px=(12, 12))
    encoder.positions.tables[0].rows.data.fill_(0.0)  # only columns are told apart
    found = position_similarity(encoder)
    torch.testing.assert_close(found[0, 1, :, 1], torch.ones(3))
    assert found[0, 1, 0, 2] < 0.99


def test_a_resized_table_and_one_a_layer():
    encoder = tiny(positions_where="every-layer")
    assert not torch.equal(position_similarity(encoder, 1), position_similarity(encoder, 2))
    assert torch.equal(position_similarity(encoder, -1), position_similarity(encoder, 2))
    encoder.resize((16, 12))
    assert position_similarity(encoder).shape == (4, 3, 4, 3)


@pytest.mark.parametrize("kind", ["bias", "bias-shared"])
def test_biases_by_the_place_of_what_is_seen(kind):
    encoder = tiny(positions=kind)
    table = encoder.positions.bias_table if kind == "bias-shared" else encoder.blocks[0].attention.bias_table
    torch.nn.init.normal_(table.table)
    found = offset_biases(encoder)
    assert has_biases(encoder) and found.shape == (2, 3, 5)
    # By the model's own rule: the patch (1, 0) looks at (0, 2), one row up and two columns right.
    pairs = table.pairs(0, torch.arange(6))
    expected = table.table[pairs[3, 2]].detach()
    torch.testing.assert_close(found[:, 1 - 1, 2 + 2], expected)
    with pytest.raises(UserError, match="biases by offset"):
        position_similarity(encoder)


def test_models_that_have_neither():
    with pytest.raises(UserError, match="meet each query"):
        position_similarity(tiny(positions="relative"))
    with pytest.raises(UserError, match="cannot tell its patches apart"):
        position_similarity(tiny(positions="none"))
    with pytest.raises(UserError, match="no table of biases"):
        offset_biases(tiny())
