"""Where a run computes: device, precision and ranks."""

import atexit
import gc
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitreous import platforms
from vitreous.errors import UserError
from vitreous.nn import gather
from vitreous.nn.blocks import Repeated
from vitreous.nn.fp8 import use_8_bits
from vitreous.nn.shards import is_sharded
from vitreous.signals import Stopped

Precision = Literal["auto", "fp32", "bf16", "fp8"]
Compile = Literal["auto"] | bool

LOOK_S = 0.02  # between checks whether all ranks are here
ANSWER_S = 2.0  # to wait for what another rank said at its end
TIMEOUT = "VITREOUS_RANK_TIMEOUT_S"  # the environment variable for how long ranks wait for each other


class LostRankError(UserError):
    """Another rank died, hangs or cannot be reached."""


class AlreadySaidError(LostRankError):
    """Another rank on this host has said why all of them end."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


def rank_timeout_s() -> float:
    """How long a rank waits for another before the run ends everywhere: longer than any step, evaluation or file of one
    rank may take."""
    given = os.environ.get(TIMEOUT, "300")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"{TIMEOUT} is {given!r}: it must be a number of seconds above 0")
    return seconds


# Not all messages of gloo contain its name.
_OF_RANKS = ("gloo", "nccl", "c10d", "caused pair closure", "connection closed by peer", "connection reset by peer")


def is_of_ranks(error: BaseException) -> bool:
    """Whether torch reports that another rank is gone."""
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _OF_RANKS)


@dataclass(frozen=True)
class World:
    """This process among all those that train together. A plain run is a world of one."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: str = "auto") -> Self:
        """Read what `torchrun` set, if anything; 'auto' takes the GPU if there is one. May be called again."""
        rank, size = (0, 1) if gather.is_alone() else _among_ranks()
        place = platforms.device_named(device)
        if place.type == "cuda":
            place = torch.device("cuda", _gpu())
            torch.cuda.set_device(place)
        world = cls(rank, size, place)
        if size > 1:
            world.meet()
        return world

    def meet(self) -> None:
        """Join torch's process group, unless that is done. A single process needs it for sharding only."""
        if dist.is_initialized():
            return
        # This module keeps as a default the group that exists when it is imported. Imported later, as torch.compile
        # does, it would keep the group and its threads alive to the very end, where they sometimes abort the process.
        from torch.distributed.nn import functional  # noqa: F401

        # Messages between hosts go through gloo even on GPUs: they must not wait for the device.
        kind = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=rank_timeout_s())
        with self.together():
            store = self._store(timeout)
            where: dict[str, Any] = {"store": store, "rank": self.rank, "world_size": self.size} if store else {}
            dist.init_process_group(kind, timeout=timeout, **where)
        _Words.store = store if self.size > 1 else None
        atexit.register(_leave)

    def _store(self, timeout: timedelta) -> Any:
        """The store through which ranks find each other; None if torch's own way will do."""
        if self.size == 1:
            return dist.HashStore()  # type: ignore[attr-defined]
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        kept = dist.TCPStore(address, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
        return fresh(kept, self.rank, self.size, timeout)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, torch's error about a lost rank becomes one line; and under torchrun, only the first rank of a host
        that ends says why."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not is_of_ranks(error):
                raise
            # Nothing may wait for the group any more: it could wait for ever.
            atexit.unregister(_leave)
            raise self._lost() from error
        except (UserError, Stopped) as error:
            if self.size > 1 and not isinstance(error, LostRankError) and self._is_said(str(error)):
                raise AlreadySaidError(error.exit_code) from error
            raise

    def _lost(self) -> LostRankError:
        said = _Words.heard()
        if said is None:
            why = (
                f"rank {self.rank} of {self.size} lost another one, which ended or did not answer for "
                f"{rank_timeout_s():g} s ({TIMEOUT}); the same command resumes from the last checkpoint"
            )
            return AlreadySaidError(LostRankError.exit_code) if self._is_said(why) else LostRankError(why)
        if said["host"] == socket.gethostname() or os.environ.get("LOCAL_RANK", "0") != "0":
            return AlreadySaidError(LostRankError.exit_code)
        return LostRankError(f"rank {said['rank']} of {self.size}, on {said['host']}, ended: {said['why']}")

    def _is_said(self, why: str) -> bool:
        """Whether another rank on this host ended before, and said why; otherwise this one has, for the others."""
        first = _Words.said({"rank": self.rank, "host": socket.gethostname(), "why": why})
        return bool(first["rank"] != self.rank and first["host"] == socket.gethostname())

    @property
    def is_first(self) -> bool:
        """The one process that writes files and prints."""
        return self.rank == 0

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean of a few numbers over all ranks. (For gradients, see `ranks`.)"""
        if self.size == 1:
            return numbers
        total = numbers.clone()
        dist.all_reduce(total)
        return total / self.size

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on any rank. Does not wait for the device."""
        if self.size == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised]

    def collect(self, words: str) -> list[str]:
        """The text of every rank, in their order. Does not wait for the device."""
        if self.size == 1:
            return [words]
        said = torch.tensor(list(words.encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor(len(said)))
        room = max(int(length) for length in lengths)
        texts = [torch.zeros(room, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(texts, torch.nn.functional.pad(said, (0, room - len(said))))
        return [bytes(text[: int(length)].tolist()).decode() for text, length in zip(texts, lengths, strict=True)]

    def wait(self) -> None:
        """Wait until every rank is here."""
        self.any(False)


class _Words:
    """Why the first of all ranks ended: kept where torchrun lets them meet, which is there for longer than they are."""

    store: Any = None

    @classmethod
    def said(cls, word: dict[str, Any]) -> dict[str, Any]:
        """By the first that ended, which may be this one."""
        return cls._answer(lambda store: store.compare_set("ended", "", json.dumps(word))) or word

    @classmethod
    def heard(cls) -> dict[str, Any] | None:
        """Its connections break when it ends, and it speaks before that."""
        return cls._answer(lambda store: store.get("ended") if store.check(["ended"]) else b"")

    @classmethod
    def _answer(cls, question: Callable[[Any], bytes]) -> dict[str, Any] | None:
        """Where the network is cut, there is no answer, and torch would wait for it without a limit."""
        answers: list[bytes] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(question(cls.store))

        if cls.store is not None:
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(ANSWER_S)
        return json.loads(answers[0]) if answers and answers[0] else None


def _among_ranks() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return 0, 1
    given = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    rank, size, address, port = given.values()
    if not (all(map(str.isdecimal, (rank, size, port))) and address and int(rank) < int(size)):
        found = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(
            f"the environment says that there are several processes, but not how they meet ({found}): start them with "
            "torchrun, or unset WORLD_SIZE for a single one"
        )
    return int(rank), int(size)


def _gpu() -> int:
    """The number of this process's GPU on its host."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise UserError(
            f"torchrun started {number + 1} processes or more on a host with {there} GPU{'s' * (there != 1)}, and each "
            f"needs one of its own: give torchrun --nproc-per-node {there}"
        )
    return number


def fresh(kept: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A part of torchrun's store for this start alone. torchrun keeps one store across restarts, where a rank may read
    the address that another had before the restart (github.com/pytorch/pytorch/issues/135712).

    Each rank announces itself with a unique word. The first rank replies to every such word with the name of the part,
    until all ranks have read it. It alone asks more than once.
    """
    kept, mine = dist.PrefixStore("vitreous", kept), uuid.uuid4().hex  # type: ignore[attr-defined]
    if rank > 0:
        kept.set(f"here/{rank}", mine)
        part = kept.get(f"reply/{mine}").decode()  # once it is there
        kept.set(f"heard/{part}/{rank}", "yes")
        return dist.PrefixStore(part, kept)  # type: ignore[attr-defined]
    others, replied = range(1, size), set[bytes]()
    deadline = time.monotonic() + timeout.total_seconds()
    while not kept.check([f"heard/{mine}/{other}" for other in others]):
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"not all {size} ranks have joined")
        for word in set(kept.multi_get([f"here/{other}" for other in others])) - replied:
            kept.set(f"reply/{word.decode()}", mine)
            replied.add(word)
        time.sleep(LOOK_S)
    return dist.PrefixStore(mine, kept)  # type: ignore[attr-defined]


def _leave() -> None:
    gc.collect()  # the autograd engine is part of reference cycles that keep the group alive
    dist.destroy_process_group()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """bf16: activations in bfloat16; weights, their gradients and their sums in float32. auto: bf16 if the device has
    instructions for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_half(device, precision))


def is_half(device: torch.device, precision: Precision) -> bool:
    return platforms.has_bfloat16(device) if precision == "auto" else precision in ("bf16", "fp8")


def multiply_in_8_bits(network: nn.Module, device: torch.device) -> None:
    """Changes the dense layers of the blocks in place, not what comes before and after the blocks."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        raise UserError(
            "training.precision fp8 needs an NVIDIA GPU that multiplies 8-bit floats (Hopper or later); give bf16"
        )
    if any(map(is_sharded, network.parameters())):
        raise UserError("training.precision fp8 does not work with sharded weights; give bf16, or more memory")
    for block in network.modules():
        if isinstance(block, Repeated):
            use_8_bits(block)


def compiles(device: torch.device, wanted: Compile) -> bool:
    """auto: only on a GPU. On a CPU it gains little, and there may be no compiler."""
    return device.type == "cuda" if wanted == "auto" else wanted
