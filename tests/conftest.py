"""What all tests share."""

import pytest
import torch

# Tiny tensors gain nothing from threads, and lose much where tests run side by side.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
