"""Integrations, one in each file; importing gradwire imports none of the frameworks."""
