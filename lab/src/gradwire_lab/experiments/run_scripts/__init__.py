"""Training scripts as users have them, none of which knows gradwire, for ``gradwire check run``."""
