import torch

from vitreous.nn.boxes import centred, corners, generalised_iou


def test_corners_and_back():
    boxes = torch.rand(5, 3, 4)
    torch.testing.assert_close(centred(corners(boxes)), boxes)


def test_generalised_iou_by_hand():
    a = torch.tensor([0.0, 0.0, 2.0, 2.0])
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [4.0, 0.0, 6.0, 2.0]])
    torch.testing.assert_close(generalised_iou(a, others), torch.tensor([1.0, 2 / 6, -4 / 12]))


def test_boxes_of_no_area_have_finite_gradients():
    boxes = torch.zeros(2, 4, requires_grad=True)
    generalised_iou(boxes, torch.zeros(2, 4)).sum().backward()
    assert boxes.grad.isfinite().all()
