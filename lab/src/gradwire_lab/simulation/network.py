"""ZeroMQ's sockets as the store uses them, between simulated processes.

``lab/tests/simulation/test_store.py`` compares them with ZeroMQ's own sockets.

Invariants:
    * A connection is reliable and in order. What it carries when it is cut may be lost, from some message on.
    * A DEALER keeps what it was given and has not sent, connects again, and sends it then; messages that have reached a
      socket are read also after the connection has ended.
    * A ROUTER refuses a message for a peer that is not connected, and ``zmq.Again`` says that a queue is full. A peer
      that connects with the name of another one takes its place.
    * A stopped process reads, sends and answers nothing, and its connections stay, until the heartbeat of the other
      side has missed an answer for ``HEARTBEAT_TIMEOUT``.
    * Bytes are taken when a message leaves its queue, and not when it is sent: its memory must not change until then.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from gradwire_lab.simulation.scheduler import Killed, Scheduler, SimulatedProcess

__all__ = ["Context", "Network", "Poller", "ReceivedFrame", "SimulatedConnection", "Socket"]

IN, OUT = int(zmq.POLLIN), int(zmq.POLLOUT)

ENDED, GREETING, READY = "ended", "greeting", "ready"
"""Items that a connection carries besides messages: its end, the name of the DEALER, and the answer of the ROUTER."""


class Network:
    """All connections.

    Args:
        scheduler: scheduler of the run.
        latency: seconds that a message takes at least, and most of them little more.
        room: messages that the systems of both sides hold for one direction of a connection.
        heartbeat: seconds without an answer of the other process after which a DEALER ends a connection.
    """

    def __init__(self, scheduler: Scheduler, latency: float = 2e-4, room: int = 200, heartbeat: float = 15.0) -> None:
        self.scheduler, self.latency, self.room, self.heartbeat = scheduler, latency, room, heartbeat
        self.listeners: dict[str, Socket] = {}
        self.connections: list[SimulatedConnection] = []
        self._numbers, self._ports = itertools.count(10**9), itertools.count(40000)

    def number(self) -> int:
        """Return the descriptor of a new connection, which is none of this process."""
        return next(self._numbers)

    def port(self) -> int:
        """Return a free port."""
        return next(self._ports)

    def delay(self) -> float:
        """Draw the seconds that a message takes."""
        draw = self.scheduler.random.random()
        return self.latency * (1 + draw if draw < 0.95 else 100 * draw)

    def cut(self, name: str, other: str, count: int) -> None:
        """Cut the connections between two processes, after so many more messages."""
        for each in list(self.connections):
            if {name, other} == {each.dealer.process.name, each.router.process.name}:
                each.fuse = count
                each.burn()

    def stall(self, name: str, other: str, seconds: float) -> None:
        """Hold up all that is on its way between two processes."""
        for each in list(self.connections):
            if {name, other} == {each.dealer.process.name, each.router.process.name}:
                each.stall(seconds)


class Direction:
    """One direction of a connection.

    Args:
        connection: connection that it belongs to.
        sender: process that sends.
        receiver: process that receives.
        outgoing: messages that the sender's socket holds.
        incoming: messages that the receiver's socket holds.
        room: messages that ``incoming`` may hold; 0: any number.
    """

    def __init__(
        self,
        connection: SimulatedConnection,
        sender: SimulatedProcess,
        receiver: SimulatedProcess,
        outgoing: deque[list[Any]],
        incoming: deque[list[bytes]],
        room: int,
    ) -> None:
        self.connection, self.sender, self.receiver = connection, sender, receiver
        self.outgoing, self.incoming, self.room = outgoing, incoming, room
        self.items: deque[tuple[float, str | list[bytes]]] = deque()
        self.attached = False
        self._last = 0.0

    def put(self, item: str | list[bytes]) -> None:
        """Send something on its way."""
        network = self.connection.network
        self._last = max(self._last, network.scheduler.now + network.delay())
        self.items.append((self._last, item))
        self.connection.burn()
        network.scheduler.after(self._last - network.scheduler.now, self.pump)

    def pump(self) -> None:
        """Move what can be moved: from the sender's socket on its way, and from there to the receiver's socket."""
        network = self.connection.network
        moved = False
        while self.attached and self.sender.running and self.outgoing and len(self.items) < network.room:
            self.put([bytes(each) for each in self.outgoing.popleft()])
            moved = True
        if moved:
            network.scheduler.touch(self.sender)
        now = network.scheduler.now
        while self.items and self.receiver.running and max(self.items[0][0], self.connection.stalled) <= now + 1e-9:
            item = self.items[0][1]
            if isinstance(item, list) and self.room and len(self.incoming) >= self.room:
                return
            self.items.popleft()
            network.scheduler.touch(self.receiver)
            self.connection.arrived(self, item)

    def end(self, whole: bool) -> None:
        """Let the direction end: after all that is on its way, or with a loss."""
        self.attached = False
        if not whole:
            for _ in range(self.connection.network.scheduler.random.randint(0, len(self.items))):
                self.items.pop()
        if not any(item == ENDED for _, item in self.items):
            self.put(ENDED)


class SimulatedConnection:
    """A TCP connection of a DEALER with a ROUTER."""

    def __init__(self, network: Network, dealer: Socket, router: Socket) -> None:
        self.network, self.dealer, self.router, self.number = network, dealer, router, network.number()
        self.received: deque[list[bytes]] = deque()
        self.waiting: deque[list[Any]] = deque()
        ours, theirs = dealer.process, router.process
        room, endless = router.options.get(zmq.RCVHWM, 1000), dealer.options.get(zmq.RCVHWM, 1000)
        self.to_router = Direction(self, ours, theirs, dealer.outgoing, self.received, room)
        self.to_dealer = Direction(self, theirs, ours, self.waiting, dealer.incoming, endless)
        self.at_dealer = self.at_router = True
        self.accepted, self.stalled = False, 0.0
        self.fuse: int | None = None
        self._handlers: dict[tuple[bool, str], Callable[[], None]] = {
            (True, GREETING): self._accept,
            (True, ENDED): self._end_at_router,
            (False, READY): self._begin,
            (False, ENDED): self.end_at_dealer,
        }
        network.connections.append(self)
        for process in (ours, theirs):
            process.on_resume.append(self.pump)
        theirs.on_resume.append(self._beat)
        self._missed: float | None = None
        self.to_router.put(GREETING)
        self.beat()

    @property
    def identity(self) -> bytes:
        """The name of the DEALER."""
        name: bytes = self.dealer.options[zmq.IDENTITY]
        return name

    def pump(self) -> None:
        """Move what can be moved in both directions."""
        self.to_router.pump()
        self.to_dealer.pump()

    def burn(self) -> None:
        """Cut the connection after some messages: both sides notice, and some of what is on its way is lost."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                self.to_router.end(whole=False)
                self.to_dealer.end(whole=False)

    def stall(self, seconds: float) -> None:
        """Hold up all that is on its way, and what follows."""
        self.stalled = max(self.stalled, self.network.scheduler.now + seconds)
        self.network.scheduler.after(seconds, self.pump)

    def beat(self) -> None:
        """Look from time to time whether the other process answers heartbeats."""
        self.network.scheduler.after(1.0, self._beat_again)

    def arrived(self, wire: Direction, item: str | list[bytes]) -> None:
        """Take what has arrived at its end."""
        to_router = wire is self.to_router
        if isinstance(item, str):
            self._handlers[to_router, item]()
        elif to_router and self.at_router:
            if not self.received:
                self.router.order.append(self)
            self.received.append(item)
        elif not to_router and self.at_dealer:
            self.dealer.incoming.append(item)

    def end_at_dealer(self) -> None:
        """End the connection at the DEALER, which connects again."""
        if self.at_dealer:
            self.at_dealer = False
            self.to_dealer.items.clear()
            self.to_router.end(whole=False)
            self._forget()
            self.dealer.disconnected(self)

    def take_over(self) -> None:
        """End the connection at the ROUTER, because another one has its name."""
        self.received.clear()
        if self in self.router.order:
            self.router.order.remove(self)
        self._end_at_router()

    def abandon(self, socket: Socket, whole: bool) -> None:
        """End the connection at the side of a socket: what it has sent arrives, or some of it."""
        if socket is self.dealer:
            self.at_dealer, mine, other = False, self.to_router, self.to_dealer
        else:
            self.at_router, mine, other = False, self.to_dealer, self.to_router
        other.items.clear()
        other.attached = False
        mine.end(whole)
        self._forget()

    def _accept(self) -> None:
        if not self.at_router:
            return
        self.router.event(zmq.EVENT_ACCEPTED, self.number)
        before = self.router.peers.get(self.identity)
        if before is not None:
            before.take_over()
        self.router.peers[self.identity] = self
        self.to_dealer.attached = self.accepted = True
        self.to_dealer.put(READY)

    def _begin(self) -> None:
        if self.at_dealer:
            self.to_router.attached = True
            self.dealer.event(zmq.EVENT_HANDSHAKE_SUCCEEDED, 0)
            self.to_router.pump()

    def _end_at_router(self) -> None:
        if self.at_router:
            self.at_router = False
            self.waiting.clear()
            self.to_router.items.clear()
            self.to_dealer.end(whole=False)
            if self.router.peers.get(self.identity) is self:
                del self.router.peers[self.identity]
            if self.accepted:
                self.router.event(zmq.EVENT_DISCONNECTED, self.number)
            self._forget()

    def _forget(self) -> None:
        if not self.at_dealer and not self.at_router and self in self.network.connections:
            self.network.connections.remove(self)
            for process in (self.dealer.process, self.router.process):
                process.on_resume.remove(self.pump)
            self.router.process.on_resume.remove(self._beat)

    def _beat_again(self) -> None:
        if self.at_dealer:
            self._beat()
            self.beat()

    def _beat(self) -> None:
        """Count the seconds in which the DEALER's process runs and gets no answer; then it ends the connection."""
        now = self.network.scheduler.now
        answered = self.router.process.running and now >= self.stalled
        if answered or not self.dealer.process.running:
            self._missed = None
        else:
            self._missed = now if self._missed is None else self._missed
            if now - self._missed > self.network.heartbeat + self.network.scheduler.random.random():
                self.end_at_dealer()


