"""Requests on standard input and answers on standard output, one JSON object a line, for scripts in any interpreter."""

import json
import os
import sys
from typing import Any

__all__ = ["serve"]


def serve(target: Any) -> None:
    """Call the methods of ``target`` that are requested, until standard input ends.

    What else is printed meanwhile, also by libraries, goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("do")
        try:
            answer = {"value": getattr(target, name)(**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
