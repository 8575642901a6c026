"""``python -m gradwire`` is ``gradwire``."""

from gradwire.cli.main import main

main()
