"""A peer in a process of its own: it answers each JSON line with a JSON line, and is stopped if it is late."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gradwire_lab.bench.peer_venv import PeerError

__all__ = ["Process"]


class Process:
    """A process that runs ``script`` with ``python``; use it as a context manager.

    Args:
        python: the interpreter, of another environment as a rule.
        script: reads requests from standard input and writes answers to standard output, a JSON object a line.
        environment: variables on top of this process's own.
        deadline: seconds in which every answer must come.
        before: the command that runs it elsewhere, as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        python: Path,
        script: Path,
        environment: Mapping[str, str],
        deadline: float = 60.0,
        before: Sequence[str] = (),
    ) -> None:
        self._deadline = deadline
        # Isolated: the script's own folder holds a module with the peer's name, and PYTHONPATH is ours.
        self.process = subprocess.Popen(
            [*before, str(python), "-I", str(script)],
            env=os.environ | environment,
            text=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._request = ""
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._complaints: deque[str] = deque(maxlen=20)
        self._listeners = [threading.Thread(target=f, daemon=True) for f in (self._listen, self._overhear)]
        for listener in self._listeners:
            listener.start()

    def ask(self, request: str, **arguments: object) -> Any:
        """Make one request and return its answer.

        Raises:
            PeerError: the peer reports an error, ended, or did not answer in time; in the latter case it is stopped.
        """
        self.tell(request, **arguments)
        return self.answer()

    def tell(self, request: str, **arguments: object) -> None:
        """Make a request whose ``answer`` is fetched later, so that several processes can work at once.

        Raises:
            PeerError: the peer ended.
        """
        assert self.process.stdin is not None
        self._request = request
        try:
            self.process.stdin.write(json.dumps({"do": request, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise PeerError(f"the peer ended during {request!r}: {self._last_words()}") from None

    def answer(self) -> Any:
        """Wait for the peer's answer to the request that ``tell`` made.

        Raises:
            PeerError: the peer failed or did not answer, as for ``ask``.
        """
        request = self._request
        try:
            line = self._answers.get(timeout=self._deadline)
        except queue.Empty:
            self.close()
            raise PeerError(f"the peer did not answer {request!r} within {self._deadline:g} s") from None
        if line is None:
            raise PeerError(f"the peer ended during {request!r}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"the peer refused {request!r}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """End the process and wait for its end."""
        self.process.kill()
        self.process.wait()
        for listener in self._listeners:
            listener.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _overhear(self) -> None:
        assert self.process.stderr is not None
        self._complaints.extend(line.strip() for line in self.process.stderr if line.strip())

    def _last_words(self) -> str:
        self.close()
        return self._complaints[-1] if self._complaints else f"exit code {self.process.returncode}"
