"""A cable that can be cut: it carries bytes between workers and a server until it is told not to."""

import contextlib
import socket
import threading


class Cable:
    """Between workers and the server at an endpoint."""

    def __init__(self, endpoint):
        self.gone = threading.Event()
        self._left = {True: float("inf"), False: float("inf")}
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.target, self.whole = (host, int(port)), True
        self._ends = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, nbytes, to_server):
        """Cut it when so many more bytes went in one direction."""
        self._left[to_server] = nbytes

    def cut(self):
        """Break what goes through it, and refuse what comes."""
        self.whole = False
        self._left = {True: float("inf"), False: float("inf")}
        self.gone.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends = []

    def mend(self):
        self.whole = True

    def close(self):
        self.cut()
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(self.target)
                self._ends += [near, far]
                for a, b, to_server in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=(a, b, to_server), daemon=True).start()

    def _carry(self, source, target, to_server):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                self._left[to_server] -= len(data)
                if self._left[to_server] <= 0:
                    self.cut()
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.close()
