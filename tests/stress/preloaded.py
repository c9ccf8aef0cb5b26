"""All that a command imports, imported once: what is forked from this process starts at once."""

import contextlib

import torch._dynamo  # by every optimizer
import torch.distributed.checkpoint.default_planner  # by checkpoints in shares

import vitreous.bulk.job
import vitreous.cli
import vitreous.conversion.convert
import vitreous.export.job
import vitreous.export.onnx_file
import vitreous.fitting.fit
import vitreous.jobs.teach
import vitreous.jobs.train
import vitreous.search.index
import vitreous.studies.study  # noqa: F401

with contextlib.suppress(ImportError):
    import torch.utils.tensorboard  # noqa: F401
