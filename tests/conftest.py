import pytest
import torch


@pytest.fixture
def one_thread():
    """Several processes share the machine, and spinning threads of all of them would slow each other down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
