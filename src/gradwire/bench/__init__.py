"""What gradwire is measured with: codecs, kernels and stores, side by side with others.

What trains is in ``gradwire.experiments``; ``gradwire.report`` shows what came of it.
"""

import sys

from gradwire._moved import Moved

_PLACES = {
    **dict.fromkeys(("advise", "netlab", "report"), "gradwire"),
    **dict.fromkeys(("data", "models", "recommended", "records", "replay", "tasks", "train"), "gradwire.experiments"),
}
"""What was in this folder, and in which package each is."""

# The first of all, so that what is inside a folder is not found there a second time.
sys.meta_path.insert(0, Moved(__name__, lambda name: f"{_PLACES[name]}.{name}" if name in _PLACES else None))
