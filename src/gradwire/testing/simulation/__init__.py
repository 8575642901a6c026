"""Deterministic simulation of the distributed store: its own servers and workers, on machines that are not there.

``scheduler``  threads of which one runs at a time, simulated processes, and simulated time
``network``    ZeroMQ's sockets over connections that are slow, stall and are cut
``disk``       files that are torn, full or damaged
``machine``    the ``System`` of a simulated process, made of these
``workload``   what workers train, and what they must see
``faults``     what happens to processes, connections and disks, and when
``run``        one run: ``run(Case.draw(seed, "kill-server"))``, and its violations; ``shrink`` leaves out faults

One seed is one run, and gives the same trace each time, to the bit.
"""
