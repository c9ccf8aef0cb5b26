"""What is to be measured on one GPU, the most wanted first: the table of benchmarks/on_gpu.py."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    name: str
    page: str  # below docs/results: what its answer is for
    seconds: float  # expected on an H200, compiling included; of all in its group, side by side
    answers: str
    command: str  # a script of benchmarks/, `vitreous`, or `tests` and folders of tests
    tiny: str = ""  # added to the command, to try it
    data: tuple[str, ...] = ()  # sets in the folder that VITREOUS_DATA names
    group: str = ""  # run side by side, or in several processes: how long they take is not what is measured
    goes_on: bool = False  # the same command goes on where it was stopped
    after: str = ""  # the entry whose results it takes
    ending: str = ".json"  # of its results

    @property
    def is_shared(self) -> bool:
        """Whether the GPU is shared by MPS. Not by tests: a fault in one ends all that it serves."""
        return bool(self.group) and not self.command.startswith("tests")


# Of data that a command names, what stands in for it where a command is only tried.
STAND_INS = {
    "bccd": "rendered:objects",
    "voc": "rendered:objects",
    "voc_seg": "rendered:segment",
    "flickr8k": "rendered:captions",
}
SHORT = "--training.compile false --training.workers 0 --training.batch_size 2 --data.train_limit 16"
FASHION = "--training.compile false --training.batch_size 16 --data.where fashion --data.train_limit 64"
ONCE = "--tiny --eager --rounds 1 --times 1"
PLAIN = f"{ONCE} --variants ours theirs_eager"
CIFAR10 = {"data": ("cifar10",), "goes_on": True}


def training(  # noqa: PLR0917 - a row of the table
    name: str, page: str, seconds: float, answers: str, words: str, tiny: str = "", **more: Any
) -> Entry:
    tiny = f"--training.steps 2 --training.precision fp32 --training.evaluate_every_epochs 0 {SHORT} {tiny}"
    return Entry(name, page, seconds, answers, f"vitreous train {words}", tiny, goes_on=True, **more)


# fmt: off
FIRST = (
    training("rendered_masks", "segmentation", 240, "AP of masks >= 0.85 in 5 minutes",
             "rendered_mask2former --gpu true", "--px 64"),
    Entry("mask_step", "speed", 90, "Mask2Former against transformers: 2; now without cuDNN's attention",
          "mask_step.py --predict --variants ours theirs_eager", PLAIN),
)
SMALL_SETS = (
    Entry("cells", "detection", 345, "AP and AP50 after 5 minutes", "vitreous fit {bccd} --minutes 5", "--minutes 0.3",
          data=("bccd",), group="small sets"),
    Entry("cells_scratch", "detection", 345, "the same, from random weights",
          "vitreous fit {bccd} --minutes 5 --from none", "--minutes 0.3", data=("bccd",), group="small sets"),
    training("coco_small", "segmentation", 345, "masks learned by heart: AP > 0.9", "coco_small_instances",
             "--px 64 --gpu false --data.where rendered:objects", data=("coco_small",), group="small sets"),
    *(training(f"camvid_{kind}", "segmentation", 345, "mIoU beside Segmenter's 53.5 %", f"camvid_{kind}",
               "--data.where rendered:segment --model.picture_px 64,64", data=("camvid",), group="small sets")
      for kind in ("mask2former", "eomt")),
)
DOES_IT_WORK = (
    Entry("tests_nn", "speed", 200, "kernels and graphs are right", "tests nn", group="tests"),
    Entry("tests_training", "speed", 200, "steps as graphs, in one pass", "tests training data", group="tests"),
    Entry("tests_tasks", "detection", 200, "detectors and masks learn in one graph", "tests tasks", group="tests"),
    Entry("tests_after", "after_training", 200, "export and serving on a GPU", "tests export serve", group="tests"),
)
FAMILIES = (
    # Three processes on one study: each takes cells that no other has, and compiles while another trains.
    *(Entry(f"scaling_{number}", "studies", 400, "accuracy against FLOP of five families, two seeds",
            "studies.py scaling --lengths 300,900,2700 --seeds 2 --models vit-s,hybrid-s,resnet-s,swin-s,convnext-s "
            "--transfer '' --transfer-steps 0 --minutes 60 --runs {runs}/studies",
            "--data fashion --lengths 2 --seeds 1 --models vit-t --batch_size 16 --compile false", ending="",
            group="families", **CIFAR10)
      for number in (1, 2, 3)),
    # One after the other, so that where time is short the first are whole; cifar10.md has the ViT and the hybrid.
    Entry("families", "cifar10", 1300, "three more families, each with all of cifar10_vit's FLOP",
          "families.py --families swin convnext resnet --runs {runs}/families",
          f"--families vit swin --epochs-scale 1e-5 {FASHION}", ending=".jsonl", group="families", **CIFAR10),
    Entry("simmim", "unlabelled", 240, "SimMIM: probes, and fine-tuned",
          "unlabelled.py --methods simmim --seconds 80 --finetune-epochs 20 --runs {runs}/unlabelled",
          f"--seconds 0.1 --measure-s 0.1 --finetune-epochs 0.5 {FASHION} --data.train_limit 160", **CIFAR10),
)
HOW_FAST = (
    Entry("step_kernels", "speed", 80, "nn/kernels: PAY, and the sizes of blocks",
          "step_kernels.py --choices", "--tiny"),
    Entry("levers", "speed", 400, "nn/kernels: PAY, by what each gives to a step of ViT-B/16",
          "train_step.py --levers --rounds 4 --seconds 360", f"{ONCE} --seconds 20"),
    Entry("train_step", "speed", 430, "against timm, with the levers that gain: 1.25 at 256, 1.8 at 32",
          "train_step.py --chosen {out}/levers.json --models vit_b16 vit_s16 --batch-size 256 32 --seconds 1e9",
          f"{ONCE} --models vit_s16 --batch-size 2", goes_on=True, after="levers"),
    Entry("detr_large", "speed", 260, "DETR at batch 32: a step 1.3, predictions 1.5; nn/kernels: PAY of pointwise",
          "detr_step.py --models detr --train 32 --predict 32 --rounds 3 "
          "--variants ours ours_fused theirs_eager theirs_compiled", PLAIN),
    Entry("inference", "speed_gpu", 170, "predictions against timm: 1.2 at 256, 2 at 1; what 8 bits give",
          "inference.py --models vit_b16 --batch-sizes 256 1 --fp8", "--tiny --eager --rounds 1 --batch-sizes 2"),
    Entry("objective_steps", "speed", 200, "MAE, SimCLR, DINO against plain ones: 1.3", "objective_steps.py", ONCE),
    Entry("pipeline", "speed_gpu", 330, "B/16 from files: 97 % of synthetic",
          "pipeline.py --models vit_b16 --workers 15 --pictures 2048 --steps 100", "--tiny --workers 1"),
    Entry("growth", "speed_gpu", 300, "time and memory up to 16,384 tokens",
          "growth.py --seconds 0.3", "--small --seconds 0.01 --sweeps batch", ending=""),
    Entry("fp8_cost", "speed_gpu", 100, "8 bits lose at most 0.1 points",
          "inference.py --models vit_s16 --batch-sizes 1 --rounds 1 --eager --probe fashion", "--tiny --probe"),
    Entry("step_profile", "speed", 90, "where a step of MAE on small pictures spends its time",
          "step_profile.py cifar10_mae cifar10_vit", FASHION, data=("cifar10",)),
    Entry("train_step_rest", "speed", 1200, "L/16, and batches of 8 to 64",
          "train_step.py --chosen {out}/levers.json --seconds 1e9",
          f"{ONCE} --models vit_l16 --batch-size 2", goes_on=True, after="levers"),
    Entry("inference_rest", "speed_gpu", 400, "the same for S/16, L/16, and batches of 8 and 32",
          "inference.py --models vit_s16 vit_l16 --batch-sizes 256 1 32", "--tiny --eager --rounds 1 --batch-sizes 2"),
    Entry("pipeline_rest", "speed_gpu", 280, "the same for L/16 and MAE",
          "pipeline.py --models vit_l16 mae_b16 --augmentations plain --workers 15 --pictures 2048 --steps 60",
          "--tiny --workers 1"),
    Entry("autotune", "speed_gpu", 260, "whether max-autotune gives 5 % more",
          "inference.py --models vit_b16 --batch-sizes 256 1 --autotune", "--tiny --eager --rounds 1 --batch-sizes 2"),
)
RECORDS = (
    Entry("speedrun", "cifar10", 400, "which lengths reach 90, 94, 95, 96 % of held-out pictures",
          "speedrun.py --choose --epochs 15 30 45 60 90", f"--epochs 0.5 {FASHION}", **CIFAR10),
    *(Entry(f"cifar10_{number}", "cifar10", 580, "what gains on held-out pictures, at 0.3 of the length",
            f"cifar10.py --choose --scale 0.3 --runs {{runs}}/cifar10 --experiments {names}",
            f"--scale 0.005 {FASHION}", group="cifar10", **CIFAR10)
      for number, names in enumerate(("vit vit-layers vit-smooth-0", "vit-end-48 vit-end",
                                      "hybrid hybrid-end hybrid-end-48", "vit-48"), start=1)),
    *(Entry(f"noisy_{row}", "cifar10", 520, f"Noisy Student, 4,000 labels: {row}",
            f"noisy_student.py --steps 10000 --runs {{runs}}/noisy --rows {row}",
            f"--steps 2 --rounds 1 --simclr-steps 2 --confidence 0 {FASHION}", group="noisy", **CIFAR10)
      for row in ("rounds", "labels-long", "simclr", "all-labels")),
)
LARGER_SETS = (
    Entry("voc", "detection", 540, "VOC2007's test after 7 minutes on VOC2012",
          "voc.py {voc} --minutes 7 --px 256 --run {runs}/voc", f"--minutes 0.1 --px 64 {SHORT}", data=("voc",)),
    *(training(f"voc_{kind}", "segmentation", 550, "mIoU on the same encoder and budget",
               f"voc_{kind} --data {{voc_seg}}", "--px 64", data=("voc_seg",), group="voc_seg")
      for kind in ("segmenter", "eomt", "mask2former")),
    training("voc_swin", "segmentation", 550, "mIoU of Mask2Former on Swin-T from random weights",
             "voc_mask2former --data {voc_seg} --start none --model swin_t", "--px 64", data=("voc_seg",),
             group="voc_seg"),
)
MEASURED = (  # at commit 71f5535; transformers' forms are not compiled within minutes
    training("rendered_detr", "detection", 240, "AP >= 0.9 in 3 minutes", "rendered_detr --gpu true",
             group="rendered"),
    Entry("rendered_clip", "words", 150, "recall@1 >= 95 %, and of what never met",
          "words.py --runs rendered --folder {runs}/words", "--steps 2", group="rendered", goes_on=True),
    Entry("flickr8k", "words", 190, "recall both ways from four starts; CIFAR-10 by its names",
          "words.py --runs lit clip siglip scratch --at_once --data {flickr8k} --folder {runs}/words", "--steps 2",
          data=("flickr8k",), group="words", goes_on=True),
    Entry("detr_step", "speed", 70, "Deformable DETR against transformers: a step 2, a prediction 1.5",
          "detr_step.py --models deformable --train 8 --predict 1 --variants ours theirs_eager", PLAIN),
    Entry("clip_step", "speed", 150, "CLIP against open_clip: 1.2, texts 0.9", "clip_step.py", PLAIN),
)
# fmt: on
ENTRIES = (
    *(*FIRST, *SMALL_SETS, *DOES_IT_WORK, *HOW_FAST),
    *(*FAMILIES, *RECORDS, *LARGER_SETS, *MEASURED),
)
