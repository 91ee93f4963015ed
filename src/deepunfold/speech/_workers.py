"""What work in several processes needs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started in here do their linear algebra in one thread, as there are several of them."""
    names = [name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ]
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
