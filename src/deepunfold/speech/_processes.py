"""One process, or several that torchrun has started: who does what, and what all of them know."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Processes(NamedTuple):
    """Which process this is, and of how many."""

    rank: int = 0
    number: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files."""
        return self.rank == 0

    def sums(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.number > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def tell(self, value: Any, source: int = 0) -> Any:
        """What one of the processes holds."""
        if self.number == 1:
            return value
        held = [value]
        torch.distributed.broadcast_object_list(held, src=source)
        return held[0]


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Those that are there; a group is made if torchrun has started several and there is none yet."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    elif count > 1:
        if device.startswith("cuda"):
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        try:
            yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
        finally:
            torch.distributed.destroy_process_group()
    else:
        yield Processes()
