"""The ``gradwire`` command and what its subcommands share (extra ``cli``)."""
