"""``python -m gradwire_command`` is ``gradwire``."""

from gradwire_command import main

main()
