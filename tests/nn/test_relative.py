"""Tables of relative positions: which row a pair has, and what resizing keeps."""

import pytest
import torch

from vitreous.nn.relative import BiasTable, RelativePositions


def test_rows_of_a_bias_table_by_hand():
    table = BiasTable((2, 3), 4)
    assert table.table.shape == (3 * 5 + 3, 4)
    index = table.pairs(2, torch.arange(6))
    assert index.shape == (8, 8)
    for query in range(8):
        for key in range(8):
            if query < 2 or key < 2:
                expected = 17 if query < 2 and key < 2 else 15 if query < 2 else 16
            else:
                (y, x), (other_y, other_x) = divmod(query - 2, 3), divmod(key - 2, 3)
                expected = (y - other_y + 1) * 5 + (x - other_x + 2)
            assert index[query, key] == expected


def test_rows_of_embedded_offsets_by_hand():
    # Two tokens before the cells: cell 2 is the fifth of six tokens, cell 0 the third. Offset 0 is row 5.
    index = RelativePositions(2 + 4, 4).pairs(2, torch.tensor([2, 0]))
    assert index.tolist() == [[5, 4, 1, 3], [6, 5, 2, 4], [9, 8, 5, 7], [7, 6, 3, 5]]


@pytest.mark.parametrize("table", [BiasTable((2, 3), 4), RelativePositions(2 + 6, 4)], ids=["bias", "relative"])
def test_tokens_keep_their_rows_when_others_are_dropped(table):
    whole = table.pairs(2, torch.arange(6))
    cells = torch.tensor([[4, 0, 3], [1, 5, 2]])
    some = table.pairs(2, cells)
    assert some.shape == (2, 5, 5)
    for sample in range(2):
        places = torch.cat([torch.arange(2), cells[sample] + 2])
        assert torch.equal(some[sample], whole[places][:, places])


def test_without_a_prefix():
    assert BiasTable((2, 2), 1).pairs(0, torch.arange(4)).shape == (4, 4)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "zoom"])
def test_resizing_a_bias_table(mode):
    """A bias that grows evenly with the offset still does, the centre stays the centre, the special rows stay."""
    table = BiasTable((3, 4), 2)
    down, right = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-3.0, 4), indexing="ij")
    offsets = torch.stack([down, right], dim=-1).flatten(0, 1)
    special = torch.randn(3, 2)
    with torch.no_grad():
        table.table.copy_(torch.cat([offsets, special]))
    table.table.requires_grad_(False)
    table.resize(1, (5, 3), mode)
    assert table.grid == (5, 3) and table.table.shape == (9 * 5 + 3, 2) and not table.table.requires_grad
    assert torch.equal(table.table[-3:], special)
    grid = table.table[:-3].reshape(9, 5, 2)
    torch.testing.assert_close(grid[4, 2], torch.zeros(2))
    torch.testing.assert_close(grid, -grid.flip(0, 1))


def test_biases_are_laid_out_for_the_fused_kernels():
    table = BiasTable((2, 2), 3)
    queries = torch.randn(2, 3, 5, 4)
    for cells in (torch.arange(4), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])):
        assert table(queries, table.pairs(1, cells)).stride(-1) == 1
