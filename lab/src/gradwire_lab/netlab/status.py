"""Status of all labs of this machine, whoever made them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gradwire_lab.netlab import _watchdog
from gradwire_lab.netlab.lab import traffic_of
from gradwire_lab.netlab.link import Link
from gradwire_lab.netlab.names import LabNames

__all__ = ["lab_of", "labs"]


def labs() -> list[dict[str, Any]]:
    """Return a row for each lab, ready for JSON."""
    return [lab_of(lab) for lab in _watchdog.records()]


def lab_of(lab: str) -> dict[str, Any]:
    """Describe one lab: its names, its link, its owner (None if it was made to stay), and whether
    the owner has ended.
    """
    facts = _watchdog.records()[lab]
    names = LabNames(lab, facts["workers"])
    return {
        "id": lab,
        "workers": names.workers,
        "link": str(Link(facts["rate"], facts["delay"])),
        "congestion": facts["congestion"],
        "owner": facts["owner"],
        "dead": lab in _watchdog.leftovers(),
        "namespaces": list(names.all),
        "addresses": [names.address(rank) for rank in range(names.workers)],
        "traffic": [asdict(each) for each in traffic_of(names)],
    }
