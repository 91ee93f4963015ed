"""Peak memory of a call, what autograd keeps, and what a process holds: exact byte counts where there are any."""

import gc
import importlib
import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

# The profiler would announce each start and stop on stderr. Level 6 is above all its messages.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """The most memory that a call held at one time beyond what was there before.

    Both ways read the allocator, so that a kernel's scratch memory counts as well as tensors, and repeat to the byte.
    The resident set would not do: the C library keeps and reuses freed pages, so that it depends on what ran before.
    Tracking tensors by their Python objects would not do either: autograd keeps most of them in C++ alone.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(_changes(function), initial=0))


def _changes(function: Callable[[], object]) -> Iterator[int]:
    """Bytes taken (positive) and given back (negative) by PyTorch's CPU allocator during a call, in order of time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    recorded = profile.profiler and profile.profiler.kineto_results
    events = [event for event in recorded.events() if event.name() == "[memory]"] if recorded else []
    if not events:
        raise RuntimeError(f"the profiler of torch {torch.__version__} recorded no memory; use --device cuda")
    return (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))


def saved_bytes(function: Callable[[Tensor], object], x: Tensor) -> int:
    """What autograd says that it keeps of function(x) for the backward pass, each storage once.

    This counts no temporaries and asks no allocator: the independent number that `peak_bytes` is checked against.
    """
    sizes: dict[int, int] = {}
    kept = []  # a storage that is freed within the call could give its address to another one

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        kept.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    return sum(sizes.values())


def resident_bytes() -> int:
    """The physical memory of this process."""
    psutil: Any = importlib.import_module("psutil")  # it has no types
    return int(psutil.Process().memory_info().rss)


def live_tensors(device: torch.device) -> tuple[int, int]:
    """How many tensors Python knows, and the bytes of their storages (on CUDA: all that the allocator gave out)."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    if device.type == "cuda":
        return len(tensors), torch.cuda.memory_allocated(device)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return len(tensors), sum(storages.values())
