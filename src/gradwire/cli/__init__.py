"""The ``gradwire`` command: one subcommand in each file of this folder (extra ``cli``)."""
