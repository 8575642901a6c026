import subprocess
from collections.abc import Iterator

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.netlab import Netlab, _watchdog
from gradwire_lab.netlab.system import NetlabError, require_system


def here() -> str:
    """The reason why no lab can be made on this machine; empty: it can."""
    try:
        require_system()
        Netlab(2, "none").close()
    except (ConfigError, NetlabError) as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def possible() -> None:
    reason = here()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Netlab]:
    with Netlab(3, "100mbit") as made:
        yield made


def namespaces() -> set[str]:
    """The names of all labs' namespaces, as iproute2 lists them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if line.startswith(_watchdog.PREFIX)}
