"""Real network links on one machine: a network namespace for each worker, joined by a bridge, with a rate and a delay.

Invariants:
    A lab touches nothing but its own namespaces. Its addresses exist only inside them, its names carry an id, and it is
    removed with the process that made it, however that process ended.
"""

from gradwire_lab.netlab._watchdog import remove
from gradwire_lab.netlab.lab import Netlab, lab_for
from gradwire_lab.netlab.link import Link
from gradwire_lab.netlab.system import NetlabError

__all__ = ["Link", "Netlab", "NetlabError", "lab_for", "remove"]
