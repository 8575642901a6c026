"""Deterministic simulation of the distributed store and of meetings: their own code, on machines that are not there.

``scheduler``      threads of which one runs at a time, simulated processes, and simulated time
``network``        ZeroMQ's sockets over connections that are slow, stall and are cut
``disk``           files that are torn, full or damaged
``machine``        the ``System`` of a simulated process, made of these
``case``           a seed, a workload and faults in one line; ``shrink`` leaves out faults
``base``           what all simulations do: start participants, and let faults happen to them
``workload``       what workers of the store train, and what they must see
``faults``         what happens to processes, connections and disks of the store, and when
``run``            a run of the store: ``Case.draw(seed, "kill-server").run()``, and its violations
``meeting_store``  the meeting place: a store of torch over connections
``meeting_work``   what workers of a meeting train
``meeting_island`` the ranks of an island, and the connections between them
``meeting_run``    a run of a meeting: ``MeetingCase.draw(seed, "kill").run()``, and its violations

One seed is one run, and gives the same trace each time, to the bit.
"""
