"""Exchange strategies of methods of the second tier."""