class ReceivedFrame:
    """A frame of a message that was received."""

    def __init__(self, data: bytes, number: int) -> None:
        self.bytes, self.buffer, self._number = data, memoryview(data), number

    def get(self, name: str) -> int:
        """Return a property of the frame: the descriptor of its connection is the one that there is."""
        return {"__fd": self._number}[name]

    def __len__(self) -> int:
        return len(self.bytes)


class Socket:
    """A socket of any of the kinds that the store uses."""

    def __init__(self, context: Context, kind: int) -> None:
        self.context, self.kind = context, kind
        self.process, self._network = context.process, context.network
        self.options: dict[int, Any] = {}
        self.closed = False
        self.outgoing: deque[list[Any]] = deque()
        self.incoming: deque[list[bytes]] = deque()
        self.peers: dict[bytes, SimulatedConnection] = {}
        self.order: deque[SimulatedConnection] = deque()
        self._endpoint = ""
        self._monitor: tuple[Socket, int] | None = None
        self._peer: Socket | None = None
        self._connection: SimulatedConnection | None = None
        self._interval = 0.0
        self.process.on_death.append(self._abandon)

    def setsockopt(self, option: int, value: Any) -> None:
        """Set an option."""
        self.options[option] = value

    def getsockopt_string(self, option: int) -> str:
        """Return the endpoint that the socket is bound to."""
        return self._endpoint

    def bind(self, endpoint: str) -> None:
        """Bind the socket; port 0 takes a free one. The operating system takes back what a killed process had bound."""
        if self.process.operate(f"binds {endpoint}"):
            return
        if endpoint.startswith("inproc:"):
            self.context.bound[endpoint] = self
            return
        head, _, port = endpoint.rpartition(":")
        self._endpoint = f"{head}:{self._network.port() if port == '0' else port}"
        if self._endpoint in self._network.listeners:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self._network.listeners[self._endpoint] = self

    def connect(self, endpoint: str) -> None:
        """Connect the socket, now or as soon as somebody has bound the endpoint."""
        if endpoint.startswith("inproc:"):
            self._peer = self.context.bound[endpoint]
            self._peer._peer = self
            return
        self._endpoint = endpoint
        self._interval = self.options.get(zmq.RECONNECT_IVL, 100) / 1000
        self._network.scheduler.after(0.0, self._try)

    def get_monitor_socket(self, events: int) -> Socket:
        """Return a socket from which events of this one are read."""
        self._monitor = Socket(self.context, zmq.PAIR), int(events)
        return self._monitor[0]

    def disable_monitor(self) -> None:
        """Stop to report events."""
        self._monitor = None

    def send(self, data: bytes, flags: int = 0) -> None:
        """Send a message of one frame."""
        self.send_multipart([data], flags)

    def send_multipart(self, frames: Sequence[Any], flags: int = 0, copy: bool = True) -> None:
        """Send a message.

        Raises:
            ZMQError: the queue is full, or there is no such peer.
        """
        if self._peer is not None:
            self._peer.incoming.append([bytes(each) for each in frames])
            self._network.scheduler.touch(self.process)
            return
        head = bytes(frames[self.kind == zmq.ROUTER])
        dies = self.process.operate(f"sends {head[:80]!r} {sum(len(each) for each in frames)}")
        if self.kind == zmq.ROUTER:
            self._send_to(bytes(frames[0]), frames[1:])
        else:
            self._queue(self.outgoing, frames, None if self._connection is None else self._connection.to_router)
        if dies:
            raise Killed

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        """Receive a message.

        Raises:
            ZMQError: there is none.
        """
        number, frames = 0, []
        if self.order:
            connection = self.order.popleft()
            number, frames = connection.number, [connection.identity, *connection.received.popleft()]
            if connection.received:
                self.order.append(connection)
            connection.to_router.pump()
        elif self.incoming:
            frames = self.incoming.popleft()
            if self._connection is not None:
                self._connection.to_dealer.pump()
        else:
            raise zmq.Again
        self.process.scheduler.trace(f"{self.process.name} receives {frames[number > 0][:80]!r}")
        return frames if copy else [ReceivedFrame(each, number) for each in frames]

    def recv(self, flags: int = 0) -> Any:
        """Receive a message of one frame."""
        return self.recv_multipart(flags)[0]

    def poll(self, timeout: int) -> int:
        """Return the events that there are now."""
        return self.events() & IN

    def events(self) -> int:
        """Return whether a message can be read and sent."""
        full = len(self.outgoing) >= self.options.get(zmq.SNDHWM, 1000)
        return (IN if self.order or self.incoming else 0) | (0 if full else OUT)

    def close(self, linger: int | None = None) -> None:
        """Close the socket; a DEALER still sends what it holds."""
        if self.closed or not self.process.alive:
            return
        self.closed = True
        if self._connection is not None and linger is None:
            while self.outgoing and self._connection.to_router.attached:
                self._connection.to_router.put([bytes(each) for each in self.outgoing.popleft()])
        self._leave(whole=True)

    def event(self, event: int, value: int) -> None:
        """Report an event to the monitor."""
        if self._monitor is not None and int(event) & self._monitor[1]:
            self._monitor[0].incoming.append([struct.pack("=hi", event, value), self._endpoint.encode()])
            self._network.scheduler.touch(self.process)

    def disconnected(self, connection: SimulatedConnection) -> None:
        """Note that the connection of a DEALER has ended, and connect again."""
        if self._connection is connection:
            self._connection = None
            self.event(zmq.EVENT_DISCONNECTED, connection.number)
            self._retry()

    def _try(self) -> None:
        if self.closed or not self.process.alive:
            return
        listener = self._network.listeners.get(self._endpoint)
        if not self.process.running or listener is None:
            self._retry()
            return
        self._interval = self.options.get(zmq.RECONNECT_IVL, 100) / 1000
        self._connection = SimulatedConnection(self._network, self, listener)

    def _retry(self) -> None:
        self._network.scheduler.after(self._interval * (1 + self._network.scheduler.random.random()), self._try)
        self._interval = min(2 * self._interval, self.options.get(zmq.RECONNECT_IVL_MAX, 500) / 1000)

    def _send_to(self, peer: bytes, frames: Sequence[Any]) -> None:
        if peer not in self.peers:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        self._queue(self.peers[peer].waiting, frames, self.peers[peer].to_dealer)

    def _queue(self, queue: deque[list[Any]], frames: Sequence[Any], wire: Direction | None) -> None:
        if len(queue) >= self.options.get(zmq.SNDHWM, 1000):
            raise zmq.Again
        queue.append(list(frames))
        if wire is not None:
            scheduler = self._network.scheduler
            scheduler.after(1e-4 * scheduler.random.random(), wire.pump)

    def _mine(self) -> list[SimulatedConnection]:
        return [each for each in self._network.connections if self in (each.dealer, each.router)]

    def _abandon(self) -> None:
        """Leave what the system has of a process that was killed."""
        self.closed = True
        self._leave(whole=self._network.scheduler.random.random() < 0.7)

    def _leave(self, whole: bool) -> None:
        for each in self._mine():
            each.abandon(self, whole)
        if self._network.listeners.get(self._endpoint) is self:
            del self._network.listeners[self._endpoint]


class Context:
    """A context of a simulated process."""

    def __init__(self, network: Network, process: SimulatedProcess) -> None:
        self.network, self.process = network, process
        self.bound: dict[str, Socket] = {}

    def socket(self, kind: int) -> Socket:
        """Make a socket."""
        return Socket(self, kind)

    def term(self) -> None:
        """End the context."""


class Poller:
    """A poller of a simulated process, whose thread waits in ``poll``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sockets: dict[Socket, int] = {}

    def register(self, socket: Socket, flags: int) -> None:
        """Look at a socket from now on."""
        self._sockets[socket] = int(flags)

    def poll(self, timeout: int) -> list[tuple[Socket, int]]:
        """Wait until a socket is ready or some milliseconds are over."""
        self._scheduler.wait(self._any, timeout / 1000)
        ready = ((socket, socket.events() & flags) for socket, flags in self._sockets.items())
        return [(socket, events) for socket, events in ready if events]

    def _any(self) -> bool:
        return any(socket.events() & flags for socket, flags in self._sockets.items())
