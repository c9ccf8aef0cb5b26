"""Detection keeps what every objective promises: the loss falls, resuming is exact, a step is one graph."""

from dataclasses import replace

import torch
from safetensors.torch import save_file

from promises import keep_promises
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes.detect import coco_detr, rendered_detr
from vitreous.tasks.detect import DetectSettings
from vitreous.training.run import RunDirectory
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained


def test_promises(tmp_path):
    recipe = rendered_detr()
    small = replace(
        recipe,
        data=replace(recipe.data, train_limit=40, val_fraction=0.2),
        model=ViTSettings(picture_px=(32, 32), patch=8, width=24, depth=1, heads=2, pool="mean", num_prefix=0),
        start=None,
        objective=DetectSettings(
            queries=6,
            width=16,
            heads=2,
            mlp_width=24,
            encoder_depth=1,
            decoder_depth=2,
            levels=2,
            points=2,
            dropout=0.0,
        ),
        optimizer=replace(recipe.optimizer, lr=5e-3, layer_decay=1.0),
        training=replace(recipe.training, epochs=1, steps=24, batch_size=8, log_every_steps=8, workers=0),
    )
    rows = keep_promises(small, tmp_path, falls_to=0.9, finetune=False, probe=False)
    assert {"class", "l1", "giou", "auxiliary"} <= rows[0].keys()
    results = RunDirectory(tmp_path / "one").results()
    assert results["headline"] == "AP" and 0 <= results["val"]["AP"] <= 1
    card = Trained.load(tmp_path / "one").card
    assert card.task == small.objective and "disc" in card.classes


def test_a_detector_starts_from_the_resnet_of_torchvision(tmp_path):
    """As the papers' do: what tells ImageNet's classes is left behind, the first levels stay as they are."""
    torch.manual_seed(0)
    peer = imported("torchvision").models.resnet18()
    save_file(peer.state_dict(), tmp_path / "resnet18.safetensors")
    recipe = coco_detr(str(tmp_path / "resnet18.safetensors"), "rendered:objects", model="resnet18", px=64)
    head = replace(recipe.objective, queries=8, width=16, heads=2, mlp_width=16, encoder_depth=1, decoder_depth=1)
    small = replace(
        recipe,
        data=replace(recipe.data, train_limit=16, val_fraction=0.25),
        objective=head,
        training=replace(recipe.training, steps=2, batch_size=4, compile=False, cuda_graph=False, workers=0),
    )
    train(small, tmp_path / "run", read_test=False)
    weights, before = Trained.load(tmp_path / "run").weights, peer.state_dict()
    assert torch.equal(weights["encoder.trunk.levels.1.0.conv1.weight"], before["layer1.0.conv1.weight"])
    assert torch.equal(weights["encoder.trunk.levels.4.1.norm2.bias"], before["layer4.1.bn2.bias"])
    assert not torch.equal(weights["encoder.trunk.levels.4.1.conv2.weight"], before["layer4.1.conv2.weight"])
