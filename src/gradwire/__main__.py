"""The command ``python -m gradwire``, which is ``gradwire``."""

from gradwire.cli.main import main

main()
